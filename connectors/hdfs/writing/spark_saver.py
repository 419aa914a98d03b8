"""Writes files by Spark's own writers, and opens Hadoop's `FileSystem` of the session."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.orc as pao
import pyarrow.parquet as pq
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from sluice.connectors.hdfs.staging.staged_output import StagedOutput
from sluice.connectors.hdfs.writing.frame_writer import FrameSaver, SavedFrame, StagingDirectory
from sluice.runtime.errors import ConfigError, IllegalTransitionError, UnreachableError
from sluice.runtime.spark.session.spark_session import active_session
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from sluice.runtime.storage.hadoop_errors import (
    JavaException,
    causes_of,
    exception_of,
    exceptions_of,
    failure_kind,
    typed,
)

__all__ = [
    "COMMITTER",
    "ROW_COUNTS",
    "SparkFrameSaver",
    "chosen",
    "failures",
    "micros_in_parquet",
    "refusals",
    "session_file_system",
    "session_hadoop",
    "session_writes",
]

_ROWS = "rows"
_TASKS = "tasks"
_COUNT_S = 60.0
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
_LOCAL = "file://"  # a footer read by Arrow takes 1 ms, by Hadoop's client 20 ms
_OF_WORKERS = ("EOFException", "SocketException")  # a Python worker has died
_HADOOP_TEXT = "local host is"  # how Hadoop begins to say between whom a connection was lost


def session_file_system(uri: str) -> FileSystem:
    """The file system rooted at ``uri``, in the session's JVM where it needs one."""
    context = SparkContext._active_spark_context  # noqa: SLF001 - PySpark has no public way
    return open_file_system(uri, None if context is None else context._jvm)  # noqa: SLF001 - no public way


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkFrameSaver(FrameSaver):
    """`FrameSaver`: one write by Spark's own writer.

    Spark lets one attempt of each task commit its files.

    Attributes:
        format_name: Spark's name of the format.
        partition_by: columns that become directories.
        columns: that are written; None: all.
        options: of Spark's writer.
    """

    format_name: str
    partition_by: tuple[str, ...]
    columns: tuple[str, ...] | None
    options: Mapping[str, str] = field(repr=False)  # may hold keys of encrypted formats

    def check(self, frame: DataFrame) -> None:
        """See `FrameSaver`: runs the checks that Spark runs when it begins to write."""
        with refusals(self.format_name, self.partition_by):
            rows = chosen(frame, self.columns)
        jvm: Any = rows.sparkSession._jvm  # noqa: SLF001 - PySpark has no public way
        sql, sequence = jvm.org.apache.spark.sql, jvm.org.apache.spark.api.python.PythonUtils.toSeq
        sources, conf = sql.execution.datasources, _java_session(rows).sessionState().conf()
        with refusals(self.format_name, self.partition_by):
            sql.util.SchemaUtils.checkColumnNameDuplication(
                sequence(list(rows.columns)), conf.caseSensitiveAnalysis()
            )
            sources.PartitioningUtils.validatePartitionColumn(
                _java_schema(rows), sequence(list(self.partition_by)), True
            )
            if self.format_name in _FORMATS:
                form = _FORMATS[self.format_name](sources)
                apart = [F.col(_quoted(column)) for column in self.partition_by]
                in_files = _java_schema(rows.drop(*apart))
                sources.DataSourceUtils.verifySchema(form, in_files, False)
                if self.format_name in ROW_COUNTS:  # by column: Spark would find none of two
                    is_case_sensitive = conf.caseSensitiveAnalysis()
                    sql.util.SchemaUtils.checkSchemaColumnNameDuplication(
                        in_files, is_case_sensitive
                    )
                self._prepare(rows, form, in_files)

    def _prepare(self, rows: DataFrame, form: Any, in_files: Any) -> None:  # noqa: ANN401 - Java objects
        """Let Spark read the options, as it does on the driver before each write, without
        writing."""
        jvm: Any = rows.sparkSession._jvm  # noqa: SLF001 - PySpark has no public way
        java_session = _java_session(rows)
        given = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(dict(self.options))
        companion = getattr(jvm.org.apache.spark.sql.catalyst.util, "CaseInsensitiveMap$")
        options = getattr(companion, "MODULE$").apply(given)
        try:
            conf = java_session.sessionState().newHadoopConfWithOptions(options)
            job = jvm.org.apache.hadoop.mapreduce.Job.getInstance(conf)
            form.prepareWrite(java_session, job, options, in_files)
            with active_session(rows.sparkSession):
                _read_patterns(jvm, self.options)
        except (PySparkException, Py4JJavaError) as err:
            raise self._refused(err) from err

    def _refused(self, err: Exception) -> ConfigError:
        chain = exceptions_of(err)
        return ConfigError(
            "Spark's writer refuses these options",
            {
                "format": self.format_name,
                "options": ",".join(sorted(self.options)),  # keys of encrypted formats are values
                "error": chain[-1].text,
            },
            "Choose other options, or another format.",
        )

    def save(self, frame: DataFrame, directory: StagingDirectory) -> SavedFrame:
        rows, tasks = self._written(frame, directory.uri)
        output = StagedOutput(
            fs=directory.fs,
            root=directory.root,
            attempt=directory.attempt,
            count=ROW_COUNTS.get(self.format_name),
            leaves_rows_out=self.format_name == "csv",
        )
        with failures(directory.uri):  # rows are counted by Hadoop's readers
            files = output.files(rows=rows, tasks=tasks, checkpoint_id=directory.checkpoint_id)
        return SavedFrame(rows=rows or 0, files=files)

    def _written(self, frame: DataFrame, uri: str) -> tuple[int | None, frozenset[int]]:
        """Run the frame into files; returns the number of rows, counted during the write. If the
        files have no row count, it also returns the tasks that had rows.

        None: Spark removed the count from a plan that is always empty.
        """
        counted = Observation()
        count = F.count(F.lit(1)).alias(_ROWS)
        rows = self._spelt(chosen(frame, self.columns))
        if self.format_name in ROW_COUNTS:
            observed = rows.observe(counted, count)
        else:
            task = "_" + "_".join(rows.columns)  # longer than each, so none of theirs
            numbered = rows.withColumn(task, F.spark_partition_id())
            tasks = F.collect_set(_quoted(task)).alias(_TASKS)
            observed = numbered.observe(counted, count, tasks).drop(F.col(_quoted(task)))
        writer = observed.write.format(self.format_name).options(**self.options)
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        with (
            refusals(self.format_name, self.partition_by),
            failures(uri),
            micros_in_parquet(frame.sparkSession),
        ):
            writer.options(**COMMITTER).save(uri)
        found = _counted(counted)
        number = found.get(_ROWS)
        return (None if number is None else int(number)), frozenset(found.get(_TASKS) or ())

    def _spelt(self, rows: DataFrame) -> DataFrame:
        """Rows with partition values as directories spell them. Two values may have one
        spelling: bytes that are not UTF-8, or times in a repeated hour. Spark's tasks take these
        for two directories, and fail when they begin the second one's file."""
        has_own_zone = any(key.strip().lower() == "timezone" for key in self.options)
        for column in self.partition_by:
            if has_own_zone and isinstance(rows.schema[column].dataType, TimestampType):
                continue  # Spark spells it in another zone than the cast
            spelt = F.make_valid_utf8(F.col(_quoted(column)).cast("string"))
            rows = rows.withColumn(column, spelt)
        return rows


