"""A job's handle on real Spark and a real broker. A stop at each step leaves no transaction open, and
the next start is exactly once."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime import failpoints
from sluice.runtime.errors import (
    ConfigError,
    FencedError,
    RegionGivenUpError,
    StreamError,
    WaitedTooLongError,
    WrongJobError,
)
from sluice.runtime.failover.restart_strategies import FixedDelayRestart, RestartStrategy
from sluice.runtime.job.job import Job
from sluice.runtime.job.job_handle import JobHandle
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]

PARTITIONS = 2
ENGINES = ("micro-batch", "continuous")
STEPS = [
    "after-sweep",  # of the start
    *("before-trigger", "before-ack", "after-ack"),
    *("before-decision", "after-decision", "before-commit", "after-commit"),
    *("before-mark", "after-mark"),
]
"""Steps at which a thread of the driver is held until the stop is requested."""


def unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def failing(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError("no")


class Copies:
    """Starts of one job that copies a topic, and what it has written."""

    def __init__(
        self, spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, directory: Path
    ) -> None:
        self.spark = spark
        self.bootstrap = kafka.bootstrap
        self.source, self.sink = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
        self.directory = directory
        self.given = 0

    def produce(self, count: int) -> None:
        numbers = range(self.given, self.given + count)
        records = [Record(value=b"%06d" % n, partition=n % PARTITIONS) for n in numbers]
        produce(self.bootstrap, self.source, records)
        self.given += count

    def job(
        self,
        engine: str,
        *,
        name: str = "copies",
        bounded: bool = False,
        function: Callable[[pa.RecordBatch], pa.RecordBatch] = unchanged,
        transform: Callable[[DataFrame], DataFrame] | None = None,
        restart_strategy: RestartStrategy | None = None,
    ) -> Job:
        job = Job(
            name,
            self.spark,
            engine=engine,
            checkpoint_dir=self.directory,
            interval_s=0.1,
            regions=1,
            restart_strategy=restart_strategy,
        )
        source = KafkaSource(
            bootstrap_servers=self.bootstrap, topics=[self.source], bounded=bounded
        )
        sink = KafkaSink(
            bootstrap_servers=self.bootstrap,
            topic=self.sink,
            transactional_id_prefix=f"copies-{self.sink}",
        )
        stream = job.source(source)
        if transform is None:
            stream.map_batches(function).sink(sink)
        else:
            stream.transform(transform).sink(sink)
        return job

    def written(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in range(PARTITIONS)]
        for record in read(self.bootstrap, self.sink):
            assert record.partition is not None
            found[record.partition].append(int(record.value or b""))
        return found

    def count(self) -> int:
        return sum(map(len, self.written()))

    def open_transactions(self) -> list[str]:
        wire = TransactionWire(KafkaConnection(bootstrap_servers=self.bootstrap))
        with contextlib.closing(wire):
            found = wire.list_transactions(
                f"copies-{self.sink}/", timeout_s=120.0, states=(TransactionState.ONGOING,)
            )
        return [row.transactional_id for row in found.transactions]

    def expect_exactly_once_after_restart(self, engine: str) -> None:
        assert self.open_transactions() == []
        self.produce(100)
        self.job(engine, bounded=True).run()
        assert self.written() == [
            list(range(partition, self.given, PARTITIONS)) for partition in range(PARTITIONS)
        ]
        assert self.open_transactions() == []


@pytest.fixture
def copies(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> Iterator[Copies]:
    made = Copies(spark, kafka, topic, tmp_path / "checkpoint")
    made.produce(500)
    yield made
    assert not [each.name for each in threading.enumerate() if each.name.startswith("sluice-job-")]


class Held:
    """Holds the first thread that reaches a failpoint of this process until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, *, hit: int = 1) -> None:
        self.is_reached = threading.Event()
        self._released = threading.Event()
        monkeypatch.setattr(failpoints, "_armed", {name: failpoints._Armed("hold", hit)})  # noqa: SLF001 - no other way
        monkeypatch.setattr(failpoints, "_act", self._hold)

    def release(self) -> None:
        self._released.set()

    def fail(self, name: str, action: str) -> None:
        """Instead of holding it."""
        raise failpoints.FailpointError(name, {"action": action}, "Start it again.")

    def _hold(self, name: str, action: str) -> None:
        del name, action
        self.is_reached.set()
        assert self._released.wait(PATIENCE_S)


def stop_when_held(held: Held, handle: JobHandle) -> None:
    assert held.is_reached.wait(PATIENCE_S)
    with pytest.raises(WaitedTooLongError):
        handle.stop(timeout=0)
    held.release()
    handle.stop()
    assert (handle.status().state, handle.is_active, handle.exception) == ("stopped", False, None)
    assert handle.wait()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_stop_at_each_step_leaves_nothing_open(
    copies: Copies, monkeypatch: pytest.MonkeyPatch, engine: str, step: str
) -> None:
    """The stop waits for the step that is under way. Steps: of the start and of a checkpoint."""
    held = Held(monkeypatch, step)
    stop_when_held(held, copies.job(engine).start())
    copies.expect_exactly_once_after_restart(engine)


