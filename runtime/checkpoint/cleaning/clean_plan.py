"""Which files of a checkpoint directory nothing names any more. Pure.

Why a deletion never harms a restore, also while the job runs:

- A record that can be read protects all that it names. A damaged one protects all that it could
  name. The files are listed before the records are read. So a later record can name a candidate
  only if it is of a running attempt, a restore or a copy:
- An attempt of a region has a number of at least the first record of its run. Directories of such
  numbers stay, and so do files of keyed state. A later run has larger numbers. An attempt that
  outlived its run, or still may, is in a file of the newest run that has one
  (`ResumableAttempts`): files from its number on stay, too.
- A restore names its own copy in checkpoint 0, and a directory with checkpoint 0 never gets another
  one. So a copy that checkpoint 0 does not name stays unused.
- A savepoint or full checkpoint without a record may be under way. It stays until nothing in it has
  changed for the age limit, an hour at least. Then the cleaner closes it: an aborted record takes
  the place of its own, so that a writer that was paused cannot complete it.
- A full checkpoint that is under way names files of its own directory and of the newest one. That
  one keeps its record until the other has its own. So no file that either names is deleted.
"""

import enum
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from sluice.runtime.checkpoint.checkpoint_slots import (
    FULL,
    METADATA,
    RETIRED,
    SAVEPOINT_NAME,
    STATE,
)
from sluice.runtime.checkpoint.retained_states import left_by_attempts_before
from sluice.runtime.model.checkpoint_record import CheckpointRecord, StateSnapshot, Verdict
from sluice.runtime.storage.divided_directory import SPARK

__all__ = [
    "TRASH",
    "FoundPath",
    "KnownRecords",
    "Leftover",
    "LeftoverKind",
    "half_written_savepoints",
    "leftovers",
]

TRASH = re.compile(r"\.sluice-trash-[0-9a-f]{32}")
"""Names of what a killed `LocalFileSystem.delete` leaves."""

_ATTEMPT = re.compile(r"(?:state-)?(\d+)")
_RESTORED = re.compile(r"restored-.+")
_SLOT = re.compile(r"chk-(\d{12,})")
_TEMPORARY = re.compile(r"\..+\.tmp(?:\.crc)?|\.sluice-(?:probe|condition)-[0-9a-f]{32}")
_HOUR_MS = 3_600_000  # nothing half-made is still being written after this without any change


class LeftoverKind(enum.Enum):
    """Why a file or directory is left over; the value is for people."""

    ATTEMPT = "Spark files of earlier attempts"
    STATE_FILE = "files of keyed state of earlier attempts"
    RESTORED = "unused copies of a restore"
    SAVEPOINT = "half-written savepoints"
    CLOSED = "closed savepoints"
    FULL = "half-written full checkpoints"
    FULL_FILE = "files of deleted full checkpoints"
    SLOT = "slots without a record"
    TEMPORARY = "temporary files"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPath:
    """A file or directory that a listing has; see `sluice.runtime.storage.file_system.Entry`."""

    path: str
    is_directory: bool
    length_bytes: int
    changed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A file or directory that can be deleted whole.

    Attributes:
        kind: why.
        path: relative to the directory that was listed.
        files, length_bytes: of all files in it.
    """

    kind: LeftoverKind
    path: str
    files: int
    length_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRecords:
    """The records of a checkpoint directory; None stands for a damaged one.

    Attributes:
        slots: by checkpoint id; at least one can be read.
        full: those of full checkpoints, by checkpoint id; without the ones that have none.
        resumable: attempts of earlier runs that may go on, by region.
    """

    slots: Mapping[int, CheckpointRecord | None]
    full: Mapping[int, CheckpointRecord | None]
    resumable: Mapping[str, int] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The last checkpoint id."""
        return max(self.slots)

    @property
    def job_uid(self) -> str:
        """Of the job."""
        return next(record.job_uid for record in self.slots.values() if record is not None)

    @property
    def run(self) -> int:
        """The first checkpoint id of the newest run, which has the last record of all. A start that
        lost a race may have left its fencing record between, in a retired slot."""
        last = self.slots[self.last]
        own = last.leader_session_id if last else ""
        return min(
            (i for i, r in self.slots.items() if r and r.leader_session_id == own), default=0
        )

    @property
    def first_attempt(self) -> int:
        """No attempt with a smaller number runs."""
        return min([self.run, *self.resumable.values()])


