"""A Job in several regions: one fails, and the others continue deciding without it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from sluice import HdfsSink, KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.contracts import FailureReason
from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.errors import ConfigError
from sluice.runtime.job.job import Job
from sluice.runtime.job.job_cli import app as job_commands
from tests.integration.test_job_failures import TASK_ATTEMPTS, took_turn
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique

pytestmark = pytest.mark.integration

PARTITIONS = 3
RECORDS = 30
SICK = 1
_TRANSACTION_TIMEOUT_S = 16.0  # the shortest that a start accepts is 15


def failing(directory: Path, times: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that fails ``times`` epochs with records of one partition."""

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        is_sick = pc.any(pc.equal(batch.column("partition"), SICK)).as_py()
        if is_sick and took_turn(directory, times * TASK_ATTEMPTS):
            raise ValueError("not this time")
        return batch

    return run


@dataclass
class Decided:
    """A listener that keeps who was skipped in each decision, and how often each was begun."""

    skipped: list[Mapping[str, FailureReason]] = field(default_factory=list)
    attempts: Mapping[str, int] = field(default_factory=dict)

    def on_progress(self, progress: Progress) -> None:
        if progress.state is State.DECIDED:
            self.skipped.append(progress.skipped)
        self.attempts = progress.attempts or self.attempts


def _pools(spark: SparkSession) -> set[str]:
    pools = spark.sparkContext._jsc.sc().getAllPools()  # noqa: SLF001 - not in Python
    return {pools.apply(number).name() for number in range(pools.size())}


def test_one_region_fails_and_the_others_continue(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, sink = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    turns = tmp_path / "turns"
    turns.mkdir()
    produce(
        kafka.bootstrap,
        source,
        [Record(value=b"%d" % n, partition=n % PARTITIONS) for n in range(RECORDS)],
    )
    decided = Decided()
    job = Job(
        "regions",
        spark,
        engine="micro-batch",
        checkpoint_dir=str(tmp_path / "checkpoint"),
        interval_s=0.2,
        tolerable_failures=0,
        regions=PARTITIONS,
        checkpoint_handler=RegionalCheckpointHandler(max_failed_ratio=0.9),
        listeners=[decided],
    )
    (
        job.source(KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True))
        .map_batches(failing(turns, times=2))
        .sink(
            KafkaSink(
                bootstrap_servers=kafka.bootstrap,
                topic=sink,
                transactional_id_prefix=unique("regions"),
            )
        )
        .sink(
            HdfsSink(
                tmp_path / "out" / "rows",
                columns=["value", "partition"],
                partition_by=["partition"],
            )
        )
    )
    job.run()
    written = sorted(
        (int(record.value or b""), record.partition) for record in read(kafka.bootstrap, sink)
    )
    assert written == [(n, n % PARTITIONS) for n in range(RECORDS)]
    rows = spark.read.parquet(str(tmp_path / "out" / "rows")).collect()
    assert sorted((int(row.value), row.partition) for row in rows) == written
    sick = f"kafka-{source}-{SICK}"
    assert f"regions-{sick}" in _pools(spark), "each region has a pool of its own"
    assert any(skipped.get(sick) is FailureReason.ERROR for skipped in decided.skipped)
    assert {name for skipped in decided.skipped for name in skipped} == {sick}
    others = {name: count for name, count in decided.attempts.items() if name != sick}
    assert len(others) == PARTITIONS - 1
    assert set(others.values()) == {1}, "their queries are never touched"


@pytest.mark.extended
def test_transaction_timeout_a_region_that_waits_for_a_slow_one_is_not_decided_too_late(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Its transaction is aborted by the broker meanwhile: both read again, and none is lost."""
    source, sink = topic(partitions=2), topic(partitions=2)
    turns = tmp_path / "turns"
    turns.mkdir()
    given = [Record(value=b"%d" % n, partition=n % 2) for n in range(RECORDS)]
    produce(kafka.bootstrap, source, given)

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        if pc.any(pc.equal(batch.column("partition"), 0)).as_py() and took_turn(turns, 1):
            time.sleep(_TRANSACTION_TIMEOUT_S + 3)  # the broker looks once a second
        return batch

    job = Job(
        "slow",
        spark,
        engine="micro-batch",
        checkpoint_dir=str(tmp_path / "checkpoint"),
        interval_s=0.2,
        regions=2,
        timeout_s=60.0,
        tolerable_failures=3,
    )
    (
        job.source(KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True))
        .map_batches(slow)
        .sink(
            KafkaSink(
                bootstrap_servers=kafka.bootstrap,
                topic=sink,
                transactional_id_prefix=unique("slow"),
                transaction_timeout_s=_TRANSACTION_TIMEOUT_S,
            )
        )
    )
    job.run()
    assert sorted(int(record.value or b"") for record in read(kafka.bootstrap, sink)) == list(
        range(RECORDS)
    )


@pytest.mark.extended
def test_a_transform_that_is_rescaled_by_force_fails_over_in_parts(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, sink = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    turns = tmp_path / "turns"
    turns.mkdir()
    produce(
        kafka.bootstrap,
        source,
        [Record(value=b"%d" % n, partition=n % PARTITIONS) for n in range(RECORDS)],
    )
    fail = failing(turns, times=2)

    def rebalanced(frame: DataFrame) -> DataFrame:
        columns = frame.select("value", "partition").repartition(2)
        return columns.mapInArrow(lambda batches: map(fail, batches), columns.schema)

    decided = Decided()
    job = Job(
        "rescaled",
        spark,
        checkpoint_dir=str(tmp_path / "checkpoint"),
        interval_s=0.2,
        tolerable_failures=0,
        regions=PARTITIONS,
        checkpoint_handler=RegionalCheckpointHandler(max_failed_ratio=0.9),
        listeners=[decided],
    )
    job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    ).transform(rebalanced, force_rescale=True).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap,
            topic=sink,
            transactional_id_prefix=unique("rescaled"),
        )
    )
    job.run()
    written = sorted(
        (int(record.value or b""), record.partition) for record in read(kafka.bootstrap, sink)
    )
    assert written == [(n, n % PARTITIONS) for n in range(RECORDS)]
    assert any(f"kafka-{source}-{SICK}" in skipped for skipped in decided.skipped)
    shown = CliRunner().invoke(job_commands, ["graph", str(tmp_path / "checkpoint"), "--mermaid"])
    assert shown.output.replace(" · completed", "") == job.graph().mermaid() + "\n"
    assert shown.output.count("subgraph") == PARTITIONS


def test_a_rescale_is_not_forced_on_a_frame_that_keeps_state(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Refused before anything is written: each region would have a count of its own."""
    job = Job("counts", spark, checkpoint_dir=str(tmp_path), regions=2)
    job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[topic()], bounded=True)
    ).transform(
        lambda frame: frame.groupBy("key").count().selectExpr("key", "string(count) AS value"),
        name="counts",
        force_rescale=True,
    ).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=topic(), transactional_id_prefix=unique("no")
        )
    )
    with pytest.raises(ConfigError, match=r"by key.*function=counts"):
        job.run()
    assert list(tmp_path.iterdir()) == []
