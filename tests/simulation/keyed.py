"""Keyed state of simulated tasks: which records of a split a file's section holds, and nothing else.

A fold of all records before an offset is known by the range of these records, so a section says
from which offset to which it goes, and of which epochs it is. A change file has the range of an
epoch; a merged file has those of the sections that it replaces. Reading, writing and merging are
played here; who names, moves, keeps and deletes files is production code. So is all that a
continuous task does with its state in memory.
"""

import hashlib
import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.runtime.contracts.keyed import (
    BarrierTime,
    KeyBy,
    KeyedOperator,
    KeyedRows,
    OperatorScope,
    TableSpec,
)
from sluice.runtime.errors import StorageError
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.keyed.keyed_task import KeyedTask, numbered_tables
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import BatchKey, SplitKey, SplitRange
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import Due, KeyedState, SplitState, StatePart
from sluice.runtime.state.backend import StateBackend, TableChanges
from sluice.runtime.state.memory_backend import MemoryBackend
from sluice.runtime.state.task_state import EpochChanges, TaskState

if TYPE_CHECKING:
    from tests.simulation.world import World

Epoch = tuple[str, int, int]
"""Region, attempt and batch."""


@dataclass(frozen=True, slots=True)
class Section:
    """Of one split: offsets from ``first`` to ``end``, which is not in it, by these epochs."""

    split: SplitKey
    first: int
    end: int
    epochs: tuple[Epoch, ...]

    def encode(self) -> bytes:
        """As bytes of a file."""
        return json.dumps([self.split, self.first, self.end, self.epochs]).encode()


@dataclass(frozen=True, slots=True)
class Named:
    """A section, and where a record finds it."""

    section: Section
    file: FileReference
    offset: int
    length: int


Chains = Mapping[SplitKey, tuple[Named, ...]]
"""The sections of each split, oldest first."""


