"""Merges staged files in the session's JVM: rows by Spark, Avro block by block."""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar

from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice.connectors.hdfs.rolling.merging import FileMerger, JoiningMerger, MergedFile
from sluice.connectors.hdfs.staging.staged_names import HIDDEN
from sluice.connectors.hdfs.staging.staged_output import rename_staged
from sluice.connectors.hdfs.writing.frame_writer import StagingDirectory
from sluice.connectors.hdfs.writing.spark_saver import (
    COMMITTER,
    ROW_COUNTS,
    SparkFrameSaver,
    chosen,
    failures,
    micros_in_parquet,
    refusals,
    session_hadoop,
)
from sluice.runtime.failpoints import failpoint

__all__ = ["AppendingMerger", "SparkFileMerger", "layout_of", "merger_for"]

_CALENDAR = "spark.sql.avro.datetimeRebaseModeInWrite"
_MERGED = "merged"
_GROUPS_AT_ONCE = 32  # in one Spark job; the time to plan one grows faster than their number
_PATTERN = re.compile(r"([\\{}\[\]*?])")


def merger_for(saver: SparkFrameSaver) -> FileMerger:
    """The merger that keeps values of a saver's format exactly."""
    if saver.format_name == "avro":
        return AppendingMerger()
    if saver.format_name in ("json", "csv"):
        return JoiningMerger()
    return SparkFileMerger(saver=saver)


def layout_of(saver: SparkFrameSaver) -> Callable[[DataFrame], str]:
    """Returns the layout of a frame's files, from format, options, columns and types: files of
    one layout may be merged."""

    def layout(frame: DataFrame) -> str:
        schema = chosen(frame, saver.columns).schema.json()
        options = sorted(saver.options.items())
        if saver.format_name == "avro":
            options.append((_CALENDAR, frame.sparkSession.conf.get(_CALENDAR) or ""))
        text = repr((saver.format_name, saver.partition_by, options, schema))
        return sha256(text.encode()).hexdigest()[:16]

    return layout


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkFileMerger:
    """`FileMerger` that reads and writes rows, so that a merged file is like a large one.

    One Spark job merges many groups, because starting a job takes longer than most merges. Not
    exact for text formats, which lose types.

    Attributes:
        saver: wrote them.
    """

    saver: SparkFrameSaver
    counts_rows: ClassVar[bool] = True

    def merge(
        self, frame: DataFrame, groups: Sequence[Sequence[str]], directory: StagingDirectory
    ) -> list[list[MergedFile]]:
        """See `FileMerger`."""
        found: list[list[MergedFile]] = []
        for first in range(0, len(groups), _GROUPS_AT_ONCE):
            part = groups[first : first + _GROUPS_AT_ONCE]
            below = f"{_MERGED}-{first:05d}"
            names = self._written(frame, part, directory, below)
            failpoint("mid-merge")
            found += [list(self._listed(directory, f"{below}/{name}")) for name in names]
        directory.make_names_durable(file.staged for files in found for file in files)
        return found

    def _written(
        self,
        frame: DataFrame,
        groups: Sequence[Sequence[str]],
        directory: StagingDirectory,
        below: str,
    ) -> list[str]:
        """One job; names of the groups' directories."""
        uri = f"{directory.uri}/{below}"
        schema = self._schema(frame)
        key = _unused(schema)
        names = [f"{key}={number}" for number in range(len(groups))]
        with (
            refusals(self.saver.format_name, ()),
            failures(uri),
            micros_in_parquet(frame.sparkSession),
        ):
            parts = [self._rows_of(frame, schema, sources, directory) for sources in groups]
            if len(parts) == 1:
                self._writer(parts[0].coalesce(1)).save(f"{uri}/{names[0]}")
                return names
            keyed = [part.withColumn(key, F.lit(number)) for number, part in enumerate(parts)]
            rows = functools.reduce(DataFrame.unionAll, keyed)
            tasks = min(len(groups), frame.sparkSession.sparkContext.defaultParallelism)
            # All rows of a group in one task, which makes one file of them.
            self._writer(rows.repartition(tasks, key)).partitionBy(key).save(uri)
        return names

    def _writer(self, rows: DataFrame) -> DataFrameWriter:
        writer = rows.write.format(self.saver.format_name).options(**self.saver.options)
        return writer.options(**COMMITTER)

    def _schema(self, frame: DataFrame) -> StructType:
        """The schema of the files, which lack the columns to partition by."""
        whole = chosen(frame, self.saver.columns).schema
        return StructType(
            [field for field in whole.fields if field.name not in self.saver.partition_by]
        )

    def _rows_of(
        self,
        frame: DataFrame,
        schema: StructType,
        sources: Sequence[str],
        directory: StagingDirectory,
    ) -> DataFrame:
        reader = frame.sparkSession.read.format(self.saver.format_name).schema(schema)
        paths = [_literal(f"{directory.fs.uri}/{source}") for source in sources]
        return reader.options(**self.saver.options).load(paths)

    def _listed(self, directory: StagingDirectory, below: str) -> Iterator[MergedFile]:
        for entry in directory.fs.entries(f"{directory.path}/{below}"):
            if entry.is_directory or entry.name.startswith(HIDDEN):
                continue
            path = f"{below}/{entry.name}"
            rows = ROW_COUNTS[self.saver.format_name](f"{directory.uri}/{path}")
            staged = rename_staged(directory.fs, directory.path, path)
            directory.fs.make_durable(f"{directory.path}/{staged}")
            yield MergedFile(staged=staged, length_bytes=entry.length_bytes, rows=rows)


