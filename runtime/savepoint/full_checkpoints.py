"""Full checkpoints: self-contained as a savepoint, incremental in cost, retained by count.

::

    full/chk-000000000042/_began       the copy has begun
                          _metadata    the record: written last, its paths relative to ``full/``
                          spark/…      files that were new; later full checkpoints name them too
                          state/…      the same, of keyed state
                          _retired     no full checkpoint any more; some of its files may be named

A record names the files of earlier directories that have not changed since. So only files that are
new are copied, and each directory is written by one process, once.
Retention deletes what no record names. An older run that was paused in a copy may have planned to
name a file that a newer run deletes. The newer run therefore closes its directory first: an aborted
record takes the place of ``_metadata``, as in `fence-first`.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sluice.runtime.checkpoint.checkpoint_slots import FULL, METADATA, RETIRED, STATE, slot_name
from sluice.runtime.checkpoint.cleaning.directory_cleaning import close_copy
from sluice.runtime.checkpoint.format.metadata import decode
from sluice.runtime.errors import DamagedCheckpointError, UnsupportedFormatError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    Verdict,
)
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.savepoint.savepoint import references_of
from sluice.runtime.savepoint.savepoint_writer import (
    Written,
    files_by_region,
    paths_of,
    publish_copies,
    self_contained,
)
from sluice.runtime.savepoint.spark_files import is_shared
from sluice.runtime.storage.divided_directory import SPARK
from sluice.runtime.storage.file_copies import FileCopy, Progress, copy_files, in_parallel
from sluice.runtime.storage.file_system import FileSystem, files_below

__all__ = ["retire_full_checkpoints", "write_full_checkpoint"]

log = logging.getLogger(__name__)

_BEGAN = "_began"
_SLOT = re.compile(r"chk-\d{12,}")


def write_full_checkpoint(
    checkpoints: FileSystem,
    record: CheckpointRecord,
    *,
    progress: Progress | None = None,
    guard: Callable[[], None] = lambda: None,
) -> Written:
    """Write the full checkpoint of a decided and committed checkpoint.

    One at a time in a job, and not during `retire_full_checkpoints`; otherwise as
    `write_savepoint`, also in what it raises.

    Raises:
        FencedError: a newer run of the job has begun to write full checkpoints.
    """
    directory = f"{FULL}/{slot_name(record.checkpoint_id)}"
    paths = files_by_region(checkpoints, record)
    checkpoints.replace(f"{directory}/{_BEGAN}", record.leader_session_id.encode())
    known = _present(checkpoints, _newest_files(checkpoints))
    own = slot_name(record.checkpoint_id)
    copies = [
        FileCopy(path, f"{FULL}/{own}/{path}", is_shared(path))
        for path in paths_of(record, paths)
        if path not in known
    ]
    failpoint("before-savepoint-copy")
    copied = copy_files(checkpoints, checkpoints, copies, progress=progress)
    failpoint("after-savepoint-copy")
    for new in copied:
        path = new.path.removeprefix(f"{FULL}/")
        known[_relative(path)] = replace(new, path=path)
    made = self_contained(record, paths, known, kind=CheckpointKind.FULL)
    guard()
    return publish_copies(
        checkpoints, directory, made, copied_bytes=sum(each.length_bytes for each in copied)
    )


def retire_full_checkpoints(
    checkpoints: FileSystem, newest: CheckpointRecord, *, retained: int
) -> list[int]:
    """Delete all but the newest full checkpoints; returns the ids that are no longer ones.

    Args:
        newest: the full checkpoint that this run has just written.
        retained: how many stay; >= 1.
    Raises:
        StorageError, AuthenticationError: some files were not deleted; the next call tries again.
    """
    slots = _slots(checkpoints)
    if max(slots, default=-1) > newest.checkpoint_id:
        return []  # a newer run writes them, and retains what it needs
    standing = [each for each, found in slots.items() if found.is_decided and not found.is_retired]
    expired = standing[: -max(retained, 1)]
    half_retired = [each for each, found in slots.items() if found.record and found.is_retired]
    for checkpoint_id in [*half_retired, *expired]:
        directory = f"{FULL}/{slot_name(checkpoint_id)}"
        checkpoints.replace(f"{directory}/{RETIRED}", b"")
        checkpoints.delete(f"{directory}/{METADATA}")
        checkpoints.sync_directory(directory)
    for checkpoint_id, found in _slots(checkpoints).items():
        if found.is_unfinished and checkpoint_id < newest.checkpoint_id:
            directory = f"{FULL}/{slot_name(checkpoint_id)}"
            close_copy(checkpoints, directory, checkpoint_id, CheckpointKind.FULL, newest)
    _delete_unnamed(checkpoints, _slots(checkpoints))
    return expired


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """A directory of a full checkpoint.

    Attributes:
        record: its content; None without ``_metadata``.
        is_unreadable: ``_metadata`` is there and cannot be read.
        is_retired: retention has begun to delete it.
    """

    record: CheckpointRecord | None
    is_unreadable: bool = False
    is_retired: bool = False

    @property
    def is_decided(self) -> bool:
        return self.record is not None and self.record.verdict is Verdict.DECIDED

    @property
    def is_unfinished(self) -> bool:
        return self.record is None and not self.is_unreadable and not self.is_retired


def _slots(fs: FileSystem) -> dict[int, _Slot]:
    names = sorted(fs.names(FULL, _SLOT))
    return {int(name[4:]): _slot(fs, f"{FULL}/{name}") for name in names}


def _slot(fs: FileSystem, directory: str) -> _Slot:
    is_retired = fs.exists(f"{directory}/{RETIRED}")
    path = f"{directory}/{METADATA}"
    data = fs.read(path)
    try:
        record = None if data is None else decode(data, where={"uri": fs.uri, "path": path})
    except (DamagedCheckpointError, UnsupportedFormatError) as error:
        log.warning("full checkpoint cannot be read: path=%s error=%s", path, error)
        return _Slot(record=None, is_unreadable=True, is_retired=is_retired)
    return _Slot(record=record, is_retired=is_retired)


def _newest_files(fs: FileSystem) -> dict[str, FileReference]:
    """The shared files of the newest full checkpoint, by path in a checkpoint directory.

    Only the newest: retention of a run that was paused may still delete those of older ones.
    """
    for name in sorted(fs.names(FULL, _SLOT), reverse=True):
        found = _slot(fs, f"{FULL}/{name}")
        if found.is_unreadable or found.is_retired:
            return {}
        if found.is_decided and found.record is not None:
            named = {_relative(each.path): each for each in references_of(found.record)}
            return {path: each for path, each in named.items() if is_shared(path)}
    return {}


def _present(fs: FileSystem, files: Mapping[str, FileReference]) -> dict[str, FileReference]:
    """Those whose file is there with its length."""
    lengths = in_parallel(lambda each: fs.length_bytes(f"{FULL}/{each.path}"), files.values())
    return {
        path: each
        for (path, each), length in zip(files.items(), lengths, strict=True)
        if length == each.length_bytes
    }


def _delete_unnamed(fs: FileSystem, slots: Mapping[int, _Slot]) -> None:
    if any(found.is_unreadable and not found.is_retired for found in slots.values()):
        return  # it may name any file
    named = {
        each.path
        for found in slots.values()
        if found.record is not None and found.is_decided
        for each in references_of(found.record)
    }
    for checkpoint_id, found in slots.items():
        if found.is_decided or found.is_unfinished:
            continue
        name = slot_name(checkpoint_id)
        kept = {f"{FULL}/{path}" for path in named if path.startswith(f"{name}/")}
        if not kept and found.is_retired:
            fs.delete(f"{FULL}/{name}")
            continue
        for below in (f"{FULL}/{name}/{SPARK}", f"{FULL}/{name}/{STATE}"):
            if not kept:
                fs.delete(below)  # the aborted record of a closed one stays, as a fencing record
                continue
            unnamed = [path for path in files_below(fs, below) if path not in kept]
            for path in unnamed:
                fs.delete(path)


def _relative(path: str) -> str:
    """``chk-000000000042/spark/…`` as ``spark/…``."""
    return path.partition("/")[2]