@dataclass(slots=True)
class StateUpload:
    """An upload of a file; it may outlive its driver, its batch and its attempt."""

    world: "World"
    path: str
    data: bytes
    is_begun: bool = False
    is_late: bool = False

    def write(self, count: int) -> bool:
        """Continue; True when the file is whole."""
        del count
        disk = self.world.disk
        whole = self.is_begun
        if whole and self.is_late:
            self.world.faults["a state file is uploaded after its attempt"] += 1
        disk.write(self.path, self.data if whole else self.data[: len(self.data) // 2])
        self.is_begun = True
        return whole


def decoded(data: bytes) -> Section:
    """Raises ValueError where the bytes are no section."""
    (source_id, topic, partition), first, end, epochs = json.loads(data)
    found = tuple((region, attempt_id, batch_id) for region, attempt_id, batch_id in epochs)
    return Section((source_id, topic, partition), first, end, found)


def chains_of(world: "World", state: KeyedState) -> Chains:
    """What the files hold that a record or a barrier names.

    Raises:
        StorageError: a file is missing, or not as it is named.
    """
    return {
        split.key: tuple(_named(world, state, part) for part in split.parts)
        for split in state.splits
    }


def _named(world: "World", state: KeyedState, part: StatePart) -> Named:
    file = state.files[part.file]
    data = world.disk.files.get(file.path, b"")
    if len(data) != file.length_bytes or hashlib.sha256(data).hexdigest() != file.sha256:
        raise StorageError("a file is not whole", {"path": file.path}, "Look for who deleted it.")
    section = decoded(data[part.offset : part.offset + part.length])
    return Named(section, file, part.offset, part.length)


def state_of(chains: Chains) -> KeyedState:
    """As an acknowledgement names them."""
    files = tuple(dict.fromkeys(each.file for chain in chains.values() for each in chain))
    index = {file: at for at, file in enumerate(files)}
    return KeyedState(
        files=files,
        splits=tuple(
            SplitState(
                source_id=key[0],
                topic=key[1],
                partition=key[2],
                parts=tuple(
                    StatePart(
                        file=index[each.file],
                        offset=each.offset,
                        length=each.length,
                        is_base=each.section.first == 0,
                    )
                    for each in chain
                ),
            )
            for key, chain in chains.items()
        ),
    )


def end_of(chain: Sequence[Named]) -> int:
    """The offset after the last record in a state."""
    return chain[-1].section.end if chain else 0


class AttemptState:
    """The keyed state of one attempt of a region.

    Attributes:
        upload: under way.
        chains: of its splits, as of the last epoch that it has ended.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self.upload: StateUpload | None = None
        self.chains: dict[SplitKey, tuple[Named, ...]] = {}

    def orphan(self) -> None:
        """Its attempt is over; what it uploads may still land."""
        if self.upload is not None:
            self.upload.is_late = True
            self._world.zombies.append(self.upload)
            self.upload = None

    def adopt(self, state: KeyedState, splits: Iterable[SplitRange]) -> None:
        """Load the splits that a barrier brings, and forget those that it leaves out."""
        self.chains |= chains_of(self._world, state)
        self.chains = {s.key: self.chains.get(s.key, ()) for s in splits}
        for split in splits:
            end = end_of(self.chains[split.key])
            what = "a task's state is of another place than its records"
            self._world.require(end == split.start_offset, f"{what}: {split}, to {end}")

    def end_epoch(
        self, batch: BatchKey, splits: Iterable[SplitRange]
    ) -> Generator[None, None, KeyedState]:
        """Write the change file, at times a merged one, and name what holds the state now."""
        epoch = batch.region, batch.attempt_id, batch.batch_id
        changes = [
            Section(s.key, s.start_offset, s.end_offset, (epoch,)) for s in splits if not s.is_empty
        ]
        return (yield from self._end(batch, changes))

    def _end(
        self, batch: BatchKey, changes: Sequence[Section]
    ) -> Generator[None, None, KeyedState]:
        if changes:
            for named in (yield from self._written(self._path(batch, "changes"), changes)):
                self.chains[named.section.split] += (named,)
        if self._world.random.random() < 0.4:
            yield from self._merge(batch)
        return state_of(self.chains)

    def _path(self, batch: BatchKey, kind: str) -> str:
        serial = f"{next(self._world.names):08x}"
        return f"state/{batch.region}/{batch.attempt_id}-{batch.batch_id}-{serial}.{kind}"

    def _written(
        self, path: str, sections: Iterable[Section]
    ) -> Generator[None, None, list[Named]]:
        encoded = [(section, section.encode()) for section in sections]
        data = b"".join(part for _, part in encoded)
        self.upload = StateUpload(self._world, path, data)
        while not self.upload.write(1):
            yield
            profile = self._world.profile
            if self._world.fault(profile.refused, "the file system refuses a state file"):
                raise StorageError("a simulated fault", {"path": path}, "The region begins again.")
        self.upload = None
        yield
        sha256 = hashlib.sha256(data).hexdigest()
        file = FileReference(path=path, length_bytes=len(data), sha256=sha256)
        named, offset = [], 0
        for section, part in encoded:
            named.append(Named(section, file, offset, len(part)))
            offset += len(part)
        return named

    def _merge(self, batch: BatchKey) -> Generator[None, None, None]:
        """Adjacent sections of one split become one."""
        long = [key for key, chain in self.chains.items() if len(chain) > 1]
        if not long:
            return
        dice = self._world.random
        key = dice.choice(long)
        chain = self.chains[key]
        first = dice.randrange(len(chain) - 1)
        last = dice.randint(first + 1, len(chain) - 1)
        parts = [each.section for each in chain[first : last + 1]]
        epochs = tuple(dict.fromkeys(epoch for part in parts for epoch in part.epochs))
        merged = Section(key, parts[0].first, parts[-1].end, epochs)
        made = yield from self._written(self._path(batch, "merged"), [merged])
        self.chains[key] = (*chain[:first], *made, *chain[last + 1 :])


# --- a continuous task ----------------------------------------------------------------------------

_NEXT = b"next"


@dataclass(frozen=True, slots=True)
class _Counting:
    """A `KeyedFunction` that passes rows on, and whose state is the next offset of each split."""

    world: "World"

    @property
    def tables(self) -> Sequence[TableSpec]:
        """The next offset."""
        return (TableSpec(name="next", kind="value"),)

    @property
    def late_topic(self) -> str | None:
        """None is late."""
        return None

    def open(self, scope: OperatorScope) -> KeyedOperator:
        """See `KeyedFunction.open`."""
        return _Counted(self.world, scope)


class _Counted(KeyedOperator):
    def __init__(self, world: "World", scope: OperatorScope) -> None:
        self._world = world
        self._table = scope.tables.table(scope.numbers["next"])

    def apply(self, rows: KeyedRows) -> Iterator[KeyedRows]:
        offsets = rows.batch.column("offset").to_pylist()
        for split, offset in zip(rows.splits.tolist(), offsets, strict=True):
            due = int(self._table.get(split, [_NEXT])[0] or b"0")
            what = "a task's state is of another place than its records"
            self._world.require(offset == due, f"{what}: {split}, {offset} instead of {due}")
            self._table.put(split, [_NEXT], [b"%d" % (offset + 1)])
        yield rows

    def at_barrier(self, time: BarrierTime) -> Iterator[KeyedRows]:
        del time
        yield from ()

    def rollback(self) -> None:
        """It keeps no rows."""

    def due(self) -> Due:
        return Due()


def _functions(world: "World") -> tuple[ChainedFunction, ...]:
    return (
        ChainedFunction(name="key", operator_id="key", keyed=KeyBy(function=_offsets)),
        ChainedFunction(name="count", operator_id="count", keyed=_Counting(world)),
    )


def _offsets(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("offset")


class _TaskFiles(AttemptState):
    """Implements `sluice.runtime.keyed.keyed_task.EpochWriter`; and loads what it has written."""

    def __init__(self, world: "World", region: str, attempt_id: int, table: int) -> None:
        super().__init__(world)
        self._region, self._attempt_id = region, attempt_id
        self._table = table

    def close(self) -> None:
        """There are no threads."""

    def write_epoch(
        self, batch_id: int, changes: EpochChanges, declared: KeyedState, at: BarrierTime
    ) -> KeyedState:
        """See `EpochWriter.write_epoch`; a broken upload may be continued by nobody's task."""
        del declared, at  # as `state_of` has them
        batch = BatchKey(region=self._region, attempt_id=self._attempt_id, batch_id=batch_id)
        chains: dict[SplitKey, tuple[Named, ...]] = {}
        sections = []
        for split in changes.splits:
            chains[split.key] = self.chains.get(split.key, ())
            if split.restored is not None:
                chains |= chains_of(self._world, split.restored)
            if split.tables.plain:
                end = int(split.tables.plain[self._table][_NEXT] or b"0")
                epoch = batch.region, batch.attempt_id, batch.batch_id
                sections.append(Section(split.key, end_of(chains[split.key]), end, (epoch,)))
        self.chains = chains
        steps = self._end(batch, sections)
        try:
            while True:
                next(steps)
        except StopIteration as end_of_steps:
            found: KeyedState = end_of_steps.value
            return found
        except StorageError:
            self.orphan()
            raise

    def load(self, backend: StateBackend, states: Mapping[int, KeyedState]) -> None:
        """See `sluice.runtime.state.task_state.LoadSplits`."""
        for ordinal, state in states.items():
            (chain,) = chains_of(self._world, state).values()
            entries = {_NEXT: b"%d" % end_of(chain)}
            backend.apply(ordinal, TableChanges(plain={self._table: entries}))


def keyed_task(world: "World", restored: RegionRecord, attempt_id: int) -> KeyedTask:
    """The state of a continuous task, as its attempt begins.

    Raises:
        StorageError: a file is not there.
    """
    functions = _functions(world)
    table = numbered_tables(functions, ())[0].number
    files = _TaskFiles(world, restored.region, attempt_id, table)
    return KeyedTask(
        functions,
        source_id="source",
        state=TaskState(MemoryBackend(memory_bytes=64 << 20), load=files.load, overlay_mib=1),
        writer=files,
        restored=restored.keyed_state,
        splits=[split.at_end() for split in restored.splits],
    )