@dataclass(frozen=True, slots=True)
class AppendingMerger:
    """`FileMerger` for Avro: blocks are copied as they are, and no value is decoded."""

    counts_rows: ClassVar[bool] = False

    def merge(
        self, frame: DataFrame, groups: Sequence[Sequence[str]], directory: StagingDirectory
    ) -> list[list[MergedFile]]:
        """See `FileMerger`."""
        del frame
        found: list[list[MergedFile]] = []
        for number, sources in enumerate(groups):
            _, _, written = sources[0].rpartition("/")
            staged = f"{_MERGED}/{number:05d}/{written}"
            with failures(f"{directory.uri}/{staged}"):
                _append(
                    [f"{directory.fs.uri}/{source}" for source in sources],
                    f"{directory.uri}/{staged}",
                )
            path = f"{directory.path}/{staged}"
            failpoint("mid-merge")
            directory.fs.make_durable(path)
            length = directory.fs.length_bytes(path) or 0
            found.append([MergedFile(staged=staged, length_bytes=length, rows=None)])
        directory.make_names_durable(file.staged for files in found for file in files)
        return found


def _append(sources: Sequence[str], uri: str) -> None:
    jvm, conf, path = session_hadoop(uri)
    avro = jvm.org.apache.avro
    fs = path.getFileSystem(conf)
    reader = avro.generic.GenericDatumReader
    writer = avro.file.DataFileWriter(avro.generic.GenericDatumWriter())

    def append(source: str, *, is_first: bool) -> None:
        opened = fs.open(jvm.org.apache.hadoop.fs.Path(source))
        with contextlib.closing(avro.file.DataFileStream(opened, reader())) as part:
            if is_first:
                _describe_alike(writer, part, avro.file.CodecFactory)
                writer.create(part.getSchema(), fs.create(path, True))
            writer.appendAllFrom(part, False)

    with contextlib.closing(writer):
        for number, source in enumerate(sources):
            append(source, is_first=number == 0)


def _describe_alike(writer: Any, part: Any, codecs: Any) -> None:  # noqa: ANN401 - Java objects
    writer.setCodec(codecs.fromString(part.getMetaString("avro.codec") or "null"))
    # Spark records the calendar of the file's dates there.
    for key in part.getMetaKeys():
        if not key.startswith("avro."):
            writer.setMeta(key, part.getMeta(key))


def _literal(path: str) -> str:
    """The path, escaped so that Spark's reader takes it as no pattern."""
    return _PATTERN.sub(r"\\\1", path)


def _unused(schema: StructType) -> str:
    """A column name that the rows do not have, whatever the case."""
    taken = {name.lower() for name in schema.names}
    name = "sluice_group"
    while name in taken:
        name += "_"
    return name
