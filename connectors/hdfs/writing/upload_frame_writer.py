"""Uploads the frame of one batch by Python tasks; the driver gets what they uploaded."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from sluice.connectors.hdfs.staging.staged_names import (
    StagingAttempt,
    split_target,
    staging_root,
)
from sluice.connectors.hdfs.staging.uploaded_files import (
    UploadedFile,
    UploadSet,
    encode_upload_set,
)
from sluice.connectors.hdfs.writing.spark_saver import chosen
from sluice.connectors.hdfs.writing.task_saver import (
    ANSWER_SCHEMA,
    answered,
    files_of,
    task_number,
)
from sluice.connectors.hdfs.writing.task_writer import TaskWriter
from sluice.connectors.hdfs.writing.upload_writer import UploadWriterFactory
from sluice.runtime.contracts import (
    AttemptRegistry,
    FrameWriter,
    RegisteredAttempt,
    StagedFrame,
    TaskScope,
)
from sluice.runtime.failpoints import failpoint
from sluice.runtime.storage.file_system import (
    FileSystem,
    OpenFileSystem,
    close_quietly,
    require_writable,
)

__all__ = ["UploadFrameWriter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _UploadTask:
    """Uploads one task's rows. Picklable.

    Attributes:
        factory: of the sink.
        scope: of the batch.
        attempt: that the driver has registered. Two runs of a task have uploads of one name; the
            committable names the upload of the run whose answer counts.
    """

    factory: UploadWriterFactory
    scope: TaskScope
    attempt: StagingAttempt

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `answered`."""
        files = self.factory.task_files(self.scope, self.attempt, subtask=task_number())

        def opened(schema: pa.Schema) -> TaskWriter[UploadedFile]:
            return self.factory.task_writer(files, schema)

        try:
            yield from answered(batches, opened)
        finally:
            files.close()


@dataclass(frozen=True, kw_only=True)  # no slots: it keeps its client
class UploadFrameWriter(FrameWriter):
    """`sluice.runtime.contracts.FrameWriter`: one attempt for each batch. Driver.

    Attributes:
        factory: of the sink.
        open_file_system: opens the one rooted at a URI.
    """

    factory: UploadWriterFactory
    open_file_system: OpenFileSystem

    def write(self, frame: DataFrame, scope: TaskScope, registry: AttemptRegistry) -> StagedFrame:
        attempt = StagingAttempt.draw(scope.batch)
        registry.register(
            RegisteredAttempt(
                batch=scope.batch,
                operator_id=scope.operator_id,
                resource=attempt.path,
                checkpoint_id=scope.checkpoint_id,
            )
        )
        failpoint("before-upload")
        task = _UploadTask(factory=self.factory, scope=scope, attempt=attempt)
        rows = chosen(frame, self.factory.columns)
        files = files_of(rows.mapInArrow(task.run, ANSWER_SCHEMA).collect())
        failpoint("after-upload")
        if not files:
            return StagedFrame(rows=0)
        found = UploadSet(
            target=self.factory.target,
            endpoint=self.factory.parent.endpoint,
            mark=attempt.attempt,
            files=files,
        )
        return StagedFrame(
            rows=sum(file.rows or 0 for file in files),
            committables=(encode_upload_set(found, operator_id=scope.operator_id),),
        )

    def require_writable(self, *, job_uid: str, operator_id: str) -> None:
        _, name = split_target(self.factory.target)
        require_writable(self._fs, staging_root(name, job_uid=job_uid, operator_id=operator_id))

    def close(self) -> None:
        opened = vars(self).pop("_fs", None)
        if opened is not None:
            close_quietly(opened)

    @functools.cached_property
    def _fs(self) -> FileSystem:
        return self.open_file_system(split_target(self.factory.target)[0])
