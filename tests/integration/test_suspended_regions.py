"""A Job in several regions of which one fails for good: suspended, shown, and brought back."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import RegionsSuspendedError, UnreachableError
from sluice.runtime.failover.restart_strategies import FixedDelayRestart
from sluice.runtime.job.job import Job
from sluice.runtime.service.service_client import CoordinatorClient, command_address
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique
from tests.kit.waiting import join, wait_for

pytestmark = pytest.mark.integration

PARTITIONS = 3
RECORDS = 30
SICK = 1
LONGEST_S = 600.0


def sick_until(cured: Path, released: Path) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Fails one partition until a file is there; another one waits with its own for another."""

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        partition = batch.column("partition")
        if pc.any(pc.equal(partition, SICK)).as_py() and not cured.exists():
            raise ValueError("this partition is sick")
        until_s = time.monotonic() + LONGEST_S
        waits = pc.any(pc.equal(partition, SICK + 1)).as_py()
        while waits and not released.exists() and time.monotonic() < until_s:
            time.sleep(0.05)  # a task knows of the file by looking
        return batch

    return run


class Copy:
    """A bounded copy of three partitions in three regions, that suspends the sick one."""

    def __init__(self, kafka: EmbeddedKafka, topic: TopicFactory, directory: Path) -> None:
        self.kafka = kafka
        self.source = topic(partitions=PARTITIONS)
        self.sink = topic(partitions=PARTITIONS)
        self.prefix = unique("suspended")
        self.checkpoint = directory / "checkpoint"
        self.cured = directory / "cured"
        self.released = directory / "released"
        self.sick = f"kafka-{self.source}-{SICK}"
        produce(
            kafka.bootstrap,
            self.source,
            [Record(value=b"%d" % n, partition=n % PARTITIONS) for n in range(RECORDS)],
        )

    def run(self, spark: SparkSession) -> None:
        job = Job(
            "suspended",
            spark,
            engine="micro-batch",
            checkpoint_dir=str(self.checkpoint),
            interval_s=0.2,
            regions=PARTITIONS,
            restart_strategy=FixedDelayRestart(attempts=0),
            on_region_failure="suspend",
        )
        job.source(
            KafkaSource(bootstrap_servers=self.kafka.bootstrap, topics=[self.source], bounded=True)
        ).map_batches(sick_until(self.cured, self.released)).sink(
            KafkaSink(
                bootstrap_servers=self.kafka.bootstrap,
                topic=self.sink,
                transactional_id_prefix=self.prefix,
            )
        )
        job.run()

    def written(self) -> list[int]:
        return sorted(int(record.value or b"") for record in read(self.kafka.bootstrap, self.sink))


@pytest.fixture
def copy(kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path) -> Copy:
    return Copy(kafka, topic, tmp_path)


@pytest.mark.extended
def test_a_bounded_job_ends_without_its_suspended_region_and_says_so(
    spark: SparkSession, copy: Copy
) -> None:
    copy.released.touch()
    with pytest.raises(RegionsSuspendedError, match=f"regions={copy.sick} ") as ended:
        copy.run(spark)
    assert f"not_written_from={copy.source}-{SICK}:0" in str(ended.value)
    assert "this partition is sick" in str(ended.value)
    assert copy.written() == [n for n in range(RECORDS) if n % PARTITIONS != SICK]
    copy.cured.touch()
    copy.run(spark)
    assert copy.written() == list(range(RECORDS))


def test_a_suspended_region_is_brought_back_by_command(spark: SparkSession, copy: Copy) -> None:
    """While the job runs: it is shown with its lag, comes back where it stood, is read whole."""
    seen: list[dict[str, object]] = []

    def look_and_restart() -> None:
        fs = LocalFileSystem(copy.checkpoint)

        def suspended_region() -> dict[str, object] | None:
            try:
                with CoordinatorClient(command_address(fs), deadline_s=1.0) as client:
                    regions = client.status()["job"]["regions"]
            except UnreachableError:
                return None  # it has only begun
            found: dict[str, object] = next(r for r in regions if r["region"] == copy.sick)
            return found if found["suspended"] and found["lag_records"] else None

        seen.append(wait_for(suspended_region, what="a suspended region"))
        copy.cured.touch()
        with CoordinatorClient(command_address(fs), deadline_s=120.0) as client:
            client.restart([], timeout_s=120.0)
        copy.released.touch()

    operator = threading.Thread(target=look_and_restart, daemon=True)
    operator.start()
    copy.run(spark)
    join(operator, timeout_s=LONGEST_S)
    (shown,) = seen
    assert shown["lag_records"] == RECORDS // PARTITIONS
    assert shown["lags"] == {f"{copy.source}-{SICK}": RECORDS // PARTITIONS}
    assert copy.written() == list(range(RECORDS))
    assert not list(copy.checkpoint.glob("_command*"))
