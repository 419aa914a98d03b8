"""The driver's side of a file sink in an object store."""

import time
from collections.abc import Callable, Sequence

from sluice.connectors.hdfs.committing.file_sink_coordinator import FileSinkCoordinator, Sweeper
from sluice.connectors.hdfs.committing.file_sweep import StagingSweeper
from sluice.connectors.hdfs.committing.upload_committer import OpenUploads, UploadCommitter
from sluice.connectors.hdfs.committing.upload_sweep import UploadSweeper
from sluice.connectors.hdfs.partition_commit.partition_marks import PartitionMarks
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt, split_target
from sluice.connectors.hdfs.staging.upload_names import UploadName, sink_tag
from sluice.runtime.contracts import Clock, SinkContext, SweepView
from sluice.runtime.errors import StorageError, StorageUnreachableError
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.storage.file_system import OpenFileSystem

__all__ = ["UploadSinkCoordinator"]

_PROBE = BatchKey(region="probe", attempt_id=0, batch_id=0)
"""Older than every attempt: a later sweep aborts what a killed start has left."""


class UploadSinkCoordinator(FileSinkCoordinator):
    """Implements `sluice.runtime.contracts.SinkCoordinator` for files in an object store. Driver.

    The lease, and files that wait for a roll, lie in the staging directory. Uploads are under their
    final names from the beginning, and the job's uid is part of them, so several jobs may write
    into one directory.

    Args:
        target: URI of the directory that readers read.
        open_file_system: opens the one rooted at a URI.
        open_uploads: opens those below a URI.
        marks: makes the marks of complete partitions; None: no partition commit.
        clock: monotonic seconds.
        sleep: for seconds.
    """

    def __init__(
        self,
        target: str,
        open_file_system: OpenFileSystem,
        open_uploads: OpenUploads,
        *,
        marks: PartitionMarks | None = None,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(
            target,
            open_file_system,
            marks=marks,
            committer=UploadCommitter(open_uploads, clock=clock),
            clock=clock,
            sleep=sleep,
        )
        self._open_uploads = open_uploads

    def _try_publication(self, context: SinkContext, root: str) -> Sweeper:
        """Begin an upload, put a part and abort it; returns what sweeps the uploads."""
        parent, name = split_target(self._target)
        uploads = self._open_uploads(parent)
        sink = sink_tag(job_uid=context.job_uid, operator_id=context.operator_id)
        probe = UploadName(
            sink=sink,
            attempt=StagingAttempt.draw(_PROBE),
            subtask=0,
            number=0,
            checkpoint_id=0,
            extension="",
        )
        key = f"{name}/{probe}"
        try:
            upload_id = uploads.create(key, mark="probe")
            uploads.put_part(key, upload_id, 1, b"sluice")
            uploads.abort(key, upload_id)
        except StorageUnreachableError:
            raise
        except StorageError as err:
            raise StorageError(
                "the store takes no multipart upload",
                {"path": self._target, "error": str(err)},
                "Use a store with S3's multipart uploads, and allow them in its policies.",
            ) from err
        swept = UploadSweeper(uploads, target_name=name, sink=sink, operator_id=context.operator_id)
        staged = StagingSweeper(
            self._fs, root=root, operator_id=context.operator_id, clock=self._clock
        )
        return _Sweepers((swept, staged))


class _Sweepers(Sweeper):
    """Uploads first: the staged files of a sink that rolls cost less than they."""

    def __init__(self, sweepers: Sequence[Sweeper]) -> None:
        self._sweepers = sweepers

    def sweep(self, view: SweepView) -> int:
        return sum(each.sweep(view) for each in self._sweepers)
