"""The read-only port of a real job: the age of its open transactions, and a port in use."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from socket import create_server

import pyarrow as pa
import pytest
import urllib3
from pyspark.sql import SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import MissingRequirementError
from sluice.runtime.job.job import Job
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, values
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]

TIMEOUT_S = 20.0


def hanging(file: Path) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that does not return for partition 1 while the file exists."""

    def wait(batch: pa.RecordBatch) -> pa.RecordBatch:
        while 1 in batch.column("partition").to_pylist() and file.exists():
            time.sleep(0.05)  # a task has no event of the test
        return batch

    return wait


def job_of(
    spark: SparkSession, kafka: EmbeddedKafka, source: str, sink: str, directory: Path, port: int
) -> Job:
    job = Job(
        "ages",
        spark,
        checkpoint_dir=directory / "checkpoint",
        interval_s=0.2,
        regions=2,
        engine="micro-batch",
        metrics_port=port,
    )
    job.source(KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source])).map_batches(
        hanging(directory / "hang"), name="hanging"
    ).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap,
            topic=sink,
            transactional_id_prefix=f"ages-{sink}",
            transaction_timeout_s=TIMEOUT_S,
        )
    )
    return job


def test_a_hung_region_raises_the_alarm_of_the_transaction_that_waits_for_it(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Readers of the output wait for it; neither lag nor the region's own state shows that."""
    source, sink = topic(partitions=2), topic(partitions=2)
    (tmp_path / "hang").touch()
    given = [Record(value=b"%d" % n, partition=n % 2) for n in range(20)]
    produce(kafka.bootstrap, source, given)
    with (
        caplog.at_level(logging.WARNING),
        job_of(spark, kafka, source, sink, tmp_path, 0).start() as handle,
    ):
        address = wait_for(lambda: handle.metrics_address)
        region = f"kafka-{source}-0"

        def alarm() -> float:
            text = urllib3.request("GET", f"{address}/metrics").data.decode()
            rows = [line.rsplit(" ", 1) for line in text.splitlines()]
            name = "sluice_open_transaction_alarm"
            return max(
                (float(v) for n, v in rows if n.startswith(name) and region in n), default=0.0
            )

        wait_for(lambda: alarm() >= 0.5, what="the alarm", poll_s=0.2)
        wait_for(lambda: "50 % of its timeout" in caplog.text, what="the warning")
        (tmp_path / "hang").unlink()
        wait_for(lambda: len(values(kafka.bootstrap, sink)) == len(given), poll_s=0.5)
        wait_for(lambda: alarm() == 0.0, what="no alarm")
        handle.stop()
    assert sorted(values(kafka.bootstrap, sink)) == sorted(each.value for each in given)


def test_a_port_in_use_is_refused_before_anything_is_published(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, sink = topic(partitions=2), topic(partitions=2)
    with create_server(("127.0.0.1", 0)) as taken:
        job = job_of(spark, kafka, source, sink, tmp_path, taken.getsockname()[1])
        with (
            pytest.raises(MissingRequirementError, match="metrics_port"),
            job.start() as handle,
        ):
            handle.wait(PATIENCE_S)
    assert not list(tmp_path.rglob("_metadata*"))
