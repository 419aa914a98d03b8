"""Writes a frame's files by Python tasks: each task takes rows and yields one answer.

A Job uses it for Avro if spark-avro is not on the class path.
"""

import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sluice.connectors.hdfs.formats.file_format import FileFormat
from sluice.connectors.hdfs.staging.committables import StagedFile
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt
from sluice.connectors.hdfs.staging.staged_output import StagedOutput
from sluice.connectors.hdfs.writing.frame_writer import FrameSaver, SavedFrame, StagingDirectory
from sluice.connectors.hdfs.writing.partition_paths import PartitionPaths
from sluice.connectors.hdfs.writing.spark_saver import chosen
from sluice.connectors.hdfs.writing.task_writer import StagedFiles, TaskWriter
from sluice.runtime.errors import ConfigError, IllegalTransitionError, StreamError
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.spark.session.session_web_hdfs import task_files
from sluice.runtime.storage.file_system_opening import without_scheme
from sluice.runtime.storage.task_files import TaskFiles

__all__ = [
    "ANSWER_SCHEMA",
    "FrameTask",
    "TaskFrameSaver",
    "answered",
    "checked_partitions",
    "default_fs",
    "files_of",
    "session_task_files",
    "task_number",
]

ANSWER_SCHEMA = "answer binary"
"""Spark schema of the rows that tasks yield."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTask:
    """Writes one task's rows into the staging directory of the batch's attempt. Picklable.

    Attributes:
        files: how tasks write to the target's store.
        form: of the files.
        partitions: columns that become directories; they have checked the rows' schema.
        root: of the sink's staging, absolute, without scheme; made by the driver.
        path: of the attempt's staging directory, below ``root``.
        batch: whose rows these are.
        checkpoint_id: that the batch is expected to join.
    """

    files: TaskFiles
    form: FileFormat
    partitions: PartitionPaths
    root: str
    path: str
    batch: BatchKey
    checkpoint_id: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all rows; see `answered`."""
        return answered(batches, self._writer)

    def _writer(self, schema: pa.Schema) -> TaskWriter[StagedFile]:
        """A writer with names of its own: two attempts of one task share no file."""
        self.files.require(self.root)
        return TaskWriter(
            form=self.form,
            partitions=self.partitions,
            schema=schema,
            files=StagedFiles(
                files=self.files,
                path=self.path,
                attempt=StagingAttempt.draw(self.batch),
                subtask=task_number(),
                checkpoint_id=self.checkpoint_id,
            ),
        )


def answered(
    batches: Iterator[pa.RecordBatch], open_writer: Callable[[pa.Schema], TaskWriter[Any]]
) -> Iterator[pa.RecordBatch]:
    """Write all rows of a task; yield one row, pickled: the files, or the typed error that ended
    it.

    For Spark the task has then succeeded: the error keeps its type, and Spark does not retry it.
    """
    answer: tuple[Any, ...] | StreamError
    try:
        answer = _written(batches, open_writer)
    except StreamError as err:
        answer = err
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(answer)], pa.binary())], ["answer"])


def _written(
    batches: Iterator[pa.RecordBatch], open_writer: Callable[[pa.Schema], TaskWriter[Any]]
) -> tuple[Any, ...]:
    writer: TaskWriter[Any] | None = None
    try:
        for batch in batches:
            if batch.num_rows:
                writer = writer or open_writer(batch.schema)
                writer.write(batch)
        return () if writer is None else writer.finish()
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise


def files_of(rows: Sequence[Sequence[bytes]]) -> tuple[Any, ...]:
    """The files of all tasks; raises the first error that one reported."""
    found: list[Any] = []
    for row in rows:
        answer: tuple[Any, ...] | StreamError = pickle.loads(row[0])  # written by `answered`
        if isinstance(answer, StreamError):
            raise answer
        found.extend(answer)
    return tuple(found)


def task_number() -> int:
    """The number of the Spark task that runs here; 0 outside of one."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


_ZONE = "spark.sql.session.timeZone"


@dataclass(frozen=True, kw_only=True)  # no slots: it keeps what its tasks need
class TaskFrameSaver(FrameSaver):
    """`FrameSaver`: passes the frame's rows through Arrow to tasks that write the files.

    Attributes:
        target: URI of the directory that readers read.
        form: of the files.
        partition_by: columns that become directories.
        columns: that are written; None: all.
        files: how tasks write to the target's store; None: as the session's configuration says.
    """

    target: str
    form: FileFormat
    partition_by: tuple[str, ...]
    columns: tuple[str, ...] | None
    files: TaskFiles | None = None

    @functools.cached_property
    def _files(self) -> TaskFiles:
        return self.files or session_task_files(self.target)

    def check(self, frame: DataFrame) -> None:
        """See `FrameSaver`; also refuses a file system that tasks without a JVM cannot write to."""
        self._partitions(chosen(frame, self.columns))
        self._files.check()

    def save(self, frame: DataFrame, directory: StagingDirectory) -> SavedFrame:
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
        return checked_partitions(rows, self.partition_by, form=self.form)


def checked_partitions(
    rows: DataFrame, partition_by: tuple[str, ...], *, form: FileFormat
) -> PartitionPaths:
    """The partitions of such rows; ConfigError if directories or format cannot hold them."""
    zone = str(rows.sparkSession.conf.get(_ZONE))
    partitions = PartitionPaths(columns=partition_by, session_zone=zone)
    form.check(partitions.check(_arrow_schema(rows.schema)))
    return partitions


def _arrow_schema(schema: StructType) -> pa.Schema:
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except PySparkException as err:
        raise ConfigError(
            "tasks without a JVM cannot take a column of this type",
            {"columns": schema.simpleString(), "error": str(err).splitlines()[0]},
            "Convert it before the sink.",
        ) from err


def session_task_files(uri: str) -> TaskFiles:
    """How tasks write to the file system of ``uri``; made on the driver, used in tasks.

    Raises:
        ConfigError: Hadoop's configuration requires Kerberos or HTTPS, or has no WebHDFS address.
    """
    return task_files(_context(), uri)


def default_fs() -> str:
    """The file system in which Spark resolves a path without a scheme."""
    return str(_context()._jsc.hadoopConfiguration().get("fs.defaultFS"))  # noqa: SLF001 - no public way


def _context() -> Any:  # noqa: ANN401 - only private attributes are used
    context = SparkContext._active_spark_context  # noqa: SLF001 - PySpark has no public way
    if context is None:
        raise IllegalTransitionError("the Spark session has ended", {}, "Start the job again.")
    return context
