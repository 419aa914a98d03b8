"""Frames whose files Python tasks write: Avro, where Spark's own is not on the class path."""

import functools
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from connectors.hdfs._spark import chosen
from connectors.hdfs._spark_tasks import session_task_files
from connectors.hdfs.formats import FileFormat
from connectors.hdfs.frame_task import ANSWER_SCHEMA, FrameTask, files_of
from connectors.hdfs.frame_writer import SavedFrame, StagingDirectory
from connectors.hdfs.partition_paths import PartitionPaths
from connectors.hdfs.staged_output import StagedOutput
from connectors.hdfs.staging import without_scheme
from connectors.hdfs.task_files import TaskFiles
from runtime.errors import ConfigError

__all__ = ["TaskFrameSaver"]

_ZONE = "spark.sql.session.timeZone"


@dataclass(frozen=True, kw_only=True)  # no slots: it keeps what its tasks need
class TaskFrameSaver:
    """`FrameSaver`: the frame's rows go through Arrow into tasks that write the files.

    Attributes:
        target: URI of the directory that readers read.
        form: of the files.
        partition_by: columns that become directories.
        columns: that are written; None: all.
    """

    target: str
    form: FileFormat
    partition_by: tuple[str, ...]
    columns: tuple[str, ...] | None

    @functools.cached_property
    def _files(self) -> TaskFiles:
        return session_task_files(self.target)

    def check(self, frame: DataFrame) -> None:
        """See `FrameSaver`; also refuses a file system that such tasks cannot write to."""
        self._partitions(chosen(frame, self.columns))
        self._files.check()

    def save(self, frame: DataFrame, directory: StagingDirectory) -> SavedFrame:
        """See `FrameSaver`."""
        rows = chosen(frame, self.columns)
        task = FrameTask(
            files=self._files,
            form=self.form,
            partitions=self._partitions(rows),
            root=without_scheme(f"{directory.fs.uri}/{directory.root}"),
            path=without_scheme(directory.uri),
            batch=directory.attempt.batch,
            checkpoint_id=directory.checkpoint_id,
        )
        files = files_of(rows.mapInArrow(task.run, ANSWER_SCHEMA).collect())
        output = StagedOutput(
            fs=directory.fs, root=directory.root, attempt=directory.attempt, count=None
        )
        output.require(files)
        return SavedFrame(rows=sum(file.rows or 0 for file in files), files=files)

    def _partitions(self, rows: DataFrame) -> PartitionPaths:
        """Directories that, with the format, can hold such rows; else ConfigError."""
        zone = str(rows.sparkSession.conf.get(_ZONE))
        partitions = PartitionPaths(columns=self.partition_by, session_zone=zone)
        self.form.check(partitions.check(_arrow_schema(rows.schema)))
        return partitions


def _arrow_schema(schema: StructType) -> pa.Schema:
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except PySparkException as err:
        raise ConfigError(
            "tasks without a JVM cannot be given a column of this type",
            {"columns": schema.simpleString(), "error": str(err).splitlines()[0]},
            "Convert it before the sink.",
        ) from err