@pytest.mark.parametrize("step", ["after-fencing", "before-mark"])
def test_a_stop_in_a_recovery_first_commits_what_is_decided(
    copies: Copies, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The first driver ended between the decision of a checkpoint and its commit."""
    with monkeypatch.context() as first:
        held = Held(first, "after-publish", hit=2)  # of checkpoint 1
        first.setattr(failpoints, "_act", held.fail)
        with pytest.raises(StreamError):
            copies.job("micro-batch").start().wait()
    assert copies.count() == 0
    held = Held(monkeypatch, step)
    stop_when_held(held, copies.job("micro-batch").start())
    assert copies.count() == 500
    copies.expect_exactly_once_after_restart("micro-batch")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stop_between_two_attempts_of_a_region(copies: Copies, engine: str) -> None:
    """The region waits for its next attempt, for longer than any test."""
    waits = FixedDelayRestart(attempts=3, delay_s=3600.0)
    handle = copies.job(engine, function=failing, restart_strategy=waits).start()
    wait_for(lambda: handle.status().last_failure, what="a failure")
    assert handle.is_active
    handle.stop()
    assert handle.wait()
    assert "ValueError" in str(handle.status().last_failure)
    copies.expect_exactly_once_after_restart(engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_that_fails_raises_its_error_in_each_wait(copies: Copies, engine: str) -> None:
    handle = copies.job(
        engine, function=failing, restart_strategy=FixedDelayRestart(attempts=1, delay_s=0.0)
    ).start()
    for _ in range(2):
        with pytest.raises(RegionGivenUpError, match="ValueError: no"):
            handle.wait()
    assert isinstance(handle.exception, RegionGivenUpError)
    assert (handle.status().state, handle.result) == ("failed", None)
    handle.stop()
    copies.expect_exactly_once_after_restart(engine)


def test_a_bounded_job_finishes(copies: Copies) -> None:
    with copies.job("micro-batch", bounded=True).start() as handle:
        assert handle.wait(PATIENCE_S)
        status, result = handle.status(), handle.result
    assert (status.state, status.records) == ("finished", 500)
    assert status.lag_records in (0, None)  # None: the run was shorter than a request for the lag
    assert result is not None
    assert result.last_checkpoint_id == status.checkpoint_id
    copies.expect_exactly_once_after_restart("micro-batch")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_second_start_stops_the_first_in_order(copies: Copies, engine: str) -> None:
    """As Spark does with a query that is started again in its process."""
    first = copies.job(engine).start()
    wait_for(lambda: copies.count() == 500, what="all records")
    second = copies.job(engine).start()
    assert (first.status().state, first.exception) == ("stopped", None)
    copies.produce(500)
    wait_for(lambda: copies.count() == 1000, what="all records")
    second.stop()
    copies.expect_exactly_once_after_restart(engine)


def test_a_job_in_the_foreground_fences_one_with_a_handle(copies: Copies) -> None:
    """The newer run wins, as with two processes."""
    handle = copies.job("micro-batch").start()
    wait_for(lambda: copies.count() == 500, what="all records")
    copies.expect_exactly_once_after_restart("micro-batch")
    with pytest.raises(FencedError):
        handle.wait()
    assert handle.status().state == "fenced"


def test_another_job_in_the_same_directory_is_refused_and_stops_nothing(copies: Copies) -> None:
    handle = copies.job("micro-batch").start()
    wait_for(lambda: copies.count() == 500, what="all records")
    with pytest.raises(WrongJobError):
        copies.job("micro-batch", name="other").start()
    assert handle.is_active
    handle.stop()
    copies.expect_exactly_once_after_restart("micro-batch")


def test_a_job_that_cannot_run_is_refused_by_its_start(copies: Copies) -> None:
    job = copies.job("continuous")
    job.source(KafkaSource(bootstrap_servers=copies.bootstrap, topics=[copies.source])).transform(
        lambda frame: frame
    ).sink(
        KafkaSink(
            bootstrap_servers=copies.bootstrap, topic=copies.sink, transactional_id_prefix="planned"
        )
    )
    with pytest.raises(ConfigError):
        job.start()
    assert not copies.directory.exists()


def test_the_job_runs_with_the_session_and_properties_of_its_starter(copies: Copies) -> None:
    """As `Job.run`, which runs in the thread of its caller."""
    seen: list[tuple[str | None, SparkSession | None]] = []

    def looking(frame: DataFrame) -> DataFrame:
        pool = frame.sparkSession.sparkContext.getLocalProperty("spark.scheduler.pool")
        seen.append((pool, SparkSession.getActiveSession()))
        return frame

    job = copies.job("micro-batch", bounded=True, transform=looking)
    context = copies.spark.sparkContext
    context.setLocalProperty("spark.scheduler.pool", "mine")
    try:
        assert job.start().wait(PATIENCE_S)
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]  # removes
    assert {pool for pool, _ in seen} == {"mine"}
    assert all(session is not None for _, session in seen)
    assert copies.count() == 500


def test_two_jobs_of_one_session(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """The stop of one disturbs the other one as little as its start."""
    one, two = (Copies(spark, kafka, topic, tmp_path / str(number)) for number in range(2))
    handles = []
    for each in (one, two):
        each.produce(500)
        handles.append(each.job("micro-batch").start())
    wait_for(lambda: (one.count(), two.count()) == (500, 500), what="all records")
    handles[0].stop()
    two.produce(500)
    wait_for(lambda: two.count() == 1000, what="all records")
    assert handles[1].is_active
    handles[1].stop()
    for each in (one, two):
        each.expect_exactly_once_after_restart("micro-batch")
