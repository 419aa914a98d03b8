"""``trigger(availableNow=True)``: nothing new is the query's end, so it must be true
(`trigger-is-barrier`)."""

import functools
from collections.abc import Callable

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from sluice.connectors.kafka import kafka_drop_in_batch as _spark_source
from sluice.connectors.kafka.kafka_drop_in_source import KafkaStreamReader
from sluice.connectors.kafka.records.columns import columns_with
from sluice.connectors.kafka.source.enumerator.enumerator import KafkaSplitEnumerator
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model import offsets
from tests.kit.source.fake_source_cluster import FakeClock, FakeLog, FakeSourceCluster

LIMIT = ReadMaxRows(8)


class Query:
    """A query that has read eight records of two partitions with ten each, as Spark runs it.

    Attributes:
        on_pause: what happens while the source waits.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self.cluster, self.clock = FakeSourceCluster(), FakeClock()
        self.cluster.create("orders", FakeLog(latest=10), FakeLog(latest=10))
        self.on_pause: Callable[[], object] = lambda: None
        monkeypatch.setattr(_spark_source, "KafkaCluster", lambda *_, **__: self.cluster)
        timed = functools.partial(KafkaSplitEnumerator, clock=self.clock, pause=self._pause)
        monkeypatch.setattr(_spark_source, "KafkaSplitEnumerator", timed)
        given = {
            "kafka.bootstrap.servers": "fake:9092",
            "subscribe": "orders",
            "startingOffsets": "earliest",
            **options,
        }
        names = tuple(columns_with(headers=False))
        self.source = KafkaStreamReader(SourceOptions.of(given, bounded=False, stream=True), names)
        self.source.prepareForTriggerAvailableNow()
        first = self.source.latestOffset(self.source.initialOffset(), LIMIT)
        self.at = self.source.latestOffset(first, LIMIT)

    def _pause(self, seconds: float) -> None:
        self.clock.pass_time(seconds)
        self.on_pause()

    def trigger(self) -> bool:
        """Whether there was a batch."""
        before, self.at = self.at, self.source.latestOffset(self.at, LIMIT)
        return self.at != before

    def ends(self) -> list[int]:
        """How far each partition was read."""
        return [split.end_offset for split in offsets.decode(self.at).splits]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Query]:
    """Starts one, with these options."""
    return functools.partial(Query, monkeypatch)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_query_does_not_end_while_an_unread_partition_has_no_leader(
    started: Callable[..., Query], fails: str
) -> None:
    """The others are read on; then it waits, and fails where no leader comes."""
    query = started(failOnDataLoss=fails)
    query.cluster.leaderless.add(("orders", 1))
    while query.ends()[0] < 10:
        assert query.trigger()
    began_s = query.clock()
    with pytest.raises(UnreachableError, match="orders-1=readable=4 ending=10"):
        query.trigger()
    assert 30 <= query.clock() - began_s < 40
    query.cluster.leaderless.clear()
    while query.trigger():
        pass
    assert query.ends() == [10, 10]


def test_a_leader_that_comes_back_is_read_on(started: Callable[..., Query]) -> None:
    query = started()
    query.cluster.leaderless |= {("orders", 0), ("orders", 1)}
    query.on_pause = query.cluster.leaderless.clear
    while query.trigger():
        pass
    assert query.ends() == [10, 10]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_query_does_not_end_over_a_log_that_has_become_shorter(
    started: Callable[..., Query], fails: str
) -> None:
    """It was cut off where nobody had read. A new start reads what is left."""
    query = started(failOnDataLoss=fails)
    query.cluster.log("orders", 1).latest = 7
    while query.ends() != [10, 7]:
        assert query.trigger()
    with pytest.raises(UnreachableError, match="orders-1=readable=7 ending=10"):
        query.trigger()


def test_a_former_leader_that_answers_ends_no_query(started: Callable[..., Query]) -> None:
    """It does not know that it was replaced."""
    query = started()
    log = query.cluster.log("orders", 1)
    log.elect()
    query.trigger()
    assert query.ends()[1] < 10
    log.leader_epoch = 0

    def come_back() -> None:
        log.leader_epoch = 1

    query.on_pause = come_back
    while query.trigger():
        pass
    assert query.ends() == [10, 10]


def test_a_query_ends_at_once_when_all_is_read(started: Callable[..., Query]) -> None:
    """Also when a partition that was read is without a leader by then."""
    query = started()
    while query.ends() != [10, 10]:
        assert query.trigger()
    query.cluster.leaderless.add(("orders", 1))
    began_s = query.clock()
    assert not query.trigger()
    assert query.clock() == began_s


def test_a_deleted_topic_ends_the_query_where_that_is_allowed(
    started: Callable[..., Query],
) -> None:
    query = started(failOnDataLoss="false")
    query.cluster.topics.clear()
    assert not query.trigger()


def test_a_query_without_an_end_waits_for_nothing(started: Callable[..., Query]) -> None:
    """Its next trigger looks again."""
    query = started()
    query.source.stop()
    query.cluster.leaderless |= {("orders", 0), ("orders", 1)}
    began_s = query.clock()
    assert not query.trigger()
    assert query.clock() == began_s
