"""What a running `transform` costs while there is nothing to read: no batch, so no planning."""

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.job.job import Job
from tests.integration.test_source_chaos import Copy, Running
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import delete_topic, produce
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.integration

_INTERVAL_S = 0.2
_QUIET_S = 10 * _INTERVAL_S
_IDLE_NOTES = "spark.sql.streaming.noDataProgressEventInterval"


class Batches(StreamingQueryListener):
    """What Spark says of the batches of all queries. Called in a thread of Spark's.

    Attributes:
        run: id of the query's run, which is the group of its Spark jobs.
        ran: ids of the batches that ran.
        idle_since, idle_until: first and last word that a trigger had nothing to run, since a batch
            ran.
    """

    def __init__(self) -> None:
        self.run = ""
        self.ran: list[int] = []
        self.idle_since: datetime | None = None
        self.idle_until: datetime | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self.run = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.ran.append(event.progress.batchId)
        self.idle_since = self.idle_until = None

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        at = datetime.fromisoformat(event.timestamp)
        self.idle_since, self.idle_until = self.idle_since or at, at

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """See `StreamingQueryListener`."""

    def is_quiet(self) -> bool:
        """Whether triggers have had nothing to run for many intervals."""
        if self.idle_since is None or self.idle_until is None:
            return False
        return (self.idle_until - self.idle_since).total_seconds() >= _QUIET_S


@pytest.fixture
def batches(spark: SparkSession) -> Iterator[Batches]:
    """Reported of every trigger; Spark's own default is every ten seconds."""
    spark.conf.set(_IDLE_NOTES, "1ms")
    made = Batches()
    spark.streams.addListener(made)
    yield made
    spark.streams.removeListener(made)
    spark.conf.unset(_IDLE_NOTES)


@pytest.fixture
def copy(spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path) -> Copy:
    return Copy(
        session=spark,
        kafka=kafka,
        directory=tmp_path / "checkpoint",
        source=topic(),
        output=topic(),
    )


def tenfold(records: DataFrame) -> DataFrame:
    """Through Spark's planner: a zero after each number."""
    return records.selectExpr("key", "concat(value, cast('0' as binary)) as value")


def how_many(records: DataFrame) -> DataFrame:
    """How many there have been; in complete mode the whole result, of one row."""
    return records.groupBy().count().selectExpr("cast(count as string) as value")


def sevens(records: DataFrame) -> DataFrame:
    """The last number of each seven, after which the watermark has come; numbers are seconds."""
    timed = records.selectExpr("timestamp_seconds(cast(string(value) as long)) as at")
    windows = timed.withWatermark("at", "0 seconds").groupBy(F.window("at", "7 seconds"))
    return windows.count().selectExpr("cast(unix_seconds(window.end) - 1 as string) as value")


def by_transform(copy: Copy, *, bounded: bool) -> None:
    _run(copy, tenfold, None, bounded=bounded)


def by_counting(copy: Copy, *, bounded: bool) -> None:
    """A Job whose state gives its whole result in each batch."""
    _run(copy, how_many, "complete", bounded=bounded)


def by_windows(copy: Copy, *, bounded: bool) -> None:
    """A Job whose state gives what the watermark has passed."""
    _run(copy, sevens, "append", bounded=bounded)


def _run(
    copy: Copy, function: Callable[[DataFrame], DataFrame], mode: str | None, *, bounded: bool
) -> None:
    job = Job("quiet", copy.session, checkpoint_dir=str(copy.directory), interval_s=_INTERVAL_S)
    job.source(
        KafkaSource(bootstrap_servers=copy.kafka.bootstrap, topics=[copy.source], bounded=bounded)
    ).transform(function, output_mode=mode).sink(
        KafkaSink(
            bootstrap_servers=copy.kafka.bootstrap,
            topic=copy.output,
            transactional_id_prefix=copy.prefix,
        )
    )
    job.run()


