"""Finds, verifies and deletes savepoints and full checkpoints."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sluice.runtime.checkpoint.checkpoint_slots import FULL, METADATA, SAVEPOINT_NAME, STATE
from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    UnsupportedFormatError,
)
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import CheckpointRecord
from sluice.runtime.savepoint.savepoint import (
    Savepoint,
    no_savepoint,
    open_savepoint,
    references_of,
)
from sluice.runtime.storage.divided_directory import SPARK
from sluice.runtime.storage.file_copies import Progress, wrong_files
from sluice.runtime.storage.file_system import FileSystem, close_quietly
from sluice.runtime.storage.file_system_opening import absolute_uri, open_file_system

__all__ = [
    "SAVEPOINTS",
    "FoundSavepoint",
    "dispose",
    "find_savepoints",
    "verify",
]

SAVEPOINTS = "savepoints"
"""The directory of savepoints in a checkpoint directory, if the user names no other."""

_SLOT = re.compile(r"chk-\d{12,}")
_TEMPORARY = re.compile(r"\._metadata\..+\.tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSavepoint:
    """One line of ``sluice savepoint list``.

    Attributes:
        uri: of its directory.
        record: None if there is none, or it cannot be read.
        problem: why, for people; "" if it can be restored.
    """

    uri: str
    record: CheckpointRecord | None
    problem: str = ""


def find_savepoints(uri: str, *, jvm: Any = None) -> list[FoundSavepoint]:  # noqa: ANN401 - py4j's view
    """The savepoints in a directory, or the savepoints and full checkpoints of a job's directory.

    A directory that is no complete savepoint is there with its problem.

    Raises:
        ConfigError: there is no such directory.
    """
    fs = open_file_system(uri, jvm)
    uri = absolute_uri(uri)
    if fs.exists(METADATA):
        return [_found(uri, jvm)]
    if not fs.exists(""):
        raise no_savepoint(fs)
    paths = [
        *fs.names("", SAVEPOINT_NAME),
        *(f"{SAVEPOINTS}/{name}" for name in fs.names(SAVEPOINTS, SAVEPOINT_NAME)),
        *(f"{FULL}/{name}" for name in _full_checkpoints(fs)),
    ]
    found = [_found(f"{uri}/{path}", jvm) for path in paths]
    return sorted(found, key=lambda each: each.record.checkpoint_id if each.record else -1)


def _full_checkpoints(fs: FileSystem) -> Iterator[str]:
    """Directories that retention has not begun to delete, and that hold a full checkpoint."""
    for name in fs.names(FULL, _SLOT):
        if fs.exists(f"{FULL}/{name}/{METADATA}"):
            yield name


def _found(uri: str, jvm: Any) -> FoundSavepoint:  # noqa: ANN401 - py4j's view
    try:
        opened = open_savepoint(uri, jvm=jvm)
        close_quietly(opened.fs)
        return FoundSavepoint(uri=uri, record=opened.record)
    except (ConfigError, DamagedCheckpointError, UnsupportedFormatError) as error:
        return FoundSavepoint(uri=uri, record=None, problem=str(error.args[0]))


def verify(savepoint: Savepoint, *, progress: Progress | None = None) -> None:
    """Read every file of a savepoint or full checkpoint, and compare it with the record.

    An ordinary checkpoint names no files of Spark: then this checks that they are there.

    Raises:
        DamagedCheckpointError: files are missing or damaged; the first ones are named.
        StorageError, AuthenticationError: the store does not answer, or refuses.
    """
    faults = wrong_files(savepoint.fs, references_of(savepoint.record), progress=progress)
    if faults:
        shown = {each.path: each.problem for each in faults[:10]}
        raise DamagedCheckpointError(
            "files of a savepoint are missing or damaged",
            {"uri": savepoint.uri, "files": len(faults), **shown},
            "Restore from another savepoint, or copy these files again from where they came.",
        )
    for region in savepoint.record.regions:
        savepoint.state_files(region.region)


def dispose(uri: str, *, incomplete: bool = False, jvm: Any = None) -> int:  # noqa: ANN401 - py4j's view
    """Delete a savepoint; returns the bytes that its record named.

    ``_metadata`` is deleted first: after that the directory is no savepoint. Files that do not
    belong to the savepoint stay, with the directory.

    Args:
        incomplete: delete what a writer, or an earlier `dispose`, has left. The caller knows that
            no job writes it at the moment.
    Raises:
        ConfigError: the directory is no savepoint, or not complete.
        StorageError, AuthenticationError: repeat the call, with ``incomplete`` if needed.
    """
    uri = absolute_uri(uri).removesuffix(f"/{METADATA}")
    parent, _, name = uri.rpartition("/")
    where = {"uri": uri}
    if _SLOT.fullmatch(name):
        raise ConfigError(
            "a checkpoint of a job cannot be disposed of",
            where,
            "Let its job delete it: Job(retained=N) keeps the newest N.",
        )
    fs = open_file_system(uri, jvm)
    bytes_named = 0
    if fs.exists(METADATA):
        bytes_named = _named_bytes(uri, jvm)
    elif not (SAVEPOINT_NAME.fullmatch(name) and fs.entries("")):
        raise no_savepoint(fs)
    elif not incomplete:
        raise ConfigError(
            "the directory holds no complete savepoint: _metadata is missing",
            where,
            "Add --incomplete to delete what a killed job has left; make sure that no job writes "
            "it now.",
        )
    failpoint("before-dispose-metadata")
    fs.delete(METADATA)
    fs.sync_directory("")
    failpoint("after-dispose-metadata")
    for entry in fs.entries(""):
        if entry.name in (SPARK, STATE) or _TEMPORARY.fullmatch(entry.name):
            fs.delete(entry.name)
    if not fs.entries(""):
        open_file_system(parent, jvm).delete(name)
    return bytes_named


def _named_bytes(uri: str, jvm: Any) -> int:  # noqa: ANN401 - py4j's view
    try:
        record = open_savepoint(uri, jvm=jvm).record
    except (DamagedCheckpointError, UnsupportedFormatError):
        if not SAVEPOINT_NAME.fullmatch(uri.rpartition("/")[2]):
            raise
        return 0  # a damaged savepoint may go, too
    return sum(each.length_bytes for each in references_of(record))
