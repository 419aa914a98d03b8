"""Keyed state in the record of a region: which bytes of which files hold the state of each split.

Frozen, picklable. The state of a split is a list of parts, oldest first: a later part overrides an
earlier one, key by key. `sluice.runtime.state` writes and reads the files.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from sluice.runtime.errors import ConfigError, DamagedCheckpointError
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.split_key import SplitKey

__all__ = ["Due", "KeyedState", "SplitState", "StatePart", "StateTableInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """When keyed functions want a barrier though no record comes; None: never.

    Attributes:
        event_ms: once the watermark has reached it: output waits for it.
        time_ms: once the processing time has.
        expiry_ms: once the watermark has reached it: state expires, and nothing comes out.
    """

    event_ms: int | None = None
    time_ms: int | None = None
    expiry_ms: int | None = None

    @staticmethod
    def first(found: Iterable["Due"]) -> "Due":
        """The earliest of several."""
        every = list(found)
        return Due(
            event_ms=min((d.event_ms for d in every if d.event_ms is not None), default=None),
            time_ms=min((d.time_ms for d in every if d.time_ms is not None), default=None),
            expiry_ms=min((d.expiry_ms for d in every if d.expiry_ms is not None), default=None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTableInfo:
    """One declared state of an operator.

    Attributes:
        number: of its entries in the files; never changes, also if the operator gets another id.
        operator_id: of the operator that has it now.
        name: of the state in the operator.
        kind: ``value``, ``list``, ``map``, ``timers`` or the operator's own (``aggregate``, …).
        key_schema, value_schema: Arrow schemas as JSON (`sluice.runtime.state.codec.row_codec`).
    """

    number: int
    operator_id: str
    name: str
    kind: str
    key_schema: str = ""
    value_schema: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePart:
    """A section of a state file: changes of one split, of one epoch or of several.

    Attributes:
        file: index in `KeyedState.files`.
        offset, length: bytes of the section; a section has a checksum of its own.
        is_base: it holds the whole state as of its epoch; only the first part of a split may.
    """

    file: int
    offset: int
    length: int
    is_base: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitState:
    """The state of one split.

    Attributes:
        source_id, topic, partition: the split.
        parts: oldest first; none: no state yet.
    """

    source_id: str
    topic: str
    partition: int
    parts: tuple[StatePart, ...] = ()

    @property
    def key(self) -> SplitKey:
        """The split."""
        return self.source_id, self.topic, self.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedState:
    """The keyed state of a region, or of some of its splits.

    Attributes:
        max_parallelism: number of key groups; 0: the keys belong to the input's partitions. It
            says nothing if there are no splits.
        partitions: of the topic by which keys are partitioned, as of this checkpoint.
        tables: every declared state.
        files: relative to the checkpoint directory, each once.
        splits: each once.
    """

    max_parallelism: int = 0
    partitions: int = 0
    tables: tuple[StateTableInfo, ...] = ()
    files: tuple[FileReference, ...] = ()
    splits: tuple[SplitState, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.files)
        for split in self.splits:
            for at, part in enumerate(split.parts):
                is_inside = 0 <= part.file < count and part.offset >= 0 and part.length >= 0
                if not is_inside or (part.is_base and at > 0):
                    raise _not_valid(f"{split.topic}-{split.partition}", "part", at)
        _require_once("split", [split.key for split in self.splits])
        _require_once("file", [file.path for file in self.files])
        _require_once("table", [table.number for table in self.tables])

    def of(self, splits: Collection[SplitKey]) -> "KeyedState":
        """The state of these splits alone, with the files that they need."""
        return _with_needed_files(self, [s for s in self.splits if s.key in splits])

    def covering(self, splits: Collection[SplitKey]) -> "KeyedState":
        """As `of`, with an entry for each of the splits, also for one without state yet."""
        found = self.of(splits)
        known = {split.key for split in found.splits}
        new = tuple(
            SplitState(source_id=source_id, topic=topic, partition=partition)
            for source_id, topic, partition in sorted(set(splits) - known)
        )
        return replace(found, splits=found.splits + new)

    def without(self, splits: Collection[SplitKey]) -> "KeyedState":
        """The state of all other splits, with the files that they need."""
        return _with_needed_files(self, [s for s in self.splits if s.key not in splits])

    def sections(self) -> dict[SplitKey, tuple[tuple[FileReference, StatePart], ...]]:
        """The files and sections with the state of each split, in any order of splits and files."""
        return {
            split.key: tuple((self.files[part.file], replace(part, file=0)) for part in split.parts)
            for split in self.splits
        }

    @staticmethod
    def merged(states: Iterable["KeyedState"]) -> "KeyedState | None":
        """The state of several regions as one; None: there is none.

        Raises:
            DamagedCheckpointError: a split has its state twice, or they disagree on a table or on
                the number of key groups.
        """
        found = list(states)
        if not found:
            return None
        files = tuple(dict.fromkeys(file for state in found for file in state.files))
        index = {file: at for at, file in enumerate(files)}
        by_path: dict[str, FileReference] = {}
        for file in files:
            if by_path.setdefault(file.path, file) != file:
                raise _contradiction("file", file.path)
        splits: dict[SplitKey, SplitState] = {}
        tables: dict[int, StateTableInfo] = {}
        for state in found:
            for table in state.tables:
                if tables.setdefault(table.number, table).name != table.name:
                    raise _contradiction(f"table {table.number}", table.operator_id)
            for split in state.splits:
                if split.key in splits:
                    raise _contradiction("split", f"{split.topic}-{split.partition}")
                splits[split.key] = replace(
                    split,
                    parts=tuple(replace(p, file=index[state.files[p.file]]) for p in split.parts),
                )
        return KeyedState(
            max_parallelism=KeyedState.key_groups_of(found),
            partitions=max(state.partitions for state in found),
            tables=tuple(tables.values()),
            files=files,
            splits=tuple(splits.values()),
        )

    @staticmethod
    def key_groups_of(states: Iterable["KeyedState"]) -> int:
        """The number of key groups that divides the splits of several regions; 0: none has one.

        A region without splits has no number: it may be that of another source.

        Raises:
            DamagedCheckpointError: they have two numbers.
        """
        found = {state.max_parallelism for state in states if state.splits} - {0}
        if len(found) > 1:
            raise _contradiction("key groups", ",".join(map(str, sorted(found))))
        return max(found, default=0)


def _with_needed_files(state: KeyedState, splits: list[SplitState]) -> KeyedState:
    used = sorted({part.file for split in splits for part in split.parts})
    index = {old: new for new, old in enumerate(used)}
    return replace(
        state,
        files=tuple(state.files[at] for at in used),
        splits=tuple(
            replace(split, parts=tuple(replace(p, file=index[p.file]) for p in split.parts))
            for split in splits
        ),
    )


def _require_once(what: str, names: Sequence[object]) -> None:
    if len(set(names)) < len(names):
        raise _not_valid(max(names, key=names.count), what, "twice")


def _not_valid(name: object, what: str, problem: object) -> ConfigError:
    return ConfigError(
        "the keyed state of a checkpoint is not valid",
        {"name": name, what: problem},
        "Name each file, table and split once, and parts inside the files.",
    )


def _contradiction(what: str, name: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        "two regions of a checkpoint contradict each other about keyed state",
        {"what": what, "name": name},
        "Restore from another checkpoint (sluice checkpoint list), and report this one.",
    )
