"""Takes over ``start()`` and ``save()`` of Spark's writers for the formats of Sluice.

The user's code stays Spark's: ``df.writeStream.format("sluice-kafka")….start()``. Spark itself asks
a Python data source only when a batch runs, and refuses output mode update and the default save
mode for all of them. Here wrong options are refused at once, in the user's process. A query in
update mode gets a batch callback as its sink, and `FrameWrites` writes a frame. Other formats, and
sessions without `sluice.install`, are left alone.
"""

import functools
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from sluice.runtime.errors import ConfigError, StreamError
from sluice.runtime.process.failed_tasks import raised_in
from sluice.runtime.spark.drop_in.active_queries import require_micro_batches
from sluice.runtime.spark.drop_in.drop_in_queries import DropInQueries
from sluice.runtime.spark.drop_in.frame_writes import FrameWrite, FrameWrites
from sluice.runtime.spark.session.spark_session import (
    SHUFFLE_RETRY,
    active_session,
    require_setting,
    spark_hindrance,
)

__all__ = ["FormatCheck", "options_of", "take_over_writers"]

_PARTITIONS = "partitionBy"
_MOST_DIGITS = 19  # of a 64-bit number


class FormatCheck(Protocol):
    """Checks a write of one format before it begins. Driver, the user's thread."""

    def __call__(self, options: Mapping[str, str], schema: StructType, *, mode: str) -> None:
        """Raise ConfigError for wrong options or columns, or a mode that the sink lacks.

        Args:
            mode: output mode, in lower case.
        """
        ...


class Installed(Protocol):
    """The result of `sluice.install` for an application."""

    @property
    def queries(self) -> DropInQueries: ...

    @property
    def frames(self) -> FrameWrites: ...


