"""Writers of files in object stores: each epoch's files are uploads until its decision."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from sluice.connectors.hdfs.formats.file_format import FileFormat
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt, split_target
from sluice.connectors.hdfs.staging.upload_names import sink_tag
from sluice.connectors.hdfs.staging.uploaded_files import (
    UploadedFile,
    UploadSet,
    encode_upload_set,
)
from sluice.connectors.hdfs.writing.partition_paths import PartitionPaths
from sluice.connectors.hdfs.writing.task_writer import TaskWriter
from sluice.connectors.hdfs.writing.upload_files import UploadFiles
from sluice.runtime.contracts import (
    AttemptRegistry,
    ContinuousWriter,
    ContinuousWriterFactory,
    RegisteredAttempt,
    TaskScope,
    TypedWriterFactory,
)
from sluice.runtime.errors import StreamError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.functions.declared_types import with_declared_types
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.storage.objects.object_location import ObjectLocation
from sluice.runtime.storage.objects.object_uploads import uploads_at

__all__ = ["UploadWriter", "UploadWriterFactory"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadWriterFactory(ContinuousWriterFactory, TypedWriterFactory):
    """`ContinuousWriterFactory`: uploads of their own for each attempt of each task. Picklable.

    Attributes:
        target: URI of the directory that readers read.
        parent: the location above it.
        form: of the files.
        partitions: columns that become directories.
        columns: that are written, in this order; None: all.
        most_bytes: a file that has so many is finished, and another one begun; None: no limit.
        rows: columns and types of the rows, if functions return them; None: they are always alike.
    """

    target: str
    parent: ObjectLocation
    form: FileFormat
    partitions: PartitionPaths
    columns: tuple[str, ...] | None = None
    most_bytes: int | None = None
    rows: pa.Schema | None = None

    def for_rows(self, schema: pa.Schema) -> "UploadWriterFactory":
        """See `TypedWriterFactory`."""
        names = schema.names if self.columns is None else self.columns
        return replace(self, rows=pa.schema([schema.field(name) for name in names]))

    @property
    def longest_interval_s(self) -> float | None:
        """See `ContinuousWriterFactory`: uploads do not expire by themselves."""
        return None

    def open(self, scope: TaskScope, registry: AttemptRegistry) -> "UploadWriter":
        return UploadWriter(self, scope, registry)

    def task_files(self, scope: TaskScope, attempt: StagingAttempt, *, subtask: int) -> UploadFiles:
        """The uploads of one task of an attempt that is registered."""
        return UploadFiles(
            uploads_at(self.parent),
            target_name=split_target(self.target)[1],
            sink=sink_tag(job_uid=scope.job_uid, operator_id=scope.operator_id),
            attempt=attempt,
            subtask=subtask,
            checkpoint_id=scope.checkpoint_id,
        )

    def task_writer(self, files: UploadFiles, schema: pa.Schema) -> TaskWriter[UploadedFile]:
        """Writes rows of this schema into uploads."""
        return TaskWriter(
            files=files,
            form=self.form,
            partitions=self.partitions,
            schema=schema,
            most_bytes=self.most_bytes,
        )

    def open_continuous(self, scope: TaskScope, registry: AttemptRegistry) -> "UploadWriter":
        return UploadWriter(self, scope, registry)


class UploadWriter(ContinuousWriter):
    """`ContinuousWriter`, also for one batch. Python worker; threads as the contract says."""

    def __init__(
        self, factory: UploadWriterFactory, scope: TaskScope, registry: AttemptRegistry
    ) -> None:
        self._factory = factory
        self._scope = scope
        self._registry = registry
        self._attempt = StagingAttempt.draw(scope.batch)
        self._files: UploadFiles | None = None
        self._writer: TaskWriter[UploadedFile] | None = None
        self._uploaded: UploadSet | None = None
        self.decide_by_s: float | None = None  # no deadline: uploads do not expire by themselves

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        columns, declared = self._factory.columns, self._factory.rows
        if columns is not None:
            known = columns if declared is None else set(columns) & set(batch.schema.names)
            batch = batch.select([name for name in columns if name in known])
        rows = batch if declared is None else with_declared_types(batch, declared)
        if self._writer is None:
            self._writer = self._begun(rows.schema)
        self._writer.write(rows)

    def end_epoch(self, ranges: Sequence[SplitRange], *, checkpoint_id: int) -> None:
        """See `ContinuousWriter`: files of two epochs have no order."""
        del ranges, checkpoint_id

    def pre_commit(self) -> list[StateEntry]:
        """Upload the last parts. Nothing is completed: readers see no file."""
        if self._writer is None:
            return []
        files = self._writer.finish()
        self._close()
        failpoint("after-upload")
        self._uploaded = UploadSet(
            target=self._factory.target,
            endpoint=self._factory.parent.endpoint,
            mark=self._attempt.attempt,
            files=files,
        )
        return [encode_upload_set(self._uploaded, operator_id=self._scope.operator_id)]

    def commit(self, *, timeout_s: float) -> bool:
        """See `ContinuousWriter`: the task completes what it uploaded, before the driver does."""
        uploaded, self._uploaded = self._uploaded, None
        deadline_s = time.monotonic() + timeout_s
        if uploaded is None:
            return False
        uploads = uploads_at(self._factory.parent)
        for file in uploaded.files:
            if time.monotonic() >= deadline_s:
                return False
            failpoint("before-complete")
            try:
                uploads.complete(uploaded.key(file), file.upload_id, file.tags, mark=uploaded.mark)
            except StreamError as err:  # the committer finds out what happened
                log.info("a file was not completed by its task: error=%s", err)
                return False
            failpoint("after-complete")
        return True

    def release(self) -> None:
        self._uploaded = None

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
        self._close()

    def _close(self) -> None:
        if self._files is not None:
            self._files.close()

    def _begun(self, schema: pa.Schema) -> TaskWriter[UploadedFile]:
        """Register the attempt before its first upload, so that the sweep may end it
        (`ids-never-reused`)."""
        scope, factory = self._scope, self._factory
        self._registry.register(
            RegisteredAttempt(
                batch=scope.batch,
                operator_id=scope.operator_id,
                resource=self._attempt.path,
                checkpoint_id=scope.checkpoint_id,
            )
        )
        failpoint("before-upload")
        subtask = int(scope.task.partition(".")[0] or 0)
        self._files = factory.task_files(scope, self._attempt, subtask=subtask)
        return factory.task_writer(self._files, schema)
