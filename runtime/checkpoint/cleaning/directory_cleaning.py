"""Lists a checkpoint directory, reads its records, and deletes what nothing names."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sluice.runtime.checkpoint.checkpoint_slots import METADATA, read_slots, slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.cleaning.clean_plan import (
    FULL,
    SAVEPOINT_NAME,
    SPARK,
    TRASH,
    FoundPath,
    KnownRecords,
    Leftover,
    LeftoverKind,
)
from sluice.runtime.checkpoint.format.metadata import decode
from sluice.runtime.errors import DamagedCheckpointError, StreamError
from sluice.runtime.model.checkpoint_record import CheckpointRecord
from sluice.runtime.storage.file_system import FileSystem

__all__ = [
    "CLEAN_FAILPOINTS",
    "Surveyed",
    "deletion_steps",
    "survey_directory",
    "survey_savepoints",
]

CLEAN_FAILPOINTS = ("before-clean", "after-clean")
"""Before and after each deletion."""

_SLOT = re.compile(r"chk-\d{12,}")
_OF_FULL = (LeftoverKind.FULL, LeftoverKind.FULL_FILE)
_WITHOUT_RECORD = (LeftoverKind.SAVEPOINT, LeftoverKind.FULL, LeftoverKind.SLOT)


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
    below = (SPARK, FULL, *fs.names("", _SLOT), *trash)
    listing = [*map(_directory, trash), *_names_in(fs, "")]
    listing += [each for path in below for each in _listed(fs, path)]
    slots = read_slots(store)
    full = _read_records(fs, FULL, _SLOT)
    damaged = [each for each in (*slots.values(), *full.values()) if isinstance(each, StreamError)]
    for each in damaged:
        if not isinstance(each, DamagedCheckpointError):
            raise each
    records = KnownRecords(
        slots={each: _readable(found) for each, found in slots.items()},
        full={_id_of(name): _readable(found) for name, found in full.items()},
    )
    if not any(records.slots.values()):
        raise damaged[0]
    return Surveyed(listing=tuple(listing), records=records, damaged=tuple(map(str, damaged)))


def survey_savepoints(fs: FileSystem) -> tuple[list[FoundPath], list[str]]:
    """List a directory of savepoints, and tell which of them are damaged.

    Raises:
        UnsupportedFormatError: a record is of a later format.
    """
    trash = _trash(fs, "")
    listing = [*map(_directory, trash), *_names_in(fs, "")]
    for name in (*trash, *fs.names("", SAVEPOINT_NAME)):
        listing += _names_in(fs, name) if fs.exists(f"{name}/{METADATA}") else _listed(fs, name)
    found = _read_records(fs, "", SAVEPOINT_NAME)
    return listing, [str(each) for each in found.values() if isinstance(each, StreamError)]


def deletion_steps(
    fs: FileSystem, found: Iterable[Leftover], *, last: int | None = None
) -> Iterator[str]:
    """Delete files and directories, each in one step; yields the failpoints.

    Any prefix of these steps leaves all that a record names. What got a record after the listing
    stays, and all of ``full`` does if the job has begun another checkpoint.

    Args:
        last: the last checkpoint id of the listing; None in a directory of savepoints.
    """
    for each in found:
        yield CLEAN_FAILPOINTS[0]
        if each.kind in _OF_FULL and max(fs.names("", _SLOT), key=_id_of) != slot_name(last or 0):
            continue
        if each.kind not in _WITHOUT_RECORD or not fs.exists(f"{each.path}/{METADATA}"):
            fs.delete(each.path)
        yield CLEAN_FAILPOINTS[1]


def _id_of(slot: str) -> int:
    return int(slot[4:])


def _readable(found: CheckpointRecord | StreamError) -> CheckpointRecord | None:
    return found if isinstance(found, CheckpointRecord) else None


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