def leftovers(
    listing: Sequence[FoundPath], records: KnownRecords, *, now_ms: int, older_than_ms: int
) -> list[Leftover]:
    """The leftovers of a checkpoint directory, by path.

    Args:
        listing: all files and directories below ``spark``, ``state`` and ``full`` and in the slots,
            and the names beside them; made before ``records`` were read.
        records: of this directory.
        now_ms: wall clock.
        older_than_ms: age limit.
    """
    tree = _Tree(listing)
    limit_ms = now_ms - older_than_ms
    abandoned_ms = now_ms - max(older_than_ms, _HOUR_MS)
    found = [
        *_of_spark(tree, records, limit_ms, abandoned_ms),
        *_of_keyed_state(tree, records, abandoned_ms),
        *_of_full(tree, records, abandoned_ms),
        *_of_slots(tree, records, abandoned_ms),
    ]
    whole = {each.path for each in found}
    found += _temporaries(tree, records, abandoned_ms, whole)
    return sorted(found, key=lambda each: each.path)


def half_written_savepoints(
    listing: Sequence[FoundPath],
    closed: Collection[str],
    *,
    job_uid: str,
    now_ms: int,
    older_than_ms: int,
) -> list[Leftover]:
    """The job's directories of a parent of savepoints that are abandoned.

    Args:
        listing: of the parent.
        closed: savepoints that an earlier call has closed.
    """
    tree = _Tree(listing)
    abandoned_ms = now_ms - max(older_than_ms, _HOUR_MS)
    return [
        tree.leftover(LeftoverKind.CLOSED if path in closed else LeftoverKind.SAVEPOINT, path)
        for path in tree.children("")
        if SAVEPOINT_NAME.fullmatch(path)
        and path.startswith(f"savepoint-{job_uid[:8]}-")
        and (path in closed or not tree.has(f"{path}/{METADATA}"))
        and tree.changed_ms(path) <= abandoned_ms
    ]


class _Tree:
    """A listing, with sums for each directory."""

    def __init__(self, listing: Iterable[FoundPath]) -> None:
        self._found = {each.path: each for each in listing}
        self._children: dict[str, list[str]] = {}
        self._sums: dict[str, tuple[int, int, int]] = {}
        for each in self._found.values():
            self._children.setdefault(_parent(each.path), []).append(each.path)
            files = 0 if each.is_directory else 1
            for path in (each.path, *_ancestors(each.path)):
                count, length, changed = self._sums.get(path, (0, 0, 0))
                self._sums[path] = (
                    count + files,
                    length + files * each.length_bytes,
                    max(changed, each.changed_ms),
                )

    def has(self, path: str) -> bool:
        return path in self._found

    def children(self, path: str) -> list[str]:
        return sorted(self._children.get(path, ()))

    def paths(self) -> list[str]:
        """All of them, directories before their content."""
        return sorted(self._found)

    def files(self, path: str) -> list[str]:
        """All files below a directory."""
        below = (each for each in self._found.values() if each.path.startswith(f"{path}/"))
        return [each.path for each in below if not each.is_directory]

    def changed_ms(self, path: str) -> int:
        """The newest change of anything in a directory, or of a file."""
        return self._sums[path][2]

    def leftover(self, kind: LeftoverKind, path: str) -> Leftover:
        files, length_bytes, _ = self._sums[path]
        return Leftover(kind=kind, path=path, files=files, length_bytes=length_bytes)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _ancestors(path: str) -> Iterator[str]:
    while path := _parent(path):
        yield path


def _states(records: Iterable[CheckpointRecord | None]) -> Iterator[StateSnapshot]:
    for record in records:
        for region in record.regions if record is not None else ():
            if region.state is not None:
                yield region.state


def _named(records: KnownRecords) -> frozenset[str]:
    """Spark's directories and the files that a slot names."""
    found: set[str] = set()
    for state in _states(records.slots.values()):
        found.add(str(PurePosixPath(state.location).parent))
        found |= {file.path for file in state.files}
    return frozenset(found)