def test_one_batch_per_checkpoint_a_quiet_transform_plans_no_batch_until_a_record_comes(
    copy: Copy, batches: Batches
) -> None:
    """Over many intervals: no batch, no Spark job, no entry of Spark's logs. Then there is one."""
    jobs = copy.session.sparkContext.statusTracker()

    def logged() -> list[int]:
        """Batches whose offsets Spark has written down."""
        found = (copy.directory / "spark").rglob("offsets/[0-9]*")
        return sorted(int(entry.name) for entry in found)

    def cost() -> tuple[list[int], list[int], int]:
        """Batches that Spark reports of, those that it has logged, and Spark jobs for them."""
        return list(batches.ran), logged(), len(jobs.getJobIdsForGroup(batches.run))

    produce(copy.kafka.bootstrap, copy.source, [b"1"])
    running = Running(by_transform, copy)
    running.await_output([10])
    wait_for(
        lambda: batches.idle_since is not None and batches.ran[-1:] == logged()[-1:],
        what="triggers with nothing to run, behind the batch of the first record",
    )
    before = cost()
    wait_for(batches.is_quiet, what="many quiet intervals")
    assert cost() == before

    produce(copy.kafka.bootstrap, copy.source, [b"2"])
    running.await_output([10, 20])
    wait_for(lambda: len(batches.ran) > len(before[0]), what="word of the batch")
    assert batches.ran == [*before[0], before[0][-1] + 1]

    delete_topic(copy.kafka.bootstrap, copy.source)
    assert "SourceChangedError" in running.failure()


def end(running: Running, copy: Copy) -> None:
    """End a job: what stops its queries from outside fails it for good."""
    for query in copy.session.streams.active:
        query.stop()
    assert "ended without an error" in running.failure()


@pytest.mark.extended
def test_one_batch_per_checkpoint_a_quiet_state_gives_its_result_once(
    copy: Copy, batches: Batches
) -> None:
    """While nothing comes, and at a later run for which nothing came: neither is a batch of
    Spark's, which would write the whole result of a `complete` aggregation again."""
    produce(copy.kafka.bootstrap, copy.source, [b"1", b"1"])
    running = Running(by_counting, copy)
    running.await_output([2])
    wait_for(batches.is_quiet, what="many quiet intervals")
    produce(copy.kafka.bootstrap, copy.source, [b"1"])
    running.await_output([2, 3])
    wait_for(batches.is_quiet, what="many more")
    end(running, copy)
    by_counting(copy, bounded=True)
    assert copy.settled() == [2, 3]
    produce(copy.kafka.bootstrap, copy.source, [b"1"])
    by_counting(copy, bounded=True)
    assert copy.settled() == [2, 3, 4], "the batch that gave nothing has kept the state"


def test_a_state_gives_what_its_last_records_have_closed(copy: Copy, batches: Batches) -> None:
    """In a batch without records, as Spark does: soon where more may come, and before the end."""
    produce(copy.kafka.bootstrap, copy.source, [b"1", b"2", b"15"])
    by_windows(copy, bounded=True)
    assert copy.settled() == [6]
    running = Running(by_windows, copy)
    produce(copy.kafka.bootstrap, copy.source, [b"22"])
    running.await_output([6, 20])
    wait_for(batches.is_quiet, what="many quiet intervals")
    end(running, copy)
    assert copy.settled() == [6, 20]


@pytest.mark.extended
def test_rows_later_than_the_watermark_are_counted_and_one_warning(
    copy: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    """As after one record from the future; Spark drops them without a word."""
    for values in ([b"1000"], [b"5", b"6"]):
        assert "later than the watermark" not in caplog.text
        produce(copy.kafka.bootstrap, copy.source, values)
        by_windows(copy, bounded=True)
    (said,) = [line for line in caplog.messages if "later than the watermark" in line]
    assert "rows=1 watermark=1970-01-01T00:16:40+00:00 ahead_of_clock_s=0" in said
