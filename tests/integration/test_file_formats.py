"""Files that tasks write without a JVM, read back and compared with those that Spark writes."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice.connectors.hdfs.formats import orc, parquet
from sluice.connectors.hdfs.formats.choice import file_format
from sluice.connectors.hdfs.formats.compression import TEXT_CODECS
from sluice.connectors.hdfs.writing.partition_paths import PartitionPaths
from tests.format_rows import TEXT_COLUMNS, rows

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2400)]

_LOSSLESS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX"} | {
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
}
_OPTIONS: dict[str, dict[str, str]] = {
    "parquet": {},
    "orc": {},
    "json": _LOSSLESS,
    "csv": _LOSSLESS,
}
_ZONE = "Europe/Rome"
_GREGORIAN = datetime.date(1582, 10, 15)
_WHOLE_SECOND = datetime.datetime(1890, 1, 1, tzinfo=datetime.UTC)  # ORC has no fractions then
_CODECS = {"parquet": parquet.CODECS, "orc": orc.CODECS} | dict.fromkeys(
    ("json", "csv"), TEXT_CODECS
)


@pytest.fixture(autouse=True, scope="module")
def _time_zone(spark: SparkSession) -> Any:
    wanted = {"session.timeZone": _ZONE, "timestampType": "TIMESTAMP_NTZ"}
    before = {name: spark.conf.get(f"spark.sql.{name}") for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(f"spark.sql.{name}", value)
    yield
    for name, value in before.items():
        spark.conf.set(f"spark.sql.{name}", str(value))


def _rows_for(name: str) -> pa.RecordBatch:
    if name == "csv":
        return rows().select(TEXT_COLUMNS)
    if name == "orc":
        return rows(long_ago=_WHOLE_SECOND, first_day=_GREGORIAN).drop_columns("deep")
    return rows()


def _write(path: Path, name: str, batch: pa.RecordBatch, options: dict[str, str]) -> Path:
    """A file of ours, its rows in two pieces, with the extension that its format says."""
    chosen = file_format(name, options, session_zone=_ZONE)
    path.mkdir(parents=True, exist_ok=True)
    file = path / f"part-0{chosen.extension}"
    with file.open("xb") as stream:
        writer = chosen.open(stream, batch.schema)
        writer.write(batch.slice(0, 2))
        writer.write(batch.slice(2))
        assert writer.close() == batch.num_rows
    return file


def _frame(spark: SparkSession, batch: pa.RecordBatch) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_batches([batch]))


def _read(spark: SparkSession, path: Path, name: str, like: DataFrame) -> DataFrame:
    reader = spark.read.schema(like.schema)
    if name in ("json", "csv"):
        reader = reader.option("multiLine", "false")
    return reader.format(name).load(str(path))


def _key(row: dict[str, Any]) -> str:
    return repr(row.get("id", row))


def _comparable(frame: DataFrame) -> list[str]:
    """Values as text, in order of rows: two NaN are equal then. Arrow gives values as they are."""
    return sorted(
        f"{number}. {name}={value!r}"
        for number, row in enumerate(sorted(frame.toArrow().to_pylist(), key=_key))
        for name, value in row.items()
    )


@pytest.mark.parametrize("name", _OPTIONS)
def test_spark_reads_back_what_was_written(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Every type, nulls, nesting, non-ASCII text: equal to the last microsecond."""
    batch = _rows_for(name)
    _write(tmp_path / "ours", name, batch, _OPTIONS[name])
    frame = _frame(spark, batch)
    found = _read(spark, tmp_path / "ours", name, frame)
    assert _comparable(found) == _comparable(frame)


