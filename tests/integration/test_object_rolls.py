"""Files that roll over epochs, and complete partitions, in an object store: without a rename."""

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from sluice import HdfsSink, Job, KafkaSource, PartitionCommit, Roll, install
from sluice.connectors.hdfs.tools.files_cli import app
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce
from tests.kit.objects.published_objects import PublishedObjects
from tests.kit.objects.s3_fixture import S3Bucket

pytestmark = [pytest.mark.integration, pytest.mark.extended]

_RECORDS = 600


def _rows(data: bytes, key: str) -> list[dict[str, Any]]:
    if key.endswith(".parquet"):
        found: list[dict[str, Any]] = pq.read_table(io.BytesIO(data)).to_pylist()
        return found
    if key.endswith(".avro"):
        return list(fastavro.reader(io.BytesIO(data)))  # type: ignore[arg-type]
    return [json.loads(line) for line in data.splitlines()]


def _job(
    spark: SparkSession, kafka: EmbeddedKafka, source: str, directory: Path, sink: HdfsSink
) -> Job:
    job = Job("rolls", spark, checkpoint_dir=str(directory / "chk"), interval_s=0.2)
    read = KafkaSource(
        bootstrap_servers=kafka.bootstrap,
        topics=[source],
        bounded=True,
        options={"maxOffsetsPerTrigger": "100"},
    )
    job.source(read).transform(
        lambda frame: frame.selectExpr("CAST(value AS STRING) AS value", "partition", "timestamp")
    ).sink(sink)
    return job


@pytest.mark.parametrize("form", ["parquet", "json", "avro"])
def test_files_with_decision_rolled_files_hold_each_row_once(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    s3_environment: S3Bucket,
    tmp_path: Path,
    form: str,
) -> None:
    """Many epochs become one file for each partition; nothing stays open or staged at the end."""
    source = topic(partitions=2)
    records = [Record(value=b"%d" % n, partition=n % 2) for n in range(_RECORDS)]
    produce(kafka.bootstrap, source, records)
    sink = HdfsSink(
        f"{s3_environment.uri}/lake/orders",
        format=form,
        partition_by=["partition"],
        columns=["value", "partition"],
        roll=Roll(size="64m", age=3600),
    )
    _job(spark, kafka, source, tmp_path, sink).run()

    seen = PublishedObjects(s3_environment)
    keys = seen.keys("lake/orders/")
    rows = [row for key in keys for row in _rows(seen.read(key), key)]
    assert sorted(int(row["value"]) for row in rows) == list(range(_RECORDS))
    assert len(keys) == 2, "one file for each partition"
    assert seen.open_uploads() == []
    answer = CliRunner().invoke(app, ["list", str(tmp_path / "chk"), "--json"])
    assert {line["standing"] for line in json.loads(answer.stdout)["files"]} == {"published"}


def test_partitions_are_marked_after_their_files(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    s3_environment: S3Bucket,
    tmp_path: Path,
) -> None:
    """By process time: each partition gets its success file, once its files are completed."""
    source = topic(partitions=2)
    records = [Record(value=b"%d" % n, partition=n % 2) for n in range(100)]
    produce(kafka.bootstrap, source, records)
    sink = HdfsSink(
        f"{s3_environment.uri}/lake/orders",
        partition_by=["partition"],
        columns=["value", "partition"],
        partition_commit=PartitionCommit(trigger="process-time"),
    )
    _job(spark, kafka, source, tmp_path, sink).run()

    seen = PublishedObjects(s3_environment)
    keys = seen.keys("lake/orders/")
    for partition in (0, 1):
        assert f"lake/orders/partition={partition}/_SUCCESS" in keys
    values = sorted(int(row["value"]) for row in seen.parquet_rows("lake/orders/"))
    assert values == list(range(100))


def test_a_query_writes_files_by_uploads(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    s3: S3Bucket,
    tmp_path: Path,
) -> None:
    """The drop-in format, with Hadoop's names of the options."""
    source = topic(partitions=2)
    records = [Record(value=b"%d" % n, partition=n % 2) for n in range(100)]
    produce(kafka.bootstrap, source, records)
    install(spark)
    options = {
        "fs.s3a.endpoint": s3.endpoint,
        "fs.s3a.access.key": s3.environment["AWS_ACCESS_KEY_ID"],
        "fs.s3a.secret.key": s3.environment["AWS_SECRET_ACCESS_KEY"],
    }
    frame = (
        spark.readStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        frame.selectExpr("CAST(value AS STRING) AS value")
        .writeStream.format("sluice-files")
        .options(**options)
        .option("path", f"{s3.uri}/lake/orders")
        .option("fileFormat", "json")
        .option("checkpointLocation", str(tmp_path / "chk"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seen = PublishedObjects(s3)
    rows = [row for key in seen.keys("lake/orders/") for row in _rows(seen.read(key), key)]
    assert sorted(int(row["value"]) for row in rows) == list(range(100))
    assert seen.open_uploads() == []
