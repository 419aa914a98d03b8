"""Lists a checkpoint directory, reads its records, and deletes what nothing names."""

import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sluice.runtime.checkpoint.checkpoint_slots import (
    FULL,
    METADATA,
    RETIRED,
    SAVEPOINT_NAME,
    STATE,
    read_slots,
)
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.cleaning.clean_plan import (
    TRASH,
    FoundPath,
    KnownRecords,
    Leftover,
    LeftoverKind,
)
from sluice.runtime.checkpoint.format.metadata import decode, encode
from sluice.runtime.checkpoint.resumable_attempts import ResumableAttempts
from sluice.runtime.errors import DamagedCheckpointError, StreamError
from sluice.runtime.model.checkpoint_record import CheckpointKind, CheckpointRecord, Verdict
from sluice.runtime.storage.divided_directory import SPARK
from sluice.runtime.storage.file_system import FileSystem

__all__ = [
    "CLEAN_FAILPOINTS",
    "Surveyed",
    "SurveyedSavepoints",
    "close_copy",
    "deletion_steps",
    "survey_directory",
    "survey_savepoints",
]

CLEAN_FAILPOINTS = ("before-clean", "after-clean")
"""Before and after each deletion."""

_SLOT = re.compile(r"chk-\d{12,}")
_CLOSED_FIRST = {
    LeftoverKind.SAVEPOINT: CheckpointKind.SAVEPOINT,
    LeftoverKind.FULL: CheckpointKind.FULL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """A checkpoint directory.

    Attributes:
        listing: made before the records were read.
        records: of its slots and full checkpoints.
        damaged: why records cannot be read.
    """

    listing: tuple[FoundPath, ...]
    records: KnownRecords
    damaged: tuple[str, ...]


def survey_directory(store: CheckpointStore) -> Surveyed:
    """List a checkpoint directory, then read its records.

    Raises:
        UnsupportedFormatError: a record is of a later format, so it may name anything.
        DamagedCheckpointError: no record can be read.
    """
    fs = store.fs
    regions = (f"{SPARK}/{entry.name}" for entry in fs.entries(SPARK))
    trash = [*_trash(fs, ""), *_trash(fs, FULL), *(t for each in regions for t in _trash(fs, each))]
    below = (SPARK, STATE, FULL, *fs.names("", _SLOT), *trash)
    listing = [*map(_directory, trash), *_names_in(fs, "")]
    listing += [each for path in below for each in _listed(fs, path)]
    slots = read_slots(store)
    full = _full_records(fs)
    damaged = [each for each in (*slots.values(), *full.values()) if isinstance(each, StreamError)]
    for each in damaged:
        if not isinstance(each, DamagedCheckpointError):
            raise each
    records = KnownRecords(
        slots={each: _readable(found) for each, found in slots.items()},
        full={int(name[4:]): _readable(found) for name, found in full.items()},
        resumable=ResumableAttempts(fs).running(),
    )
    if not any(records.slots.values()):
        raise damaged[0]
    return Surveyed(listing=tuple(listing), records=records, damaged=tuple(map(str, damaged)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedSavepoints:
    """A directory of savepoints.

    Attributes:
        listing: made before the records were read.
        closed: names of savepoints that were given up.
        damaged: why records cannot be read.
    """

    listing: tuple[FoundPath, ...]
    closed: frozenset[str]
    damaged: tuple[str, ...]


def survey_savepoints(fs: FileSystem) -> SurveyedSavepoints:
    """List a directory of savepoints, then read their records.

    Raises:
        UnsupportedFormatError: a record is of a later format.
    """
    trash = _trash(fs, "")
    listing = [*map(_directory, trash), *_names_in(fs, "")]
    for name in (*trash, *fs.names("", SAVEPOINT_NAME)):
        listing += _names_in(fs, name) if fs.exists(f"{name}/{METADATA}") else _listed(fs, name)
    found = _read_records(fs, "", SAVEPOINT_NAME)
    return SurveyedSavepoints(
        listing=tuple(listing),
        closed=frozenset(
            name
            for name, each in found.items()
            if isinstance(each, CheckpointRecord) and each.verdict is Verdict.ABORTED
        ),
        damaged=tuple(str(each) for each in found.values() if isinstance(each, StreamError)),
    )


def deletion_steps(
    fs: FileSystem, found: Iterable[Leftover], records: KnownRecords
) -> Iterator[str]:
    """Delete files and directories, each in one step; yields the failpoints.

    Any prefix of these steps leaves all that a record names.

    Args:
        records: of the job.
    """
    for each in found:
        yield CLEAN_FAILPOINTS[0]
        if each.kind in _CLOSED_FIRST:
            _close(fs, each, records)
        elif each.kind is not LeftoverKind.SLOT or not fs.exists(f"{each.path}/{METADATA}"):
            fs.delete(each.path)
        yield CLEAN_FAILPOINTS[1]


def close_copy(
    fs: FileSystem, directory: str, checkpoint_id: int, kind: CheckpointKind, job: CheckpointRecord
) -> bool:
    """Put an aborted record into the directory of a copy that was never completed: a writer that is
    paused can then no longer publish. False: the directory has a record.

    Args:
        job: any record of the job.
    """
    closing = replace(
        job,
        checkpoint_id=checkpoint_id,
        kind=kind,
        verdict=Verdict.ABORTED,
        reason="its copy was not completed",
        regions=(),
        assignment=None,
    )
    temporary = f"{directory}/.{METADATA}.{uuid.uuid4().hex}.tmp"
    data, path = encode(closing), f"{directory}/{METADATA}"
    fs.stage(temporary, data)
    if fs.place(temporary, path, data) or fs.read(path) == data:
        return True
    fs.delete(temporary)
    return False


def _close(fs: FileSystem, found: Leftover, records: KnownRecords) -> None:
    """Close a directory, and delete the rest of it."""
    newest = max(filter(None, records.slots.values()), key=lambda record: record.checkpoint_id)
    name = found.path.rpartition("/")[2]
    number = int(name.split("-")[-2 if found.kind is LeftoverKind.SAVEPOINT else -1])
    if close_copy(fs, found.path, number, _CLOSED_FIRST[found.kind], newest):
        for entry in fs.entries(found.path):
            if entry.name != METADATA:
                fs.delete(f"{found.path}/{entry.name}")


def _readable(found: CheckpointRecord | StreamError) -> CheckpointRecord | None:
    return found if isinstance(found, CheckpointRecord) else None


def _full_records(fs: FileSystem) -> dict[str, CheckpointRecord | StreamError]:
    """Those of full checkpoints at one moment: the job writes a new one before it deletes others.
    One that retention deletes needs none."""
    found: dict[str, CheckpointRecord | StreamError] | None = None
    while True:
        before, found = found, _read_records(fs, FULL, _SLOT)
        if found.keys() == (before or {}).keys():
            is_retired = {name: fs.exists(f"{FULL}/{name}/{RETIRED}") for name in found}
            return {
                name: each
                for name, each in found.items()
                if isinstance(each, CheckpointRecord) or not is_retired[name]
            }


def _read_records(
    fs: FileSystem, directory: str, names: re.Pattern[str]
) -> dict[str, CheckpointRecord | StreamError]:
    """The records of the directories of this name, or why they are damaged."""
    found: dict[str, CheckpointRecord | StreamError] = {}
    for name in fs.names(directory, names):
        path = f"{directory}/{name}/{METADATA}".lstrip("/")
        data = fs.read(path)
        if data is not None:
            try:
                found[name] = decode(data, where={"uri": fs.uri, "path": path})
            except DamagedCheckpointError as error:
                found[name] = error
    return found


def _trash(fs: FileSystem, directory: str) -> list[str]:
    return [f"{directory}/{name}".lstrip("/") for name in fs.names(directory, TRASH)]


def _directory(path: str) -> FoundPath:
    return FoundPath(path=path, is_directory=True, length_bytes=0, changed_ms=0)


def _names_in(fs: FileSystem, directory: str) -> Iterator[FoundPath]:
    for entry in fs.entries(directory):
        yield FoundPath(
            path=f"{directory}/{entry.name}".lstrip("/"),
            is_directory=entry.is_directory,
            length_bytes=entry.length_bytes,
            changed_ms=entry.changed_ms,
        )


def _listed(fs: FileSystem, directory: str) -> Iterator[FoundPath]:
    """Everything below a directory."""
    for found in _names_in(fs, directory):
        yield found
        if found.is_directory:
            yield from _listed(fs, found.path)