@pytest.mark.parametrize("name", ["parquet", "orc"])
def test_spark_finds_the_same_schema_as_in_a_file_of_its_own(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Names, types and order come out of the file itself."""
    batch = _rows_for(name)
    file = _write(tmp_path / "ours", name, batch, {})
    _frame(spark, batch).coalesce(1).write.format(name).save(str(tmp_path / "theirs"))
    ours = spark.read.format(name).load(str(tmp_path / "ours"))
    theirs = spark.read.format(name).load(str(tmp_path / "theirs"))
    assert ours.schema == theirs.schema
    (their_file,) = (tmp_path / "theirs").glob("part-*")
    assert file.name.partition(".")[2] == their_file.name.partition(".")[2]


@pytest.mark.parametrize("name", ["json", "csv"])
def test_text_is_spelt_as_spark_spells_it(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Line for line, by default options; but numbers with an exponent are only equal in value."""
    batch = _rows_for(name).drop_columns(["float", "double"])
    if name == "csv":
        batch = batch.slice(0, 4)  # the last row has white space at its ends, which Spark cuts
    file = _write(tmp_path / "ours", name, batch, {})
    _frame(spark, batch).coalesce(1).write.format(name).save(str(tmp_path / "theirs"))
    (theirs,) = (tmp_path / "theirs").glob("part-*")
    assert file.read_text("utf-8").splitlines() == theirs.read_text("utf-8").splitlines()


@pytest.mark.parametrize("name", _OPTIONS)
def test_every_compression_is_read_by_spark(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Text formats are decompressed by the name's extension alone."""
    batch = rows().select(["id", "text"]).slice(0, 4)
    for compression in _CODECS[name]:
        _write(tmp_path / "ours" / compression, name, batch, {"compression": compression})
    frame = _frame(spark, batch)
    found = _read(spark, tmp_path / "ours" / "*", name, frame)
    assert found.count() == frame.count() * len(_CODECS[name])
    assert _comparable(found.distinct()) == _comparable(frame)


def test_csv_options_mean_what_they_mean_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Header, separator, quote, escape and a word for null, read with the same options."""
    options = {"header": "true", "sep": "|", "quote": "'", "escape": "^", "nullValue": "\\N"}
    batch = pa.record_batch(
        {"a|'b": ["x|y", "it's", None, "^", "", "'^'|"], "n": [1, 2, 3, 4, 5, 6]}
    )
    _write(tmp_path / "ours", "csv", batch, options)
    frame = _frame(spark, batch)
    found = spark.read.schema(frame.schema).options(**options).csv(str(tmp_path / "ours"))
    assert _comparable(found) == _comparable(frame)


def test_row_of_one_null_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own writer leaves such a row out of a CSV file."""
    batch = pa.record_batch({"s": pa.array(["x", None, "y"])})
    _write(tmp_path / "ours", "csv", batch, {})
    assert spark.read.schema("s string").csv(str(tmp_path / "ours")).count() == 3


def test_avro_is_read_by_avros_own_java_library(spark: SparkSession, tmp_path: Path) -> None:
    """PySpark ships no Avro format, but the library under it; each codec that it knows."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
    expected = None
    for codec in ("uncompressed", "snappy", "deflate", "zstandard", "bzip2", "xz"):
        if codec == "xz":
            continue  # Java's needs another library
        file = _write(tmp_path / codec, "avro", rows(), {"compression": codec})
        reader = jvm.org.apache.avro.file.DataFileReader(
            jvm.java.io.File(str(file)), jvm.org.apache.avro.generic.GenericDatumReader()
        )
        found = []
        while reader.hasNext():
            found.append(reader.next().toString())
        assert len(found) == 5
        expected = expected or found
        assert found == expected
        reader.close()


_PARTITIONED = ("id", "byte", "int", "float", "double", "flag", "day", "instant", "local")
_PARTITIONED += ("price", "tiny")
_ODD = ("", None, "/x:=%", "è ü/日本", "a\\b'\"{}[]^#*?", "\x01\x7f", " x ", "🙂", "+&;,|<>~", ".")


@pytest.mark.parametrize("columns", [_PARTITIONED, ("text",)], ids=["types", "characters"])
def test_partition_directories_are_named_as_spark_names_them(
    spark: SparkSession, tmp_path: Path, columns: tuple[str, ...]
) -> None:
    """Every type, null, special and non-ASCII characters."""
    batch = rows()
    if columns == ("text",):
        batch = pa.record_batch({"text": pa.array(_ODD), "rest": range(len(_ODD))})
    else:
        batch = batch.select([*columns, "text"])
    _frame(spark, batch).write.partitionBy(*columns).parquet(f"{tmp_path}/theirs")
    root = tmp_path / "theirs"
    theirs = {str(file.parent.relative_to(root)) for file in root.glob("**/*.parquet")}
    partitions = PartitionPaths(columns=columns, session_zone=_ZONE)
    partitions.check(batch.schema)
    assert {directory for directory, _ in partitions.split(batch)} == theirs


def test_spark_reads_our_partitioned_directory(spark: SparkSession, tmp_path: Path) -> None:
    """Two levels, non-ASCII values, null: the rows are those that were written."""
    batch = pa.record_batch(
        {
            "città": ["Forlì", None, "東京/1", "a=b", "Forlì"],
            "hour": pa.array([7, 8, None, 7, 7]),
            "value": ["a", "b", "c", "d", "e"],
        }
    )
    partitions = PartitionPaths(columns=("città", "hour"), session_zone=_ZONE)
    partitions.check(batch.schema)
    for directory, part in partitions.split(batch):
        _write(tmp_path / "ours" / directory, "parquet", part, {})
    found = spark.read.parquet(str(tmp_path / "ours")).select("città", "hour", "value")
    assert _comparable(found) == _comparable(_frame(spark, batch))
