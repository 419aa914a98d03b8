"""The sink of ``writeStream.format("sluice-files")``: its options, and its writers in tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa

from sluice.connectors.hdfs.committing.file_sink_coordinator import FileSinkCoordinator
from sluice.connectors.hdfs.formats.choice import file_format
from sluice.connectors.hdfs.formats.file_format import FileFormat
from sluice.connectors.hdfs.staging.committables import FileSet, StagedFile, encode_file_set
from sluice.connectors.hdfs.staging.object_target import ObjectTarget
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt, split_target, staging_root
from sluice.connectors.hdfs.staging.uploaded_files import decode_upload_set
from sluice.connectors.hdfs.writing.partition_paths import PartitionPaths
from sluice.connectors.hdfs.writing.task_writer import StagedFiles, TaskWriter
from sluice.connectors.hdfs.writing.upload_writer import UploadWriterFactory
from sluice.runtime.contracts import (
    AttemptRegistry,
    DropInSink,
    RegisteredAttempt,
    SinkCoordinator,
    SinkWriter,
    TaskScope,
    WriterFactory,
)
from sluice.runtime.errors import ConfigError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.storage.file_system_opening import (
    absolute_uri,
    canonical_uri,
    is_object_store,
    without_scheme,
)
from sluice.runtime.storage.objects.object_location import is_storage_option
from sluice.runtime.storage.task_files import TaskFiles

__all__ = ["FileDropIn", "FileWriter", "FileWriterFactory", "UploadDropInSink"]

_PATH, _FORMAT, _PARTITIONS = "path", "fileformat", "partitionby"
# Spark passes these to the sink of every format.
_SPARKS_OWN = frozenset({"checkpointlocation", "outputmode", "queryname"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDropIn:
    """The checked options. Pure; uses neither session nor file system.

    Attributes:
        target: URI of the directory that readers read.
        form: of the files.
        partitions: columns that become directories.
        default_fs: the file system of an hdfs target without a NameNode.
        storage_options: of an object store, as Hadoop or obstore spells them.
    """

    target: str
    form: FileFormat
    partitions: PartitionPaths
    default_fs: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold keys

    @classmethod
    def from_options(
        cls, options: Mapping[str, str], *, session_zone: str, default_fs: str = "file:///"
    ) -> Self:
        """``path``, ``fileFormat`` (parquet), ``partitionBy`` (``a,b``), and the format's own.

        Args:
            options: by names in any case.
            session_zone: time zone of the query's session.
            default_fs: the file system in which Spark resolves a path without a scheme.
        Raises:
            ConfigError: one is missing, unknown or not valid.
        """
        ours = {name.strip().lower(): value for name, value in options.items()}
        _require_scheme(ours.get(_PATH, ""), default_fs)
        target = absolute_uri(ours.get(_PATH, ""))
        split_target(target)
        columns = [name.strip() for name in ours.get(_PARTITIONS, "").split(",")]
        rest = {
            name: value
            for name, value in options.items()
            if name.strip().lower() not in {_PATH, _FORMAT, _PARTITIONS, *_SPARKS_OWN}
        }
        storage = {name: value for name, value in rest.items() if is_storage_option(name)}
        if is_object_store(target):
            rest = {name: value for name, value in rest.items() if name not in storage}
        return cls(
            target=target,
            default_fs=default_fs,
            storage_options=storage,
            form=file_format(ours.get(_FORMAT, "parquet"), rest),
            partitions=PartitionPaths(
                columns=tuple(filter(None, columns)), session_zone=session_zone
            ),
        )

    def check(self, schema: pa.Schema) -> None:
        """Refuse rows that the format or the directories cannot hold; ConfigError."""
        self.form.check(self.partitions.check(schema))

    @property
    def name(self) -> str:
        """Of the operator."""
        return f"files-{split_target(self.target)[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _DropInSink(DropInSink):
    """`sluice.runtime.contracts.DropInSink` of a drop-in query. Driver.

    Attributes:
        options: as checked.
    """

    options: FileDropIn

    # A query has one sink: another path does not make it another sink.
    uid = "sluice-files"
    is_exactly_once = True

    @property
    def name(self) -> str:
        return self.options.name

    def source_ranges(self, committable: StateEntry) -> Sequence[tuple[str, int, int, int]]:
        """See `sluice.runtime.contracts.Sink`: no time-out loses a file set."""
        del committable
        return ()

    def record_counts(self, committable: StateEntry) -> Mapping[str, int]:
        """See `sluice.runtime.contracts.Sink`; no check compares it."""
        del committable
        return {}

    def target(self) -> tuple[str, ...]:
        return (canonical_uri(self.options.target, default_fs=self.options.default_fs),)

    def may_have_written(self, committable: StateEntry) -> bool:
        """See `sluice.runtime.contracts.DropInSink`: the target names the file system."""
        del committable
        return True

    def may_share_output(self, settings: Mapping[str, str]) -> bool:
        """See `sluice.runtime.contracts.DropInSink`."""
        path = settings.get("path")
        if path is None:
            return False
        return (canonical_uri(path, default_fs=self.options.default_fs),) == self.target()

    def settings(self) -> Mapping[str, str]:
        return {
            "path": self.options.target,
            "format": self.options.form.extension.lstrip("."),
            "partition_by": ",".join(self.options.partitions.columns),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDropInSink(_DropInSink):
    """Files that tasks stage, and renames publish.

    Attributes:
        files: how tasks write to the target's store.
    """

    files: TaskFiles

    def coordinator(self) -> SinkCoordinator:
        """See `Sink`; first refuses a store that tasks cannot write to."""
        from sluice.connectors.hdfs.writing.spark_saver import session_file_system

        self.files.check()
        # A query's tasks report their files through Spark: the driver has not compared them.
        return FileSinkCoordinator(
            self.options.target, session_file_system, is_staged_verified=False
        )

    def writer_factory(self) -> "FileWriterFactory":
        return FileWriterFactory(options=self.options, files=self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadDropInSink(_DropInSink):
    """Files that tasks upload in parts, and the decision completes."""

    def coordinator(self) -> SinkCoordinator:
        from sluice.connectors.hdfs.committing.upload_sink_coordinator import UploadSinkCoordinator
        from sluice.connectors.hdfs.writing.spark_saver import session_file_system

        target = self._object_target
        return UploadSinkCoordinator(
            target.uri, target.opener(session_file_system), target.open_uploads
        )

    def writer_factory(self) -> UploadWriterFactory:
        return UploadWriterFactory(
            target=self.options.target,
            parent=self._object_target.parent,
            form=self.options.form,
            partitions=self.options.partitions,
        )

    def may_have_written(self, committable: StateEntry) -> bool:
        """See `sluice.runtime.contracts.DropInSink`: two stores may have a bucket of one name."""
        return decode_upload_set(committable).endpoint == self._object_target.parent.endpoint

    @property
    def _object_target(self) -> ObjectTarget:
        return ObjectTarget(uri=self.options.target, options=self.options.storage_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWriterFactory(WriterFactory):
    """`WriterFactory`: a staging directory for each attempt of each task."""

    options: FileDropIn
    files: TaskFiles

    def open(self, scope: TaskScope, registry: AttemptRegistry) -> "FileWriter":
        return FileWriter(self.options, self.files, scope, registry)


class FileWriter(SinkWriter):
    """`sluice.runtime.contracts.SinkWriter`. Python worker, one thread, one batch."""

    def __init__(
        self, options: FileDropIn, files: TaskFiles, scope: TaskScope, registry: AttemptRegistry
    ) -> None:
        self._options = options
        self._files = files
        self._scope = scope
        self._registry = registry
        parent, name = split_target(options.target)
        root = staging_root(name, job_uid=scope.job_uid, operator_id=scope.operator_id)
        self._attempt = StagingAttempt.draw(scope.batch)
        self._staging = f"{root}/{self._attempt.path}"
        self._root = f"{without_scheme(parent)}/{root}"
        self._path = f"{self._root}/{self._attempt.path}"
        self._writer: TaskWriter[StagedFile] | None = None
        self.decide_by_s: float | None = None  # no deadline: staged files do not expire

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = self._begun(batch.schema)
        self._writer.write(batch)

    def pre_commit(self) -> list[StateEntry]:
        if self._writer is None:
            return []
        staged = self._writer.finish()
        failpoint("after-stage")
        found = FileSet(
            target=self._options.target,
            staging=self._staging,
            rows=sum(file.rows or 0 for file in staged),
            files=staged,
        )
        return [encode_file_set(found, operator_id=self._scope.operator_id)]

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abandon()

    def _begun(self, schema: pa.Schema) -> TaskWriter[StagedFile]:
        """Register the attempt before its first row, so that the sweep finds it
        (`ids-never-reused`)."""
        self._files.require(self._root)
        self._registry.register(
            RegisteredAttempt(
                batch=self._scope.batch,
                operator_id=self._scope.operator_id,
                resource=self._attempt.path,
                checkpoint_id=self._scope.checkpoint_id,
            )
        )
        failpoint("before-stage")
        return TaskWriter(
            form=self._options.form,
            partitions=self._options.partitions,
            schema=schema,
            files=StagedFiles(
                files=self._files,
                path=self._path,
                attempt=self._attempt,
                subtask=int(self._scope.task.partition(".")[0]),
                checkpoint_id=self._scope.checkpoint_id,
            ),
        )


def _require_scheme(path: str, default_fs: str) -> None:
    """Refuse a bare path if fs.defaultFS is not local: it would be local here."""
    if ":" not in path.partition("/")[0] and not default_fs.lower().startswith("file:"):
        raise ConfigError(
            "a path without a scheme is ambiguous",
            {"path": path, "fs.defaultFS": default_fs},
            "Write hdfs:// or file:// before it.",
        )
