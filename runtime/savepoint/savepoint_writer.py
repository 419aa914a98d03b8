"""Writes a savepoint: copies files of state, then publishes the record that names them.

The checkpoint is decided and committed before. Until ``_metadata`` is there, the directory is no
savepoint; after that it is whole. A kill in between leaves files that nothing names.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sluice.runtime.checkpoint.checkpoint_slots import METADATA
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.format.metadata import encode
from sluice.runtime.checkpoint.slot_publishing import SlotPublication
from sluice.runtime.contracts import Clock, PublishOutcome
from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    FencedError,
    StorageError,
    StreamError,
)
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    RegionStatus,
    Verdict,
)
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.savepoint.savepoint import references_of
from sluice.runtime.savepoint.spark_files import files_of_batch, is_shared, location_of
from sluice.runtime.storage.file_copies import (
    FileCopy,
    Progress,
    copy_files,
    in_parallel,
)
from sluice.runtime.storage.file_system import FileSystem

__all__ = [
    "SAVEPOINT_FAILPOINTS",
    "Written",
    "abandoned_on_error",
    "files_by_region",
    "paths_of",
    "publish_copies",
    "savepoint_name",
    "self_contained",
    "write_savepoint",
]

log = logging.getLogger(__name__)

SAVEPOINT_FAILPOINTS = (
    "before-savepoint-copy",
    "after-savepoint-copy",
    "before-savepoint-metadata",
    "after-savepoint-metadata",
)
"""Every point of a savepoint or full checkpoint where a test may kill the process. The points of
`SlotPublication` are between the last two."""

_PUBLISH_S = 60.0
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A savepoint or full checkpoint that is whole.

    Attributes:
        uri: of its directory.
        record: the content of its ``_metadata``.
        files, bytes: how much the record names.
        copied_bytes: how much of it was read and copied, or linked.
    """

    uri: str
    record: CheckpointRecord
    files: int
    bytes: int
    copied_bytes: int

    @property
    def suspended(self) -> list[str]:
        """Regions that stand there with an older snapshot, because they are suspended."""
        return [r.region for r in self.record.regions if r.status is RegionStatus.SKIPPED]


def savepoint_name(record: CheckpointRecord, unique: str) -> str:
    """The name of a savepoint's directory.

    Args:
        unique: six random hexadecimal digits.
    """
    return f"savepoint-{record.job_uid[:8]}-{record.checkpoint_id}-{unique}"