def chosen(frame: DataFrame, columns: Sequence[str] | None) -> DataFrame:
    """The frame with only these columns, in this order; None: all columns."""
    return frame if columns is None else frame.select(*map(_quoted, columns))


def _read_patterns(jvm: Any, options: Mapping[str, str]) -> None:  # noqa: ANN401 - py4j's view
    """Raise the errors that Spark's tasks would raise for date and time patterns at each row.
    The active session chooses which of Spark's two pattern parsers checks them."""
    patterns = {key.strip().lower(): value for key, value in options.items()}
    util = jvm.org.apache.spark.sql.catalyst.util
    dates, times = (getattr(util, f"{kind}Formatter$") for kind in ("Date", "Timestamp"))
    if "dateformat" in patterns:
        made = getattr(dates, "MODULE$").apply(patterns["dateformat"], False)
        made.validatePatternString()
    for name in ("timestampformat", "timestampntzformat"):
        if name in patterns:
            zone = jvm.java.time.ZoneOffset.UTC
            made = getattr(times, "MODULE$").apply(patterns[name], zone, False)
            made.validatePatternString(True)


def session_writes(format_name: str) -> bool:
    """Whether Spark's own writer of this format is on the class path; Avro's may be absent."""
    sql = _session(format_name)._jvm.org.apache.spark.sql  # noqa: SLF001 - no public way
    try:
        sql.execution.datasources.DataSource.lookupDataSource(
            format_name, sql.internal.SQLConf.get()
        )
    except AnalysisException:
        return False
    return True


def _java_session(frame: DataFrame) -> Any:  # noqa: ANN401 - a Java object
    return frame.sparkSession._jsparkSession  # noqa: SLF001 - PySpark has no public way


def _java_schema(frame: DataFrame) -> Any:  # noqa: ANN401 - a Java object
    return frame._jdf.schema()  # noqa: SLF001 - PySpark has no public way


@contextlib.contextmanager
def refusals(format_name: str, partition_by: Sequence[str]) -> Iterator[None]:
    """Turn Spark's refusals into ConfigError; a user's own error passes unchanged."""
    try:
        yield
    except AnalysisException as err:
        raise ConfigError(
            "Spark's writer refuses these rows or options",
            {
                "format": format_name,
                "partition_by": ",".join(partition_by),
                "error": str(err).splitlines()[0],
            },
            "Choose other columns, types or options, or another format.",
        ) from err