InstalledIn = Callable[[SparkSession], Installed | None]
"""Finds it by a session; None: Sluice is not installed in its application."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WriterSettings:
    """The settings of a writer.

    Attributes:
        options: by the names that the user wrote.
        partitions: columns of ``.partitionBy(…)``.
        mode: output mode or save mode, in lower case.
        java: the writer in the JVM.
    """

    frame: DataFrame
    format_name: str
    options: Mapping[str, str]
    partitions: tuple[str, ...]
    mode: str
    java: Any

    @classmethod
    def of(cls, writer: DataStreamWriter | DataFrameWriter, *, mode: str) -> Self:
        """Read the fields of Spark's writer, which has no public way to them.

        Args:
            mode: Spark's name of the field.
        """
        java: Any = writer._jwrite  # noqa: SLF001 - not in Python
        jvm: Any = writer._spark._jvm  # noqa: SLF001 - as above
        of = jvm.scala.jdk.javaapi.CollectionConverters.asJava
        columns = _field(java, "partitioningColumns")
        return cls(
            frame=writer._df,  # noqa: SLF001 - as above
            format_name=str(_field(java, "source")).lower(),
            options=options_of(java, writer._spark),  # noqa: SLF001 - as above
            partitions=tuple(of(columns.get())) if columns.isDefined() else (),
            mode=str(_field(java, mode).toString()).lower(),
            java=java,
        )

    def all_options(self, path: str | None) -> dict[str, str]:
        """The options, with the path and the partition columns, which Spark does not pass to a
        Python data source."""
        given = {name.lower(): name for name in self.options}
        found = dict(self.options)
        if path is not None:
            found[given.get("path", "path")] = path
        if self.partitions:
            name = given.get(_PARTITIONS.lower(), _PARTITIONS)
            columns = ",".join(self.partitions)
            if found.get(name, columns) != columns:
                raise ConfigError(
                    "partition columns are given twice",
                    {"option": found[name], "call": columns},
                    "Remove the option partitionBy, or the call of partitionBy.",
                )
            found[name] = columns
        return found


def take_over_writers(checks: Mapping[str, FormatCheck], installed_in: InstalledIn) -> None:
    """From now on Spark's ``start`` and ``save`` are ours for these formats. Safe to repeat.

    Args:
        checks: by Spark's name of the format, in lower case.
    """
    started = getattr(DataStreamWriter.start, "__wrapped__", DataStreamWriter.start)
    saved = getattr(DataFrameWriter.save, "__wrapped__", DataFrameWriter.save)
    writers: Any = DataStreamWriter, DataFrameWriter
    writers[0].start = _start_of(started, checks, installed_in)
    writers[1].save = _save_of(saved, checks, installed_in)


def _start_of(
    started: Callable[..., StreamingQuery],
    checks: Mapping[str, FormatCheck],
    installed_in: InstalledIn,
) -> Callable[..., StreamingQuery]:
    @functools.wraps(started)
    def start(  # Spark's own signature
        self: DataStreamWriter,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - Spark's name
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,  # noqa: ANN401 - any value that Spark takes
    ) -> StreamingQuery:
        self.options(**options)
        if outputMode is not None:
            self.outputMode(outputMode)
        if partitionBy is not None:
            self.partitionBy(partitionBy)
        if format is not None:
            self.format(format)
        if queryName is not None:
            self.queryName(queryName)
        found = installed_in(self._spark)
        if found is None:
            return started(self, path)
        found.queries.watch(self._spark)  # a query of any sink may write frames in its callback
        given = _WriterSettings.of(self, mode="outputMode")
        if given.format_name not in checks:
            return started(self, path)
        # Spark looks for a format's name in the active session, which a thread may not have.
        with active_session(self._spark):
            return started(_checked(given, path, checks[given.format_name], found.queries))

    return start


def _save_of(
    saved: Callable[..., None], checks: Mapping[str, FormatCheck], installed_in: InstalledIn
) -> Callable[..., None]:
    @functools.wraps(saved)
    def save(  # Spark's own signature
        self: DataFrameWriter,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - Spark's name
        mode: str | None = None,
        partitionBy: str | list[str] | None = None,
        **options: Any,  # noqa: ANN401 - any value that Spark takes
    ) -> None:
        self.mode(mode).options(**options)
        if partitionBy is not None:
            self.partitionBy(partitionBy)
        if format is not None:
            self.format(format)
        found = installed_in(self._spark)
        given = None if found is None else _WriterSettings.of(self, mode="curmode")
        if found is None or given is None or given.format_name not in checks:
            saved(self, path)
            return
        found.frames.save(_frame_write(given, path, checks[given.format_name]))

    return save


def _frame_write(given: _WriterSettings, path: str | None, check: FormatCheck) -> FrameWrite:
    """A checked call of ``save()``; ConfigError."""
    for name in ("bucketColumnNames", "sortColumnNames", "clusteringColumns"):
        if _field(given.java, name).isDefined():
            raise ConfigError(
                "this sink has no buckets, sorting or clustering",
                {"format": given.format_name, "given": name},
                "Remove the call of bucketBy, sortBy or clusterBy.",
            )
    options = given.all_options(path)
    batch_id = _taken(options, "batchId")
    if batch_id is not None and not (batch_id.strip().isdecimal() and len(batch_id) < _MOST_DIGITS):
        raise ConfigError(
            "an option has a value that is not valid",
            {"option": "batchId", "value": batch_id},
            "Give the second argument of the foreachBatch function.",
        )
    check(options, given.frame.schema, mode=given.mode)
    return FrameWrite(
        frame=given.frame,
        format_name=given.format_name,
        batch_id=None if batch_id is None else int(batch_id),
        location=_taken(options, "checkpointLocation"),
        options=options,
    )


def _taken(options: dict[str, str], name: str) -> str | None:
    """Remove an option, by its name in any case; None: it is not given."""
    given = next((each for each in options if each.lower() == name.lower()), None)
    return None if given is None else options.pop(given)


def _checked(
    given: _WriterSettings, path: str | None, check: FormatCheck, queries: DropInQueries
) -> DataStreamWriter:
    """A writer for this start alone: the user may start theirs again, with other options.

    Raises:
        ConfigError: wrong options, columns, modes or settings.
    """
    options = given.all_options(path)
    require_micro_batches(_field(given.java, "trigger").getClass().getSimpleName(), options)
    check(options, given.frame.schema, mode=given.mode)
    spark = given.frame.sparkSession
    queries.make_sink(given.format_name, options, lambda name: str(spark.conf.get(name)))
    location = next((v for n, v in options.items() if n.lower() == "checkpointlocation"), None)
    if location is None:
        raise ConfigError(
            "the drop-in sink needs checkpointLocation",
            {"format": given.format_name},
            "Set it as an option of writeStream; a session-wide default does not reach the sink.",
        )
    hindrance = spark_hindrance(spark, location)
    if hindrance is not None:
        raise ConfigError(
            "Spark cannot write its logs to this checkpointLocation",
            {"checkpointLocation": location, "error": hindrance},
            "Use a location on hdfs: or file:, or add Hadoop's client of this store to "
            "spark.jars.packages (s3a: org.apache.hadoop:hadoop-aws) and write s3a: for s3:.",
        )
    require_setting(SHUFFLE_RETRY, spark.conf.get(SHUFFLE_RETRY, None))
    writer = DataStreamWriter(given.frame).options(**options).outputMode(given.mode)
    writer._jwrite.trigger(_field(given.java, "trigger"))  # noqa: SLF001 - a value of the JVM
    if given.mode != "update":
        return writer.format(given.format_name)
    return writer.foreachBatch(
        functools.partial(
            _write_batch,
            functools.partial(
                queries.write_batch,
                format_name=given.format_name,
                location=location,
                options=options,
            ),
        )
    )


def _write_batch(write: Callable[[DataFrame, int], None], frame: DataFrame, batch_id: int) -> None:
    """The batch callback of a query in update mode; Spark shows the text of its error.

    Spark matches that text with a regular expression that overflows the stack on a long one, so it
    gets a short one without a cause.
    """
    try:
        write(frame, batch_id)
    except StreamError as err:
        raise err.with_traceback(None) from None
    except Exception as err:  # noqa: BLE001 - any error of Spark or of a function
        text = "".join(traceback.format_exception(err))
        raise StreamError(
            "a batch of this query failed",
            {"batch_id": batch_id, "error": raised_in(text.partition("\n\tat ")[0])},
            "Correct the function if one raised the error; the next start of the query resumes.",
        ) from None


def options_of(java: Any, spark: SparkSession) -> dict[str, str]:  # noqa: ANN401 - py4j's view
    """The options of a writer or reader of the JVM, by the names that the user wrote."""
    jvm: Any = spark._jvm  # noqa: SLF001 - not in Python
    of = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    return dict(of(_field(java, "extraOptions").originalMap()))


def _field(java: Any, name: str) -> Any:  # noqa: ANN401 - py4j's view
    kind = java.getClass()  # of a stream; a frame's has its fields from its super class
    holder = kind.getSuperclass() if kind.getSimpleName().startswith("DataFrame") else kind
    field = holder.getDeclaredField(name)
    field.setAccessible(True)
    return field.get(java)
