"""Checkpoints on an object store as users have them: the example, savepoints and the commands.

The session's Spark has no Hadoop client of an object store.
"""

import runpy
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice import ConfigError, Count, Job, KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.savepoint.savepoint import open_savepoint
from sluice.runtime.savepoint.savepoint_directory import verify
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, values
from tests.kit.objects.s3_fixture import S3Bucket
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.integration

_ROOT = Path(__file__).parents[2]


def _copy(source: str, output: str, bootstrap: str, *arguments: str) -> None:
    line = ["kafka_to_kafka", "--bootstrap", bootstrap, "--input", source, "--output", output]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [*line, "--interval", "0.2", "--until-end", *arguments])
        runpy.run_path(str(_ROOT / "examples" / "kafka_to_kafka.py"), run_name="__main__")


def _sluice(*arguments: str) -> str:
    command = [sys.executable, "-m", "sluice", *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_the_example_needs_the_environment_alone(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, s3_environment: S3Bucket
) -> None:
    """Two runs: the second one continues from the first one's last checkpoint; then the commands."""
    assert spark
    source, output = topic(partitions=2), topic(partitions=2)
    checkpoint = f"{s3_environment.uri}/jobs/copy"
    wanted = []
    for run in range(2):
        sent = [f"{run}-{each}".encode() for each in range(20)]
        produce(kafka.bootstrap, source, sent)
        wanted += [value + b"!" for value in sent]
        _copy(source, output, kafka.bootstrap, "--checkpoint", checkpoint)
        assert sorted(values(kafka.bootstrap, output)) == sorted(wanted)
    assert checkpoint in _sluice("checkpoint", "list", checkpoint)
    assert checkpoint in _sluice("checkpoint", "clean", checkpoint)


def test_a_savepoint_lies_in_the_bucket_and_begins_a_new_job(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, s3: S3Bucket
) -> None:
    """By options instead of the environment. The counts of the keys go on where they were."""
    source, output = topic(partitions=2), topic(partitions=2)
    sent = [
        Record(key=b"a", value=b"x"),
        Record(key=b"b", value=b"x"),
        Record(key=b"a", value=b"x"),
    ]
    produce(kafka.bootstrap, source, sent)
    first = _counting(spark, kafka.bootstrap, source, output, s3, f"{s3.uri}/one").start()
    try:
        wait_for(lambda: len(values(kafka.bootstrap, output)) >= 2, what="the counts")
        savepoint = first.savepoint()
    finally:
        first.stop()
    assert savepoint.startswith(f"{s3.uri}/one/savepoints/savepoint-")
    opened = open_savepoint(savepoint, storage_options=s3.storage_options)
    verify(opened)
    assert opened.record.keyed_files
    before = len(values(kafka.bootstrap, output))
    produce(kafka.bootstrap, source, sent[:2])
    second = _counting(
        *(spark, kafka.bootstrap, source, output, s3, f"{s3.uri}/two"),
        restore_from=savepoint,
        bounded=True,
    )
    second.run()
    assert sorted(values(kafka.bootstrap, output)[before:]) == [b"2", b"3"]


def _counting(
    spark: SparkSession,
    bootstrap: str,
    source: str,
    output: str,
    s3: S3Bucket,
    checkpoint: str,
    *,
    restore_from: str | None = None,
    bounded: bool = False,
) -> Job:
    job = Job(
        "counts",
        spark,
        checkpoint_dir=checkpoint,
        storage_options=s3.storage_options,
        interval_s=0.2,
        restore_from=restore_from,
    )
    records = job.source(KafkaSource(bootstrap_servers=bootstrap, topics=[source], bounded=bounded))
    counts = records.key_by("key", partitioned=True).aggregate(count=Count())
    counts.map_batches(_as_text).sink(
        KafkaSink(bootstrap_servers=bootstrap, topic=output, transactional_id_prefix=output)
    )
    return job


def _as_text(counts: pa.RecordBatch) -> pa.RecordBatch:
    text = counts["count"].cast(pa.string()).cast(pa.binary())
    return pa.RecordBatch.from_pydict({"key": counts["key"], "value": text})


def counted(records: DataFrame) -> DataFrame:
    return records.groupBy("key").count().selectExpr("key", "cast(count AS string) AS value")


def test_a_transform_with_state_is_refused_where_spark_cannot_write(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    s3: S3Bucket,
) -> None:
    """Before anything is written."""
    source, output = topic(), topic()
    job = Job(
        "batches",
        spark,
        checkpoint_dir=f"{s3.uri}/batches",
        storage_options=s3.storage_options,
        engine="micro-batch",
    )
    records = job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    )
    records.transform(counted, output_mode="update").sink(
        KafkaSink(bootstrap_servers=kafka.bootstrap, topic=output, transactional_id_prefix=output)
    )
    with pytest.raises(ConfigError, match=r"Spark cannot write.*s3a://.*hadoop-aws"):
        job.run()
