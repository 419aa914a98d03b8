"""Writes the savepoints and full checkpoints of a running job."""

import logging
import threading
from collections.abc import Callable
from pathlib import PurePosixPath

from sluice.runtime.checkpoint.checkpoint_slots import FULL, slot_name
from sluice.runtime.coordinator.shell.request_thread import Copied, FileCopier
from sluice.runtime.errors import ConfigError, StreamError
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    RegionRecord,
    RegionStatus,
)
from sluice.runtime.savepoint.full_checkpoints import (
    retire_full_checkpoints,
    write_full_checkpoint,
)
from sluice.runtime.savepoint.savepoint_writer import savepoint_name, write_savepoint
from sluice.runtime.storage.file_system import FileSystem, OpenFileSystem, close_quietly
from sluice.runtime.storage.file_system_opening import absolute_uri

__all__ = ["CheckpointCopies"]

log = logging.getLogger(__name__)

_LOGGED_S = 0.05


class CheckpointCopies(FileCopier):
    """`FileCopier` of a job with Spark's files in its checkpoint directory. Driver, one thread.

    Args:
        fs: the checkpoint directory.
        open_fs: opens the directory of a savepoint.
        retained: full checkpoints to keep.
    """

    def __init__(self, fs: FileSystem, *, open_fs: OpenFileSystem, retained: int) -> None:
        self._fs = fs
        self._open = open_fs
        self._retained = retained

    def parent(self, kind: CheckpointKind, to: str | None) -> str:
        if kind is CheckpointKind.FULL:
            return f"{absolute_uri(self._fs.uri)}/{FULL}"
        if to is not None and not to.strip():
            raise ConfigError(
                "a savepoint needs a directory", {"to": to}, "Give a URI, or leave it out."
            )
        parent = absolute_uri(f"{self._fs.uri}/savepoints" if to is None else to)
        self._open(parent).close()  # refuses a store that it does not know
        return parent

    def uri(self, record: CheckpointRecord, parent: str, *, request_id: str) -> str:
        if record.kind is CheckpointKind.FULL:
            return f"{parent}/{slot_name(record.checkpoint_id)}"
        return f"{parent}/{savepoint_name(record, request_id)}"

    def copy(
        self,
        record: CheckpointRecord,
        uri: str,
        *,
        is_awaited: Callable[[str], bool],
        guard: Callable[[], None],
        progress: Callable[[int, int], None],
    ) -> Copied:
        for region in record.regions:
            self._await_logged(region, is_awaited, guard)
        guard()

        def copied(files: int, _: int, length_bytes: int) -> None:
            progress(files, length_bytes)
            guard()

        if record.kind is CheckpointKind.FULL:
            written = write_full_checkpoint(self._fs, record, progress=copied, guard=guard)
            self._retire(written.record)
        else:
            parent, _, name = uri.rpartition("/")
            fs = self._open(parent)
            try:
                written = write_savepoint(
                    self._fs, record, fs, name=name, progress=copied, guard=guard
                )
            finally:
                close_quietly(fs)
        return Copied(bytes=written.bytes, files=written.files)

    def _retire(self, newest: CheckpointRecord) -> None:
        try:
            retire_full_checkpoints(self._fs, newest, retained=self._retained)
        except StreamError as err:  # the next full checkpoint tries again
            log.warning("old full checkpoints could not be deleted: error=%s", err)

    def _await_logged(
        self, region: RegionRecord, is_awaited: Callable[[str], bool], guard: Callable[[], None]
    ) -> None:
        """Spark logs the end of a batch after its callback has returned. A region that failed
        before that logs it in its next attempt; one without a next attempt never does, and a
        restore runs its last batch once more."""
        if region.state is None or region.batch_id is None:
            return
        logged = f"{PurePosixPath(region.state.location).parent}/commits/{region.batch_id}"
        pause = threading.Event()
        while not self._fs.exists(logged):
            guard()
            if region.status is RegionStatus.SKIPPED or not is_awaited(region.region):
                return
            pause.wait(_LOGGED_S)