def write_savepoint(
    checkpoints: FileSystem,
    record: CheckpointRecord,
    parent: FileSystem,
    *,
    name: str,
    progress: Progress | None = None,
    guard: Callable[[], None] = lambda: None,
    clock: Clock = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Written:
    """Write the savepoint of a checkpoint. Any thread of the driver; minutes for gigabytes.

    The caller sees to it that Spark deletes none of the batches in ``record`` meanwhile, and that
    it has logged their ends. A batch without its end in the log is saved to run again.

    Args:
        checkpoints: rooted at the job's checkpoint directory.
        record: decided and committed.
        parent: rooted at the directory in which the savepoint gets a directory of its own; of any
            kind.
        name: of that directory: `savepoint_name`.
        guard: called last before the publication; it raises if the caller may not publish.
    Raises:
        ConfigError: the checkpoint is not decided, or not committed.
        DamagedCheckpointError: a file of Spark is missing or damaged.
        StorageError, AuthenticationError: nothing was published, unless the error says that it is
            unknown.
    """
    paths = files_by_region(checkpoints, record)
    copies = [FileCopy(path, f"{name}/{path}", is_shared(path)) for path in paths_of(record, paths)]
    with abandoned_on_error(parent, name):
        found = _copied(checkpoints, parent, copies, progress)
        known = {each.path: each for each in _without(f"{name}/", found)}
        made = self_contained(record, paths, known, kind=CheckpointKind.SAVEPOINT)
        _require_present(parent, found)
        guard()
    return publish_copies(parent, name, made, copied_bytes=_bytes(found), clock=clock, pause=pause)


def paths_of(record: CheckpointRecord, of_spark: Mapping[str, Iterable[str]]) -> list[str]:
    """All files of state that a copy of a record needs; pure.

    Args:
        of_spark: see `files_by_region`.
    """
    keyed = (each.path for each in record.keyed_files)
    return [*(path for paths in of_spark.values() for path in paths), *keyed]


def files_by_region(checkpoints: FileSystem, record: CheckpointRecord) -> dict[str, list[str]]:
    """Spark's files of each region with state. Raises as `write_savepoint`."""
    where: dict[str, object] = {"uri": checkpoints.uri, "checkpoint_id": record.checkpoint_id}
    if record.verdict is not Verdict.DECIDED:
        raise ConfigError(
            "a savepoint needs a decided checkpoint", where, "Choose a decided checkpoint."
        )
    store = CheckpointStore(checkpoints)
    is_open = record.committables and not store.is_committed(record.checkpoint_id)
    # Retention may have deleted its slot meanwhile, and only does so after the commit.
    if is_open and store.read(record.checkpoint_id) is not None:
        raise ConfigError(
            "a savepoint needs a committed checkpoint",
            where,
            "Wait until the checkpoint is committed, or start the job: its start commits it.",
        )
    return {
        region.region: files_of_batch(checkpoints, location_of(region.state), region.batch_id)
        for region in record.regions
        if region.state is not None and region.batch_id is not None
    }


def self_contained(
    record: CheckpointRecord,
    of_spark: Mapping[str, Iterable[str]],
    known: Mapping[str, FileReference],
    *,
    kind: CheckpointKind,
) -> CheckpointRecord:
    """The record of a copy: nothing to commit, and every state file by name; pure.

    Args:
        of_spark: see `files_by_region`.
        known: the copy of each file, by its path in the checkpoint directory.
    Raises:
        DamagedCheckpointError: a file of keyed state is not as the record says.
    """
    for file in record.keyed_files:
        copy = known[file.path]
        if (copy.length_bytes, copy.sha256) != (file.length_bytes, file.sha256):
            raise DamagedCheckpointError(
                "a file of keyed state is damaged",
                {
                    "path": file.path,
                    "checkpoint_id": record.checkpoint_id,
                    "bytes": copy.length_bytes,
                    "should_be": file.length_bytes,
                },
                "Restore the job from an older checkpoint or a savepoint, and keep this file.",
            )
    regions = tuple(
        replace(
            region,
            committables=(),
            state=region.state
            and replace(
                region.state,
                files=tuple(known[path] for path in of_spark.get(region.region, ())),
            ),
            keyed_state=region.keyed_state
            and replace(
                region.keyed_state,
                files=tuple(known[file.path] for file in region.keyed_state.files),
            ),
        )
        for region in record.regions
    )
    return replace(record, kind=kind, regions=regions)


def publish_copies(
    fs: FileSystem,
    directory: str,
    record: CheckpointRecord,
    *,
    copied_bytes: int,
    clock: Clock = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Written:
    """Publish the record of files that were copied: the step that makes them a savepoint.

    Raises:
        FencedError: a newer run has closed the directory.
        StorageError, AuthenticationError: see `write_savepoint`.
    """
    failpoint("before-savepoint-metadata")
    deadline = clock() + _PUBLISH_S
    data = encode(record)
    while True:
        attempt = SlotPublication(fs, directory, METADATA, data, record.leader_session_id)
        try:
            outcome = attempt.run()
            break
        except StorageError as error:
            if clock() >= deadline:
                raise StorageError(
                    "it is unknown whether the savepoint is complete",
                    {"uri": f"{fs.uri}/{directory}", "error": error},
                    "Use 'sluice savepoint verify' when the store answers again.",
                ) from error
            log.info("retrying publish: directory=%s error=%s", directory, error)
            pause(_PAUSE_S)
    failpoint("after-savepoint-metadata")
    if outcome is not PublishOutcome.OURS:
        raise FencedError(
            "a newer run of the job has closed the directory of a checkpoint",
            {"uri": f"{fs.uri}/{directory}", "checkpoint_id": record.checkpoint_id},
            "Let the newer run write it.",
        )
    references = references_of(record)
    return Written(
        uri=f"{fs.uri}/{directory}",
        record=record,
        files=len(references),
        bytes=_bytes(references),
        copied_bytes=copied_bytes,
    )


def _copied(
    source: FileSystem, target: FileSystem, copies: list[FileCopy], progress: Progress | None
) -> list[FileReference]:
    failpoint("before-savepoint-copy")
    found = copy_files(source, target, copies, progress=progress)
    failpoint("after-savepoint-copy")
    return found


def _require_present(fs: FileSystem, files: list[FileReference]) -> None:
    """A cleaner gives up a savepoint that does not change for an hour, and later deletes it: this
    process may have been paused in the copy for so long."""
    lengths = in_parallel(lambda each: fs.length_bytes(each.path), files)
    for each, length in zip(files, lengths, strict=True):
        if length != each.length_bytes:
            raise StorageError(
                "a file of an unfinished savepoint was deleted",
                {"uri": fs.uri, "path": each.path},
                "Request another savepoint.",
            )


@contextlib.contextmanager
def abandoned_on_error(fs: FileSystem, directory: str) -> Iterator[None]:
    """Delete an incomplete savepoint after an error, if the store still answers."""
    try:
        yield
    except StreamError:
        with contextlib.suppress(StreamError):  # 'sluice checkpoint clean' finds what stays
            fs.delete(directory)
        raise


def _without(prefix: str, references: Iterable[FileReference]) -> list[FileReference]:
    return [replace(each, path=each.path.removeprefix(prefix)) for each in references]


def _bytes(references: Iterable[FileReference]) -> int:
    return sum(each.length_bytes for each in references)
