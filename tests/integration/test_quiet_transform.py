"""What a running `transform` costs while there is nothing to read: no batch, so no planning."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from connectors.kafka import KafkaSink, KafkaSource
from connectors.kafka.embedded import EmbeddedKafka
from runtime.job import Job
from tests.integration.test_source_chaos import Copy, Running
from tests.kafka_fixture import TopicFactory
from tests.kafka_records import delete_topic, produce
from tests.waiting import wait_for

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
        """See `StreamingQueryListener`."""
        self.run = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """See `StreamingQueryListener`."""
        self.ran.append(event.progress.batchId)
        self.idle_since = self.idle_until = None

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """See `StreamingQueryListener`."""
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
    """Told of every trigger; Spark's own default is every ten seconds."""
    spark.conf.set(_IDLE_NOTES, "1ms")
    made = Batches()
    spark.streams.addListener(made)
    yield made
    spark.streams.removeListener(made)
    spark.conf.unset(_IDLE_NOTES)


def tenfold(records: DataFrame) -> DataFrame:
    """Through Spark's planner: a zero behind each number."""
    return records.selectExpr("key", "concat(value, cast('0' as binary)) as value")


def by_transform(copy: Copy, *, bounded: bool) -> None:
    """A Job of one `transform`."""
    job = Job("quiet", copy.session, checkpoint_dir=str(copy.directory), interval_s=_INTERVAL_S)
    job.source(
        KafkaSource(bootstrap_servers=copy.kafka.bootstrap, topics=[copy.source], bounded=bounded)
    ).transform(tenfold).sink(
        KafkaSink(
            bootstrap_servers=copy.kafka.bootstrap,
            topic=copy.output,
            transactional_id_prefix=copy.prefix,
        )
    )
    job.run()


def test_rule_26_a_quiet_transform_plans_no_batch_until_a_record_comes(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    batches: Batches,
    tmp_path: Path,
) -> None:
    """Over many intervals: no batch, no Spark job, no entry of Spark's logs. Then there is one."""
    copy = Copy(
        session=spark,
        kafka=kafka,
        directory=tmp_path / "checkpoint",
        source=topic(),
        output=topic(),
    )
    jobs = spark.sparkContext.statusTracker()

    def logged() -> list[int]:
        """Batches whose offsets Spark has written down."""
        found = (copy.directory / "spark").rglob("offsets/[0-9]*")
        return sorted(int(entry.name) for entry in found)

    def cost() -> tuple[list[int], list[int], int]:
        """Batches that Spark tells of, those that it has logged, and Spark jobs for them."""
        return list(batches.ran), logged(), len(jobs.getJobIdsForGroup(batches.run))

    produce(kafka.bootstrap, copy.source, [b"1"])
    running = Running(by_transform, copy)
    running.await_output([10])
    wait_for(
        lambda: batches.idle_since is not None and batches.ran[-1:] == logged()[-1:],
        what="triggers with nothing to run, behind the batch of the first record",
    )
    before = cost()
    wait_for(batches.is_quiet, what="many quiet intervals")
    assert cost() == before

    produce(kafka.bootstrap, copy.source, [b"2"])
    running.await_output([10, 20])
    wait_for(lambda: len(batches.ran) > len(before[0]), what="word of the batch")
    assert batches.ran == [*before[0], before[0][-1] + 1]

    delete_topic(kafka.bootstrap, copy.source)
    assert "SourceChangedError" in running.failure()
