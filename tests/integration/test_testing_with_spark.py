"""`run_until_end`, a job in the test process up to the records of the moment; `local_spark`."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sluice import Job, KafkaConnection, KafkaSink, KafkaSource, RegionGivenUpError
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.testing.local_spark import local_spark
from sluice.connectors.testing.topics import Topic, created_topics
from sluice.runtime.errors import WaitedTooLongError
from sluice.runtime.graph.pipeline import BatchFunction
from sluice.testing import assert_exactly_once, run_until_end
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration


def copy_job(
    spark: SparkSession, orders: Topic, copies: Topic, directory: Path, function: BatchFunction
) -> Job:
    """Unbounded."""
    job = Job("until-end", spark, checkpoint_dir=directory / "checkpoint", interval_s=0.2)
    source = KafkaSource(bootstrap_servers=orders.bootstrap, topics=[orders.name])
    sink = KafkaSink(
        bootstrap_servers=copies.bootstrap, topic=copies.name, transactional_id_prefix=copies.name
    )
    job.source(source).map_batches(function).sink(sink)
    return job


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def failing(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError("no such column")


def late(batch: pa.RecordBatch) -> pa.RecordBatch:
    threading.Event().wait(20)
    return batch


def test_an_endless_job_ends_at_the_records_of_the_moment_and_resumes_there(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    with created_topics(KafkaConnection(bootstrap_servers=kafka.bootstrap)) as create:
        orders, copies = create("orders", partitions=2), create("copies", partitions=2)
        job = copy_job(spark, orders, copies, tmp_path, same)
        for _ in range(2):
            orders.send(f"order {number}" for number in range(300))
            result = run_until_end(job, timeout=PATIENCE_S)
            assert result.last_checkpoint_id > 0
            assert_exactly_once(orders, copies)


@pytest.mark.extended
def test_a_job_that_fails_or_takes_too_long_is_stopped_with_an_error(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    with created_topics(KafkaConnection(bootstrap_servers=kafka.bootstrap)) as create:
        orders, copies = create("orders"), create("copies")
        orders.send(["1"])
        with pytest.raises(WaitedTooLongError, match="did not end in time"):
            run_until_end(copy_job(spark, orders, copies, tmp_path / "late", late), timeout=0.5)
        with pytest.raises(RegionGivenUpError, match="no such column"):
            run_until_end(copy_job(spark, orders, copies, tmp_path / "failing", failing))
        assert copies.records() == []
        assert not [each for each in threading.enumerate() if each.name.startswith("sluice-job")]


def test_a_session_that_runs_gets_the_formats_and_is_not_stopped(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """A project may have a session fixture of its own: a process has one Spark."""
    with created_topics(KafkaConnection(bootstrap_servers=kafka.bootstrap)) as create:
        orders = create("orders")
        orders.send(["1", "2"])
        with local_spark(tmp_path) as session:
            assert session.sparkContext is spark.sparkContext
            servers = {"kafka.bootstrap.servers": orders.bootstrap}
            read = session.read.format("sluice-kafka").options(**servers, subscribe=orders.name)
            assert sorted(bytes(row.value) for row in read.load().collect()) == [b"1", b"2"]
    assert spark.range(3).count() == 3
