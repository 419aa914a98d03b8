"""A Job that writes files, alone and beside Kafka: whole, once, in Spark's own layout."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

from sluice import HdfsSink, KafkaSink, KafkaSource
from sluice.connectors.hdfs.committing.file_lease import LEASE_FILE
from sluice.connectors.hdfs.tools.files_cli import app
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.errors import ConfigError, FencedError
from sluice.runtime.job.job import Job, Stream
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, unique, values
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp"]


def exclaim(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Append ``!`` to each value that is not null; the columns of a file."""
    value = batch.column("value")
    shouted = pc.binary_join_element_wise(value, pa.scalar(b"!", value.type), b"")
    index = batch.schema.get_field_index("value")
    return batch.set_column(index, "value", shouted).select(COLUMNS)


def described(frame: DataFrame) -> DataFrame:
    """Text columns, and one with names that a path must escape."""
    place = F.concat(F.lit("a/b=ü "), F.col("partition").cast("string"))
    return frame.select(F.col("value").cast("string").alias("value"), place.alias("place"))


FAST = {"json": {}, "avro": {"compression": "deflate"}}  # snappy needs another library to read


def avro_rows(directory: Path) -> list[dict[str, Any]]:
    """All rows, with the values of their directories as these are spelt."""
    rows: list[dict[str, Any]] = []
    for path in directory.rglob("part-*.avro"):
        places = path.relative_to(directory).parts[:-1]
        values = dict(place.partition("=")[::2] for place in places)
        with path.open("rb") as stream:
            rows += [{**cast(dict[str, Any], row), **values} for row in fastavro.reader(stream)]
    return rows


def bounded(spark: SparkSession, kafka: EmbeddedKafka, source: str, directory: Path) -> Any:
    """A job that ends with its input, and its stream."""
    job = Job("files", spark, checkpoint_dir=str(directory / "checkpoint"), interval_s=0.2)
    stream = job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    )
    return job, stream


def run(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    source: str,
    directory: Path,
    pipeline: Callable[[Stream], object],
) -> None:
    job, stream = bounded(spark, kafka, source, directory)
    pipeline(stream)
    job.run()


def files_of(directory: Path) -> list[str]:
    """Every name below a directory that is not a directory."""
    return sorted(
        path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()
    )


def staged_below(directory: Path) -> list[str]:
    return [name for name in files_of(directory) if not name.endswith(f"/{LEASE_FILE}")]


def test_a_chained_job_writes_files_once_and_continues(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, target = topic(partitions=2), tmp_path / "out" / "orders"
    first = [Record(value=b"a", key=b"k", partition=0), Record(value=None, key=None, partition=1)]
    for records in (first, [Record(value=b"late", partition=0)]):
        produce(kafka.bootstrap, source, records)
        run(
            spark,
            kafka,
            source,
            tmp_path,
            lambda stream: stream.map_batches(exclaim).sink(HdfsSink(str(target))),
        )
    found = spark.read.parquet(str(target)).orderBy("partition", "offset").collect()
    assert [(r.key, r.value, r.topic, r.partition, r.offset) for r in found] == [
        (b"k", b"a!", source, 0, 0),
        (None, b"late!", source, 0, 1),
        (None, None, source, 1, 0),
    ]
    assert all(name.endswith(".snappy.parquet") for name in files_of(target))
    assert staged_below(tmp_path / "out" / ".sluice-staging-orders") == []


def test_kafka_and_files_get_the_same_rows_of_one_run_of_the_frame(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """The tasks write to Kafka what they hand on to the files; chained, and through Spark; to its
    writers, and to tasks of ours."""
    source = topic(partitions=2)
    produce(kafka.bootstrap, source, [Record(value=b"%d" % n, partition=n % 2) for n in range(50)])

    def drawn(batch: pa.RecordBatch) -> pa.RecordBatch:
        texts = [f"{unique('row')}" for _ in range(batch.num_rows)]
        return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], ["value"])

    def through_spark(frame: DataFrame) -> DataFrame:
        return frame.select(F.expr("uuid()").alias("value"))

    def chained(stream: Stream) -> Stream:
        return stream.map_batches(drawn)

    def by_spark(stream: Stream) -> Stream:
        return stream.transform(through_spark)

    for name, step, format_name in (
        ("chained", chained, "avro"),
        ("frame", by_spark, "json"),
        ("frame-in-tasks", by_spark, "avro"),
    ):
        output, target = topic(partitions=2), tmp_path / name / "rows"
        kafka_sink = KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=output, transactional_id_prefix=output
        )
        files = HdfsSink(str(target), format=format_name, options=FAST[format_name])
        run(
            spark,
            kafka,
            source,
            tmp_path / name,
            lambda stream, step=step, sinks=(kafka_sink, files): (
                step(stream).sink(sinks[0]).sink(sinks[1])
            ),
        )
        if format_name == "avro":
            rows = [row["value"] for row in avro_rows(target)]
        else:
            rows = [row.value for row in spark.read.json(str(target)).collect()]
        assert len(set(rows)) == 50
        assert sorted(rows) == sorted(v.decode() for v in values(kafka.bootstrap, output) if v)


