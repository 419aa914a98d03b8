"""What goes into files comes out of them: each format, by a Job's writers and by a drop-in's tasks,
staged and published as they are, read by Spark and by readers without it."""

import datetime
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import fastavro
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from sluice import HdfsSink
from sluice.connectors.hdfs.file_drop_in import FileDropIn, FileDropInSink
from sluice.connectors.hdfs.formats.choice import FORMAT_NAMES, TASK_FORMAT_NAMES
from sluice.connectors.hdfs.formats.spark_types import conform, spark_schema
from sluice.runtime.contracts import (
    CommitOutcome,
    RegisteredAttempt,
    SinkContext,
    SinkCoordinator,
    TaskScope,
)
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.storage.task_files import LocalTaskFiles
from tests.kit.files.format_rows import TEXT_COLUMNS, rows
from tests.kit.files.odd_values import FAR, NESTED, cells, odd

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2400)]

_ZONE = "Europe/Rome"
_PLACES = ("a/b", "50%", "ä ö", "x=y", None, "", "日本+&#?")
_WAYS = {"job": FORMAT_NAMES, "drop-in": TASK_FORMAT_NAMES}
_WRITTEN = [
    (way, format_name)
    for way, names in _WAYS.items()
    for format_name in names
    if format_name != "avro"
]
_GREGORIAN = datetime.date(1582, 10, 15)
_MICROS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_CSV = {"escape": '"', "header": "true"}
_OPTIONS: Mapping[tuple[str, str], dict[str, str]] = {
    ("job", "json"): _MICROS,
    ("job", "csv"): {**_MICROS, **_CSV},
    ("drop-in", "csv"): _CSV,
}
_WORDS = ("", None, "two\nlines", 'a,b;"c"', "a backslash \\", "and, quoted \\", "null")
_PLAIN = (
    "id",
    "int",
    "flag",
    "text",
    "words",
    "place",
)  # of which text files say the type by themselves
_SCOPE = TaskScope(
    job_uid="job",
    operator_id="op",
    batch=BatchKey(region="main", attempt_id=1, batch_id=1),
    checkpoint_id=1,
    committed_through=0,
    task="0.0",
)


class Registry:
    """Takes every attempt."""

    def register(self, attempt: RegisteredAttempt) -> float:
        """See `sluice.runtime.contracts.AttemptRegistry`."""
        del attempt
        return time.monotonic()


