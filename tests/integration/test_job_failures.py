"""A Job whose epochs fail: it continues as often as `tolerable_failures`, or its restart strategy,
says; exactly."""

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import RegionGivenUpError
from sluice.runtime.failover.restart_strategies import FixedDelayRestart, RestartStrategy
from sluice.runtime.job.job import Job, Stream
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique, values

pytestmark = pytest.mark.integration

RECORDS = 10
TASK_ATTEMPTS = 4  # of the test session: `local[2,4]`
LONG_S = 1200.0


def failing(directory: Path, times: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that fails its first ``times`` epochs, whatever process runs it."""

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        if took_turn(directory, times * TASK_ATTEMPTS):
            raise ValueError("not this time")
        return batch

    return run


def hanging(directory: Path, times: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that does not return from its first ``times`` calls."""

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        if took_turn(directory, times):
            threading.Event().wait(LONG_S)
        return batch

    return run


def took_turn(directory: Path, turns: int) -> bool:
    taken = len(list(directory.iterdir()))
    if taken < turns:
        (directory / str(taken)).touch()
    return taken < turns


class Bed:
    """A topic with records of one key, and jobs that read it."""

    def __init__(
        self, spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, directory: Path
    ) -> None:
        self.spark, self.kafka, self.directory = spark, kafka, directory
        self.source, self.sink = topic(), topic()
        self.turns = directory / "turns"
        self.turns.mkdir()
        self.fill()

    def fill(self) -> None:
        given = [Record(key=b"k", value=str(i).encode()) for i in range(RECORDS)]
        produce(self.kafka.bootstrap, self.source, given)

    def run(
        self,
        steps: Callable[[Stream], Stream],
        *,
        tolerable_failures: int | None = None,
        restart_strategy: RestartStrategy | None = None,
        timeout_s: float = 60.0,
        recovery: str = "region",
    ) -> None:
        job = Job(
            "failing",
            self.spark,
            engine="micro-batch",
            checkpoint_dir=str(self.directory / "checkpoint"),
            interval_s=0.2,
            timeout_s=timeout_s,
            tolerable_failures=tolerable_failures,
            recovery=recovery,
            restart_strategy=restart_strategy,
        )
        stream = job.source(
            KafkaSource(bootstrap_servers=self.kafka.bootstrap, topics=[self.source], bounded=True)
        )
        steps(stream).sink(
            KafkaSink(
                bootstrap_servers=self.kafka.bootstrap,
                topic=self.sink,
                transactional_id_prefix=unique("failing"),
            )
        )
        job.run()

    def written(self) -> list[int]:
        return [int(value or b"") for value in values(self.kafka.bootstrap, self.sink)]


@pytest.fixture
def bed(spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path) -> Bed:
    return Bed(spark, kafka, topic, tmp_path)


def test_ids_never_reused_a_task_that_fails_is_retried_alone(bed: Bed) -> None:
    """With what it had produced left to the sweep: its region does not notice, and no failure is
    tolerated here."""

    turns = bed.turns

    def step(batch: pa.RecordBatch) -> pa.RecordBatch:
        if took_turn(turns, TASK_ATTEMPTS - 1):
            raise ValueError("not this time")
        return batch

    bed.run(lambda stream: stream.map_batches(step), tolerable_failures=0, recovery="single-point")
    assert bed.written() == list(range(RECORDS))


@pytest.mark.extended
def test_a_job_continues_after_as_many_failures_as_it_tolerates(bed: Bed) -> None:
    """Each failed epoch is read again by a new attempt of the region, and written once."""
    step = failing(bed.turns, times=2)
    bed.run(lambda stream: stream.map_batches(step), tolerable_failures=2)
    assert bed.written() == list(range(RECORDS))


@pytest.mark.extended
def test_one_failure_more_ends_the_job_and_shows_nothing(bed: Bed) -> None:
    """The error says how often, and what the function raised; the next start continues exactly."""
    step = failing(bed.turns, times=2)
    cause = "error=ValueError: not this time raised_at="
    with pytest.raises(RegionGivenUpError, match=f"failures=2 .*{cause}"):
        bed.run(lambda stream: stream.map_batches(step), tolerable_failures=1)
    assert read(bed.kafka.bootstrap, bed.sink) == []
    bed.run(lambda stream: stream.map_batches(step), tolerable_failures=0)
    assert bed.written() == list(range(RECORDS))


@pytest.mark.extended
def test_a_region_that_its_strategy_gives_up_ends_the_job_and_shows_nothing(bed: Bed) -> None:
    """The error names the region, and the function's own; the next start continues exactly, with as
    many attempts as the first."""
    step = failing(bed.turns, times=3)
    strategy = FixedDelayRestart(attempts=1, delay_s=0.5)
    with pytest.raises(RegionGivenUpError, match=r"attempts=2(?s:.*)not this time"):
        bed.run(lambda stream: stream.map_batches(step), restart_strategy=strategy)
    assert read(bed.kafka.bootstrap, bed.sink) == []
    bed.run(lambda stream: stream.map_batches(step), restart_strategy=strategy)
    assert bed.written() == list(range(RECORDS))


def test_an_expired_epoch_is_stopped_and_read_again(bed: Bed) -> None:
    """A task that hangs is given up with its checkpoint's timeout; on a machine that is busy with
    other tests, so may be a slow one."""
    step = hanging(bed.turns, times=1)
    bed.run(lambda stream: stream.map_batches(step), tolerable_failures=10, timeout_s=5.0)
    assert bed.written() == list(range(RECORDS))


def test_state_is_exact_over_a_failure(bed: Bed) -> None:
    """The region's next attempt begins with the state of the last decision (`restore-by-attempt` and
    `stateful-replay`)."""
    bed.spark.conf.set("spark.sql.shuffle.partitions", "2")

    def count(step: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Callable[[Stream], Stream]:
        def counts(records: DataFrame) -> DataFrame:
            seen = records.groupBy("key").count()
            frame = seen.selectExpr("key", "CAST(CAST(count AS STRING) AS BINARY) AS value")
            return frame.mapInArrow(lambda batches: map(step, batches), frame.schema)

        return lambda stream: stream.transform(counts, output_mode="update")

    bed.run(count(failing(bed.turns, times=0)), tolerable_failures=0)
    bed.fill()
    bed.run(count(failing(bed.turns, times=1)), tolerable_failures=1)
    assert bed.written() == [RECORDS, 2 * RECORDS]