@pytest.mark.parametrize("format_name", ["parquet", "orc", "json", "csv"])
def test_partition_directories_are_sparks_own(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, format_name: str
) -> None:
    """Values that a path must escape come back as they were, in each format."""
    source, target = topic(partitions=3), tmp_path / "out" / "rows"
    produce(kafka.bootstrap, source, [Record(value=b"%d" % n, partition=n % 3) for n in range(9)])
    run(
        spark,
        kafka,
        source,
        tmp_path,
        lambda stream: stream.transform(described).sink(
            HdfsSink(str(target), format=format_name, partition_by=["place"])
        ),
    )
    reader = spark.read.schema("value string, place string").format(format_name)
    found = reader.load(str(target)).collect()
    assert sorted((row.value, row.place) for row in found) == sorted(
        (str(n), f"a/b=ü {n % 3}") for n in range(9)
    )


def test_avro_is_written_by_the_tasks_where_spark_has_no_writer(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """PySpark ships none: the same directories, whole files, and nothing left in staging."""
    source, target = topic(partitions=3), tmp_path / "out" / "rows"
    produce(kafka.bootstrap, source, [Record(value=b"%d" % n, partition=n % 3) for n in range(9)])
    sink = HdfsSink(
        str(target),
        format="avro",
        partition_by=["place"],
        columns=["value", "place"],
        options=FAST["avro"],
    )
    run(spark, kafka, source, tmp_path, lambda stream: stream.transform(described).sink(sink))
    assert sorted((row["value"], row["place"]) for row in avro_rows(target)) == sorted(
        (str(n), f"a%2Fb%3Dü {n % 3}") for n in range(9)
    )
    assert staged_below(tmp_path / "out" / ".sluice-staging-rows") == []


def test_files_on_hdfs(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    hdfs: EmbeddedHdfs,
) -> None:
    """The same, with the checkpoints on a local disk; Avro goes there over WebHDFS."""
    source, target = topic(partitions=2), f"{hdfs.uri}/{unique('data')}/rows"
    for number in range(2):
        produce(kafka.bootstrap, source, [Record(value=b"%d" % number, partition=number)])
        run(
            spark,
            kafka,
            source,
            tmp_path,
            lambda stream: stream.map_batches(exclaim).sink(HdfsSink(target)),
        )
    spark.sparkContext._jsc.hadoopConfiguration().set(  # noqa: SLF001
        "dfs.namenode.http-address", hdfs.web_uri.removeprefix("http://")
    )
    run(
        spark,
        kafka,
        source,
        tmp_path / "avro",
        lambda stream: stream.map_batches(exclaim).sink(HdfsSink(f"{target}-avro", format="avro")),
    )
    avro = spark.read.format("binaryFile").load(f"{target}-avro").collect()
    assert {bytes(file.content[:4]) for file in avro} == {b"Obj\x01"}
    assert sorted(row.value for row in spark.read.parquet(target).collect()) == [b"0!", b"1!"]


@pytest.mark.parametrize(
    ("format_name", "left"),
    [("parquet", "value IS NULL"), ("csv", "value IS NULL"), ("csv", "false")],
)
def test_a_batch_whose_rows_are_all_left_out_writes_no_file(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    format_name: str,
    left: str,
) -> None:
    """Spark writes an empty file for it, or a header; no reader sees one."""
    source, target = topic(), tmp_path / "out" / "rows"
    options = {"header": "true"} if format_name == "csv" else {}
    produce(kafka.bootstrap, source, [b"a", b"b"])
    run(
        spark,
        kafka,
        source,
        tmp_path,
        lambda stream: stream.transform(
            lambda frame: frame.filter(left).selectExpr("cast(value AS string) AS value")
        ).sink(HdfsSink(str(target), format=format_name, options=options)),
    )
    assert staged_below(tmp_path / "out") == []


@pytest.mark.extended
def test_the_example_writes_what_its_help_says(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, target, checkpoint = topic(partitions=2), tmp_path / "lake" / "rows", tmp_path / "chk"
    produce(kafka.bootstrap, source, [Record(value=b"%d" % n, partition=n % 2) for n in range(4)])
    flags = {
        "--bootstrap": kafka.bootstrap,
        "--input": source,
        "--path": str(target),
        "--checkpoint": str(checkpoint),
        "--interval": "0.2",
        "--partition-by": "partition",
    }
    words = [word for pair in flags.items() for word in pair]
    script = Path(__file__).parents[2] / "examples" / "kafka_to_hdfs.py"
    subprocess.run([sys.executable, script, *words, "--until-end"], check=True, timeout=PATIENCE_S)
    found = pq.read_table(target).to_pylist()
    assert sorted((row["value"], row["partition"], row["offset"]) for row in found) == [
        (b"0!", 0, 0),
        (b"1!", 1, 0),
        (b"2!", 0, 1),
        (b"3!", 1, 1),
    ]
    answer = CliRunner().invoke(app, ["list", str(checkpoint), "--json"])
    assert {line["standing"] for line in json.loads(answer.stdout)["files"]} == {"published"}


@pytest.mark.parametrize(
    ("format_name", "column", "partition_by"),
    [
        ("csv", "array(value) AS odd", []),
        ("parquet", "map(key, value) AS odd", ["odd"]),
        ("avro", "map(offset, value) AS odd", []),
        ("avro", "value AS `oddità`", []),
        ("avro", "array(value) AS odd", ["odd"]),
    ],
)
def test_what_a_format_does_not_take_is_said_before_anything_is_written(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    format_name: str,
    column: str,
    partition_by: list[str],
) -> None:
    job, stream = bounded(spark, kafka, "never-read", tmp_path)
    sink = HdfsSink(str(tmp_path / "out" / "rows"), format=format_name, partition_by=partition_by)
    stream.transform(lambda frame: frame.selectExpr("key", column)).sink(sink)
    with pytest.raises(ConfigError, match="odd"):
        job.run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("format_name", "options"),
    [
        ("parquet", {"compression": "oddly"}),
        ("orc", {"compression": "oddly"}),
        ("json", {"compression": "oddly"}),
        ("json", {"timestampFormat": "oddly"}),
        ("csv", {"dateFormat": "oddly"}),
        ("csv", {"header": "oddly"}),
        ("csv", {"encoding": "oddly"}),
    ],
)
def test_options_that_a_writer_does_not_take_are_said_before_anything_is_written(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    tmp_path: Path,
    format_name: str,
    options: dict[str, str],
) -> None:
    """As Spark reads them, which it does when it begins to write: of each batch again."""
    job, stream = bounded(spark, kafka, "never-read", tmp_path)
    sink = HdfsSink(str(tmp_path / "out" / "rows"), format=format_name, options=options)
    stream.transform(lambda frame: frame.selectExpr("cast(value AS string)")).sink(sink)
    with pytest.raises(ConfigError, match=f"refuses these options.*{next(iter(options))}"):
        job.run()
    assert list(tmp_path.iterdir()) == []


def test_options_that_a_writer_takes_are_no_reason_to_refuse(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    sink = HdfsSink(
        str(tmp_path / "out" / "rows"),
        format="csv",
        partition_by=["place"],
        options={
            "Compression": "gzip",
            "header": True,
            "dateFormat": "dd.MM.yyyy",
            "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
            "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss",
            "maxRecordsPerFile": 10,
        },
    )
    run(spark, kafka, topic(), tmp_path, lambda stream: stream.transform(described).sink(sink))


@pytest.mark.parametrize("format_name", ["parquet", "orc"])
def test_fields_of_a_struct_that_differ_in_case_alone_are_said_before_anything_is_written(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, format_name: str
) -> None:
    """Spark writes them into such files, and fails when it reads one, as to merge it."""
    job, stream = bounded(spark, kafka, "never-read", tmp_path)
    sink = HdfsSink(str(tmp_path / "out" / "rows"), format=format_name)
    struct = "named_struct('odd', 1, 'Odd', 2) AS both"
    stream.transform(lambda frame: frame.selectExpr("value", struct)).sink(sink)
    with pytest.raises(ConfigError, match=r"(?i)odd` already exists"):
        job.run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("settings", [{}, {"partition_by": ["day"]}, {"columns": ["day"]}])
def test_columns_that_differ_in_case_alone_are_said_before_anything_is_written(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, settings: dict[str, list[str]]
) -> None:
    job, stream = bounded(spark, kafka, "never-read", tmp_path)
    sink = HdfsSink(str(tmp_path / "out" / "rows"), **settings)
    columns = ("value", "topic AS day", "topic AS Day")
    stream.transform(lambda frame: frame.selectExpr(*columns)).sink(sink)
    with pytest.raises(ConfigError, match=r"(?i)`day`"):
        job.run()
    assert list(tmp_path.iterdir()) == []


def test_columns_are_checked_before_anything_is_written(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """A misspelt partition column is named with the nearest right one; nothing is made."""
    sink = HdfsSink(str(tmp_path / "out" / "rows"), partition_by=["partitoin"])
    for step in (
        lambda stream: stream.map_batches(exclaim),
        lambda stream: stream.transform(lambda frame: frame),
    ):
        job, stream = bounded(spark, kafka, topic(), tmp_path)
        step(stream).sink(sink)
        with pytest.raises(ConfigError, match="Did you mean partition"):
            job.run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
def test_lease_guards_outputs_a_job_on_a_copy_of_a_running_job_s_checkpoints_is_refused(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """It is the same job: it would publish the same rows once more, and delete what the other one
    stages. The one that runs continues, and each record is one row."""
    source, target, count = topic(partitions=1), tmp_path / "out" / "orders", 60
    produce(kafka.bootstrap, source, [Record(value=b"a", partition=0)] * count)

    def job(directory: str) -> Job:
        made = Job("files", spark, checkpoint_dir=str(tmp_path / directory), interval_s=0.2)
        few = {"maxOffsetsPerTrigger": "1"}  # it runs for longer than one looks at it
        stream = made.source(
            KafkaSource(
                bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True, options=few
            )
        )
        stream.sink(HdfsSink(str(target)))
        return made

    with ThreadPoolExecutor(1) as background:
        running = background.submit(job("checkpoint").run)
        wait_for(lambda: running.done() or files_of(target), what="the first rows")
        shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
        with pytest.raises(FencedError, match="a copy is the same job"):
            job("copy").run()
        assert not running.done()
        running.result()
    offsets = [row.offset for row in spark.read.parquet(str(target)).select("offset").collect()]
    assert sorted(offsets) == list(range(count))