@pytest.fixture(autouse=True, scope="module")
def _time_zone(spark: SparkSession) -> Iterator[None]:
    wanted = {"session.timeZone": _ZONE, "timestampType": "TIMESTAMP_NTZ"}
    before = {name: spark.conf.get(f"spark.sql.{name}") for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(f"spark.sql.{name}", value)
    yield
    for name, old in before.items():
        spark.conf.set(f"spark.sql.{name}", str(old))


def given(format_name: str) -> pa.RecordBatch:
    """A row for each place; of a type that the format does not hold there is no column."""
    batch = rows()
    if format_name == "csv":
        batch = rows().select(TEXT_COLUMNS)
    elif format_name == "orc":
        batch = rows(first_day=_GREGORIAN)
    batch = batch.take(pa.array([number % batch.num_rows for number in range(len(_PLACES))]))
    numbered = batch.set_column(0, "id", pa.array(range(len(_PLACES)), pa.int64()))
    worded = numbered.append_column("words", pa.array(_WORDS, pa.string()))
    return worded.append_column("place", pa.array(_PLACES, pa.string()))


def published(
    spark: SparkSession,
    way: str,
    format_name: str,
    target: Path,
    batch: pa.RecordBatch | None = None,
) -> pa.RecordBatch:
    """Write the rows that are given, publish them, and give them back."""
    batch, options = batch or given(format_name), _OPTIONS.get((way, format_name), {})
    sink: HdfsSink | FileDropInSink
    entries: tuple[StateEntry, ...] | list[StateEntry]
    if way == "job":
        sink = HdfsSink(str(target), format=format_name, partition_by=["place"], options=options)
        frame = spark.createDataFrame(pa.Table.from_batches([batch]))
        sink.check_frame(frame)
        coordinator = claimed(sink)
        entries = sink.frame_writer().write(frame, _SCOPE, Registry()).committables
    else:
        ours = {"path": str(target), "fileFormat": format_name, "partitionBy": "place"}
        described = FileDropIn.from_options({**ours, **options}, session_zone=_ZONE)
        described.check(batch.schema)
        sink = FileDropInSink(options=described, files=LocalTaskFiles())
        coordinator = claimed(sink)
        writer = sink.writer_factory().open(_SCOPE, Registry())
        writer.write(batch.slice(0, 3))
        writer.write(batch.slice(3))
        entries = writer.pre_commit()
    reports = coordinator.committer.commit(entries, timeout_s=30, after_crash=False)
    coordinator.close()
    assert [report.outcome for report in reports] == [CommitOutcome.COMMITTED]
    return batch


def claimed(sink: HdfsSink | FileDropInSink) -> SinkCoordinator:
    """The driver's side, as a start leaves it."""
    coordinator = sink.coordinator()
    context = SinkContext(
        job_uid=_SCOPE.job_uid,
        job_name="round-trips",
        operator_id=_SCOPE.operator_id,
        checkpoint_uri="file:///none",
        leader_session_id="session",
    )
    coordinator.claim(context, timeout_s=30)
    return coordinator


def comparable(found: pa.Table | pa.RecordBatch | list[dict[str, Any]]) -> list[str]:
    """Values as text, by row and column; instants in UTC."""
    if not isinstance(found, list):
        found = found.to_pylist(maps_as_pydicts="strict")
    return [
        f"{row['id']}. {name}={_plain(row[name])!r}"
        for row in sorted(found, key=lambda row: int(row["id"]))
        for name in sorted(row)
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, datetime.datetime):
        at = value.astimezone(datetime.UTC) if value.tzinfo else value
        return at.replace(tzinfo=None).isoformat(timespec="microseconds")
    return value


def expected(batch: pa.RecordBatch, **changed: Any) -> list[str]:
    """As given, but that nobody can tell an empty directory name from null."""
    changes = {"place": lambda place: place or None, **changed}
    return comparable(
        [
            {name: changes.get(name, lambda same: same)(value) for name, value in row.items()}
            for row in batch.to_pylist(maps_as_pydicts="strict")
        ]
    )


def _by_spark(way: str, format_name: str) -> dict[str, Any]:
    """What Spark changes in CSV: the reader takes an empty string for null, the writer trims."""
    if format_name != "csv":
        return {}
    return {"words": lambda word: word or None} | ({"text": _trimmed} if way == "job" else {})


def _trimmed(text: str | None) -> str | None:
    """Spark's CSV writer cuts white space from both ends, unless options say otherwise."""
    return text if text is None else text.strip()


@pytest.mark.parametrize(("way", "format_name"), _WRITTEN)
def test_spark_reads_every_value_as_it_was(
    spark: SparkSession, tmp_path: Path, way: str, format_name: str
) -> None:
    """Nulls, decimals, instants, wall clocks, nesting, bytes, and directories of any name."""
    target = tmp_path / "lake" / "rows"
    batch = published(spark, way, format_name, target)
    schema = spark.createDataFrame(pa.Table.from_batches([batch])).schema
    reader = spark.read.schema(schema).options(**_OPTIONS.get((way, format_name), {}))
    if format_name == "csv":
        reader = reader.option("multiLine", "true")  # a value has two lines
    found = reader.format(format_name).load(str(target)).toArrow()
    assert comparable(found) == expected(batch, **_by_spark(way, format_name))


def _left_out(way: str, format_name: str) -> list[str]:
    """Columns that a format lacks, or that Spark's writers and readers of it change by themselves."""
    if format_name == "orc":
        return ["gap", "eve", "twice"]
    found = ["blob", "text", "nul", *NESTED] if format_name == "csv" else []
    return found + (FAR if way == "job" and format_name in ("json", "csv") else [])


@pytest.mark.extended
@pytest.mark.parametrize(("way", "format_name"), _WRITTEN)
def test_spark_reads_odd_values_as_they_were(
    spark: SparkSession, tmp_path: Path, way: str, format_name: str
) -> None:
    """Every type; of any year, of any depth, with nothing in it, with a key twice."""
    target, batch = tmp_path / "lake" / "rows", odd(*_left_out(way, format_name))
    batch = conform(batch, spark_schema(batch.schema))
    placed = batch.append_column("place", pa.array(["x"] * batch.num_rows))
    published(spark, way, format_name, target, placed)
    schema = spark.createDataFrame(pa.Table.from_batches([placed])).schema
    reader = spark.read.schema(schema).options(**_OPTIONS.get((way, format_name), {}))
    found = reader.format(format_name).load(str(target)).toArrow()
    assert cells(found, batch) == cells(batch, batch)
    if format_name == "parquet":  # which says all about its types by itself
        assert cells(ds.dataset(str(target)).to_table(), batch) == cells(batch, batch)


@pytest.mark.parametrize("way", _WAYS)
def test_avro_is_read_as_it_was(spark: SparkSession, tmp_path: Path, way: str) -> None:
    """By fastavro; a directory's value is part of the path alone."""
    target = tmp_path / "lake" / "rows"
    batch = published(spark, way, "avro", target).drop_columns("place")
    found: list[dict[str, Any]] = []
    for path in target.rglob("*.avro"):
        with path.open("rb") as stream:
            found += [cast(dict[str, Any], row) for row in fastavro.reader(stream)]
    assert comparable(found) == expected(batch)


@pytest.mark.parametrize(("way", "format_name"), _WRITTEN)
def test_arrow_reads_what_the_format_says_by_itself(
    spark: SparkSession, tmp_path: Path, way: str, format_name: str
) -> None:
    """All columns of Parquet; ORC has no wall clocks, so Spark keeps their microseconds; text files
    have numbers, booleans and text."""
    target = tmp_path / "lake" / "rows"
    batch = published(spark, way, format_name, target)
    places = ds.partitioning(pa.schema([("place", pa.string())]), flavor="hive")
    changed: dict[str, Any] = {}
    schema: pa.Schema | None = None
    if format_name == "orc":
        changed = {"local": _micros}
    elif format_name in ("json", "csv"):
        batch = batch.select(_PLAIN)
        schema = batch.schema
    if (way, format_name) == ("job", "csv"):
        changed = {"text": _trimmed}
    dataset = ds.dataset(
        str(target), schema=schema, format=_FORMS[format_name], partitioning=places
    )
    found = dataset.to_table(columns=batch.schema.names)
    assert comparable(found) == expected(batch, **changed)


def _micros(at: datetime.datetime | None) -> int | None:
    since = None if at is None else at - datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - wall clock
    return None if since is None else since // datetime.timedelta(microseconds=1)


_FORMS: Mapping[str, ds.FileFormat] = {
    "parquet": ds.ParquetFileFormat(),
    "orc": ds.OrcFileFormat(),
    "json": ds.JsonFileFormat(),
    "csv": ds.CsvFileFormat(
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types={"text": pa.string(), "flag": pa.bool_(), "int": pa.int32()},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ),
}