@contextlib.contextmanager
def micros_in_parquet(session: SparkSession) -> Iterator[None]:
    """Timestamps in Parquet as TIMESTAMP_MICROS, unless the user has chosen: other readers take
    Spark's INT96 of a year before 1677 or after 2262 for another time, without an error."""
    if session.conf.get(_TIMESTAMPS, None) is not None:
        yield
        return
    session.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        session.conf.unset(_TIMESTAMPS)


@contextlib.contextmanager
def failures(uri: str) -> Iterator[None]:
    """Turn failures of a file system into typed errors; others pass unchanged."""
    try:
        yield
    except Py4JJavaError as err:
        chain = _storage_exceptions(err.java_exception)
        if not chain:
            raise
        raise typed(
            failure_kind(chain), "write the staged files", {"staging": uri, "error": chain[0].text}
        ) from err


def _storage_exceptions(error: Any) -> list[JavaException]:  # noqa: ANN401 - a Java object
    """The exceptions of a file system among the causes of ``error``."""
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no public way
    found = []
    for cause in causes_of(error):
        exception = exception_of(cause)
        of_worker = exception.name in _OF_WORKERS and _HADOOP_TEXT not in exception.text
        if not of_worker and is_instance_of(gateway, cause, "java.io.IOException"):
            found.append(exception)
    return found


def _counted(observed: Observation, *, timeout_s: float = _COUNT_S) -> dict[str, Any]:
    """The values observed in a finished write; Spark reports them shortly after, by an event.

    Raises:
        UnreachableError: the event did not come; Spark drops some when it has too many.
    """
    values: Any = observed._jo  # noqa: SLF001 - its `get` has no time-out
    wait = _session(_ROWS)._jvm.scala.concurrent  # noqa: SLF001 - no public way
    limit = wait.duration.Duration.create(int(timeout_s * 1000), "ms")
    try:
        wait.Await.ready(values.future(), limit)
    except Py4JJavaError as err:
        raise UnreachableError(
            "Spark did not report how many rows it wrote",
            {"timeout_s": timeout_s},
            "Raise spark.scheduler.listenerbus.eventqueue.capacity if this happens again; the "
            "epoch is written again.",
        ) from err
    return observed.get


def _quoted(column: str) -> str:
    """The name in backticks, so that a dot in it is no field access."""
    return "`" + column.replace("`", "``") + "`"


_FORMATS: Mapping[str, Callable[[Any], Any]] = {
    "parquet": lambda sources: sources.parquet.ParquetFileFormat(),
    "orc": lambda sources: sources.orc.OrcFileFormat(),
    "json": lambda sources: sources.json.JsonFileFormat(),
    "csv": lambda sources: sources.csv.CSVFileFormat(),
}
COMMITTER: Mapping[str, str] = {
    # No empty success file in the directory.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # With version 2 a task moves its files into the directory one by one. Files of an attempt that
    # dies meanwhile would stay beside those of the next attempt.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
}
"""Options of Spark's writers for Hadoop's committer; they override the session's."""


def _parquet_rows(uri: str) -> int:
    if uri.startswith(_LOCAL):
        with contextlib.suppress(pa.ArrowException, OSError):  # encrypted: Hadoop has the keys
            return int(pq.read_metadata(uri.removeprefix(_LOCAL)).num_rows)
    jvm, conf, path = session_hadoop(uri)
    hadoop = jvm.org.apache.parquet.hadoop
    reader = hadoop.ParquetFileReader.open(hadoop.util.HadoopInputFile.fromPath(path, conf))
    try:
        return int(reader.getRecordCount())
    finally:
        reader.close()


def _orc_rows(uri: str) -> int:
    if uri.startswith(_LOCAL):
        with contextlib.suppress(pa.ArrowException, OSError):
            return int(pao.ORCFile(uri.removeprefix(_LOCAL)).nrows)
    jvm, conf, path = session_hadoop(uri)
    orc = jvm.org.apache.orc.OrcFile
    reader = orc.createReader(path, orc.readerOptions(conf))
    try:
        return int(reader.getNumberOfRows())
    finally:
        reader.close()


ROW_COUNTS: Mapping[str, Callable[[str], int]] = {"parquet": _parquet_rows, "orc": _orc_rows}
"""By format: reads the row count from the footer of the file at a URI."""


def session_hadoop(uri: str) -> tuple[Any, Any, Any]:
    """The session's JVM, its Hadoop configuration, and ``uri`` as a Hadoop path."""
    context = _session(uri)
    jvm, conf = context._jvm, context._jsc.hadoopConfiguration()  # noqa: SLF001 - no public way
    return jvm, conf, jvm.org.apache.hadoop.fs.Path(uri)


def _session(wanted: str) -> Any:  # noqa: ANN401 - its ways to Java have no types
    context = SparkContext._active_spark_context  # noqa: SLF001 - PySpark has no public way
    if context is None:
        raise IllegalTransitionError(
            "the Spark session has ended", {"wanted": wanted}, "Start the job again."
        )
    return context