def _of_spark(
    tree: _Tree, records: KnownRecords, limit_ms: int, abandoned_ms: int
) -> Iterator[Leftover]:
    if None in records.slots.values():
        return  # it may name any of them
    named = _named(records)
    kept = named | {each for path in named for each in _ancestors(path)}
    for region in tree.children(SPARK):
        for path in tree.children(region):
            name = _name(path)
            attempt = _ATTEMPT.fullmatch(name)
            if path in kept:
                continue
            if (
                attempt
                and int(attempt[1]) < records.first_attempt
                and tree.changed_ms(path) <= limit_ms
            ):
                yield tree.leftover(LeftoverKind.ATTEMPT, path)
            elif _RESTORED.fullmatch(name) and tree.changed_ms(path) <= abandoned_ms:
                yield tree.leftover(LeftoverKind.RESTORED, path)


def _of_keyed_state(tree: _Tree, records: KnownRecords, abandoned_ms: int) -> Iterator[Leftover]:
    if None in records.slots.values():
        return
    named = {
        each.path for record in records.slots.values() if record for each in record.keyed_files
    }
    for path in tree.files(STATE):
        is_left = left_by_attempts_before(path, records.first_attempt) and path not in named
        if is_left and tree.changed_ms(path) <= abandoned_ms:
            yield tree.leftover(LeftoverKind.STATE_FILE, path)


def _of_full(tree: _Tree, records: KnownRecords, abandoned_ms: int) -> Iterator[Leftover]:
    decided = [r for r in records.full.values() if r and r.verdict is Verdict.DECIDED]
    states = list(_states(decided))
    if None in records.full.values() or not all(state.files for state in states):
        return  # it may name any file
    files = [*(each.files for each in states), *(each.keyed_files for each in decided)]
    named = {f"{FULL}/{file.path}" for some in files for file in some}
    for path in tree.children(FULL):
        slot = _SLOT.fullmatch(path.removeprefix(f"{FULL}/"))
        if slot is None:
            continue
        record = records.full.get(int(slot[1]))
        is_retired = tree.has(f"{path}/{RETIRED}")
        if is_retired if record is None else record.verdict is Verdict.ABORTED:
            copied = [*tree.files(f"{path}/{SPARK}"), *tree.files(f"{path}/{STATE}")]
            unnamed = [each for each in copied if each not in named]
            yield from (tree.leftover(LeftoverKind.FULL_FILE, each) for each in unnamed)
            continue
        has_record = record is not None or tree.has(f"{path}/{METADATA}")
        if not has_record and tree.changed_ms(path) <= abandoned_ms:
            yield tree.leftover(LeftoverKind.FULL, path)


def _of_slots(tree: _Tree, records: KnownRecords, abandoned_ms: int) -> Iterator[Leftover]:
    """Slots below the last record without one: a killed writer found them retired."""
    if None in records.slots.values():
        return
    named = _named(records)
    for path in tree.children(""):
        match = _SLOT.fullmatch(path)
        if (
            match
            and int(match[1]) < records.last
            and not tree.has(f"{path}/{METADATA}")
            and tree.changed_ms(path) <= abandoned_ms
            and not any(each.startswith(f"{path}/") for each in named)
        ):
            yield tree.leftover(LeftoverKind.SLOT, path)


def _temporaries(
    tree: _Tree, records: KnownRecords, abandoned_ms: int, whole: set[str]
) -> Iterator[Leftover]:
    """Half-made files, but for those in a slot above the last record: it may be published yet."""
    for path in tree.paths():
        slot = _SLOT.fullmatch(path.partition("/")[0])
        is_open = slot is not None and int(slot[1]) > records.last
        if is_open or not _is_temporary(path) or not whole.isdisjoint((path, *_ancestors(path))):
            continue
        if TRASH.fullmatch(_name(path)) or tree.changed_ms(path) <= abandoned_ms:
            whole.add(path)
            yield tree.leftover(LeftoverKind.TEMPORARY, path)


def _is_temporary(path: str) -> bool:
    name = _name(path)
    return _TEMPORARY.fullmatch(name) is not None or TRASH.fullmatch(name) is not None


def _name(path: str) -> str:
    return path.rpartition("/")[2]
