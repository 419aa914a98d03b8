"""Files that tasks write without a JVM, read back and compared with those that Spark writes."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice.connectors.hdfs.formats import avro, parquet
from sluice.connectors.hdfs.formats.text_formats import TEXT_CODECS
from sluice.connectors.hdfs.writing.partition_paths import PartitionPaths
from tests.kit.files.format_rows import RFC_4180, TEXT_COLUMNS, rows, task_format

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2400)]

_ZONE = "Europe/Rome"
_NAMES = ("parquet", "json", "csv")
_CODECS = {"parquet": parquet.CODECS} | dict.fromkeys(("json", "csv"), TEXT_CODECS)


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
    return rows().select(TEXT_COLUMNS) if name == "csv" else rows()


def _write(path: Path, name: str, batch: pa.RecordBatch, **options: str) -> Path:
    """A file of ours, its rows in two pieces, with the extension that its format says."""
    chosen = task_format(name, **options)
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
    if name == "csv":
        reader = reader.options(**RFC_4180)
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


@pytest.mark.parametrize("name", _NAMES)
def test_spark_reads_back_what_was_written(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Every type, nulls, nesting, non-ASCII text: equal to the last microsecond."""
    batch = _rows_for(name)
    _write(tmp_path / "ours", name, batch)
    frame = _frame(spark, batch)
    found = _read(spark, tmp_path / "ours", name, frame)
    assert _comparable(found) == _comparable(frame)


def test_spark_finds_the_same_schema_as_in_a_file_of_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Names, types and order come out of the file itself."""
    batch = rows()
    file = _write(tmp_path / "ours", "parquet", batch)
    _frame(spark, batch).coalesce(1).write.parquet(str(tmp_path / "theirs"))
    ours = spark.read.parquet(str(tmp_path / "ours"))
    theirs = spark.read.parquet(str(tmp_path / "theirs"))
    assert ours.schema == theirs.schema
    (their_file,) = (tmp_path / "theirs").glob("part-*")
    assert file.name.partition(".")[2] == their_file.name.partition(".")[2]


def test_json_is_spelt_as_spark_spells_it(spark: SparkSession, tmp_path: Path) -> None:
    """Line for line, by default options, but for timestamps and tiny decimals."""
    batch = rows().drop_columns(["tiny", "instant", "local", "person", "persons"])
    file = _write(tmp_path / "ours", "json", batch)
    _frame(spark, batch).coalesce(1).write.json(str(tmp_path / "theirs"))
    (theirs,) = (tmp_path / "theirs").glob("part-*")
    assert file.read_text("utf-8").splitlines() == theirs.read_text("utf-8").splitlines()


@pytest.mark.parametrize("name", _NAMES)
def test_every_compression_is_read_by_spark(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Text formats are decompressed by the name's extension alone."""
    batch = rows().select(["id", "text"]).slice(0, 4)
    for compression in _CODECS[name]:
        _write(tmp_path / "ours" / compression, name, batch, compression=compression)
    frame = _frame(spark, batch)
    found = _read(spark, tmp_path / "ours" / "*", name, frame)
    assert found.count() == frame.count() * len(_CODECS[name])
    assert _comparable(found.distinct()) == _comparable(frame)


def test_csv_options_mean_what_they_mean_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Header and separator, read with the same options."""
    options = {**RFC_4180, "header": "true", "sep": "|"}
    batch = pa.record_batch(
        {'a|"b': ["x|y", "it's", None, "\\", "", '"\\"|'], "n": [1, 2, 3, 4, 5, 6]}
    )
    _write(tmp_path / "ours", "csv", batch, **options)
    frame = _frame(spark, batch)
    found = spark.read.schema(frame.schema).options(**options).csv(str(tmp_path / "ours"))
    changed = [None if value == "" else value for value in batch.column(0).to_pylist()]
    expected = batch.set_column(0, batch.schema.names[0], pa.array(changed))
    assert _comparable(found) == _comparable(_frame(spark, expected))


def test_row_of_one_null_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own writer leaves such a row out of a CSV file."""
    batch = pa.record_batch({"s": pa.array(["x", None, "y"])})
    _write(tmp_path / "ours", "csv", batch)
    assert spark.read.schema("s string").csv(str(tmp_path / "ours")).count() == 3


@pytest.mark.parametrize("sep", ["\t", " ", "\x01", "\x7f", "-", ".", "1", "e"])
def test_rows_are_kept_whatever_separates_their_values(
    spark: SparkSession, tmp_path: Path, sep: str
) -> None:
    """Also a row of nulls alone, which may be a line of white space."""
    full = rows().select(TEXT_COLUMNS)
    nulls = [pa.nulls(2, field.type) for field in full.schema]
    batch = pa.concat_batches([full, pa.RecordBatch.from_arrays(nulls, schema=full.schema)])
    _write(tmp_path / "ours", "csv", batch, sep=sep)
    frame = _frame(spark, batch)
    reader = spark.read.schema(frame.schema).options(**RFC_4180, sep=sep)
    found = reader.csv(str(tmp_path / "ours"))
    assert _comparable(found) == _comparable(frame)


def test_avro_is_read_by_avros_own_java_library(spark: SparkSession, tmp_path: Path) -> None:
    """PySpark ships no Avro format, but the library under it; each codec that it knows."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
    expected = None
    for codec in avro.CODECS:
        if codec == "xz":
            continue  # Java's needs another library
        file = _write(tmp_path / codec, "avro", rows(), compression=codec)
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
        _write(tmp_path / "ours" / directory, "parquet", part)
    found = spark.read.parquet(str(tmp_path / "ours")).select("città", "hour", "value")
    assert _comparable(found) == _comparable(_frame(spark, batch))
