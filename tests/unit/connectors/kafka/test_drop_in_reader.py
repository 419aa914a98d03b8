"""The drop-in's streaming source as Spark calls it, on a cluster in memory."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sluice.connectors.kafka import kafka_drop_in_batch as _spark_source
from sluice.connectors.kafka.kafka_drop_in_source import KafkaStreamReader
from sluice.connectors.kafka.records.columns import columns_with
from sluice.connectors.kafka.source.enumerator import lag
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.runtime.errors import ConfigError, StreamError
from sluice.runtime.model import offsets
from tests.kit.source.fake_source_cluster import FakeLog, FakeSourceCluster

NO_LIMIT = ReadMaxRows((1 << 63) - 1)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeSourceCluster:
    """One topic of one partition with ten records; readers find it instead of brokers."""
    made = FakeSourceCluster()
    made.create("orders", FakeLog(latest=10))
    monkeypatch.setattr(_spark_source, "KafkaCluster", lambda *_, **__: made)
    return made


def reader(**options: str) -> KafkaStreamReader:
    """As a driver-side process of a query has it."""
    given = {"kafka.bootstrap.servers": "fake:9092", "subscribe": "orders", **options}
    names = tuple(columns_with(headers=False))
    return KafkaStreamReader(SourceOptions.of(given, bounded=False, stream=True), names)


def matching(**options: str) -> KafkaStreamReader:
    """As `reader`, by a pattern."""
    given = {"kafka.bootstrap.servers": "fake:9092", **options}
    names = tuple(columns_with(headers=False))
    return KafkaStreamReader(SourceOptions.of(given, bounded=False, stream=True), names)


def ranges(made: KafkaStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
    """(first, end) of each task of a batch."""
    splits = [split for task in made.partitions(start, end) for split in task.value]
    return [(split.start_offset, split.end_offset) for split in splits]


@pytest.mark.usefixtures("cluster")
def test_start_offsets_once_the_first_batch_is_empty_whatever_has_come_since(
    cluster: FakeSourceCluster,
) -> None:
    """Spark asks for the start twice; both answers, and the first end, are the same numbers, so the
    log has them before a record is read, and none that came meanwhile is skipped."""
    source = reader(startingOffsets="latest")
    first = source.initialOffset()
    cluster.log("orders").latest = 15
    start = source.initialOffset()
    assert start == first
    assert source.latestOffset(start, NO_LIMIT) == start
    assert ranges(source, start, start) == []
    end = source.latestOffset(start, NO_LIMIT)
    assert ranges(source, start, end) == [(10, 15)]


@pytest.mark.usefixtures("cluster")
def test_start_offsets_once_a_replay_of_the_first_batch_reads_nothing(
    cluster: FakeSourceCluster,
) -> None:
    """Asked again in a new process, the start is another one, behind or before the logged end."""
    logged = reader(startingOffsets="latest").initialOffset()
    cluster.log("orders").latest = 15
    again = reader(startingOffsets="latest")
    assert ranges(again, again.initialOffset(), logged) == []
    end = again.latestOffset(logged, NO_LIMIT)
    assert ranges(again, logged, end) == [(10, 15)]


def test_a_topic_that_is_given_up_leaves_the_log_and_the_others_continue(
    cluster: FakeSourceCluster,
) -> None:
    cluster.create("returns", FakeLog(latest=7))
    both = reader(subscribe="orders,returns", startingOffsets="earliest")
    start = both.initialOffset()
    logged = both.latestOffset(both.latestOffset(start, NO_LIMIT), NO_LIMIT)
    cluster.log("orders").latest = 12
    with pytest.raises(ConfigError, match=r'"returns":\{"0":7\}.*forgetTopics'):
        reader().latestOffset(logged, NO_LIMIT)
    for options in ({"subscribe": "orders"}, {"subscribePattern": "orders|returns"}):
        given = {"forgetTopics": "returns", **options}
        left = reader(**given) if "subscribe" in options else matching(**given)
        end = left.latestOffset(logged, NO_LIMIT)
        assert ranges(left, logged, end) == [(10, 12)]
        assert left.latestOffset(end, NO_LIMIT) == end
    del cluster.topics["returns"]
    assert reader().latestOffset(end, NO_LIMIT) == end, "the log no longer has it"


@pytest.mark.parametrize("is_deleted", [True, False])
def test_an_error_about_an_unfinished_batch_names_where_it_begins_and_where_it_ends(
    cluster: FakeSourceCluster, *, is_deleted: bool
) -> None:
    """Its sink may not have written it: a new query that starts at its end would skip it."""
    cluster.create("returns", FakeLog(latest=7))
    cluster.create("quiet", FakeLog())
    topics = "orders,quiet,returns"
    both = reader(subscribe=topics, startingOffsets="earliest", maxOffsetsPerTrigger="4")
    start = both.latestOffset(both.initialOffset(), NO_LIMIT)
    start = both.latestOffset(start, both.getDefaultReadLimit())
    begin = {split.topic: {"0": split.end_offset} for split in offsets.decode(start).splits}
    end = both.latestOffset(start, NO_LIMIT)
    if is_deleted:
        del cluster.topics["returns"]
    again = reader(subscribe=topics if is_deleted else "orders,quiet")
    with pytest.raises(
        StreamError, match=r"start at read_to if the sink has not decided"
    ) as caught:
        again.partitions(start, end)
    details = caught.value.args[1]
    assert json.loads(details["read_to"]) == begin
    assert json.loads(details["batch_end"]) == {
        "orders": {"0": 10},
        "quiet": {"0": 0},
        "returns": {"0": 7},
    }
    first = begin["orders"]["0"]
    assert 0 < first < 10
    assert ranges(*begun_at(json.dumps({"orders": begin["orders"]}))) == [(first, 10)]


def test_trigger_is_barrier_the_trigger_is_the_barrier_and_nothing_new_is_no_batch(
    cluster: FakeSourceCluster,
) -> None:
    """Each question is a cut, up to what is there now."""
    source = reader(startingOffsets="earliest")
    at = source.latestOffset(source.initialOffset(), NO_LIMIT)
    for latest in (10, 12):
        cluster.log("orders").latest = latest
        before, at = at, source.latestOffset(at, NO_LIMIT)
        assert ranges(source, before, at)[-1][1] == latest
    assert source.latestOffset(at, NO_LIMIT) == at


def test_a_quiet_query_publishes_its_offsets_again_at_its_triggers(
    cluster: FakeSourceCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers delete those of a group without members; Spark runs no batch meanwhile."""
    monkeypatch.setattr(lag, "_OLD_S", 0.0)
    source = reader(startingOffsets="earliest", **{"kafka.group.id": "lag-tools"})
    at = source.latestOffset(source.latestOffset(source.initialOffset(), NO_LIMIT), NO_LIMIT)
    source.commit(at)
    for _ in range(2):
        cluster.groups.clear()
        assert source.latestOffset(at, NO_LIMIT) == at
        assert cluster.groups == {"lag-tools": {("orders", 0): 10}}


def test_trigger_is_barrier_available_now_ends_where_it_was_prepared(
    cluster: FakeSourceCluster,
) -> None:
    """In as many batches as its limit takes, however much is written meanwhile."""
    source = reader(startingOffsets="earliest")
    source.prepareForTriggerAvailableNow()
    at = source.latestOffset(source.initialOffset(), ReadMaxRows(6))
    read = []
    for _ in range(5):
        cluster.log("orders").latest += 7
        before, at = at, source.latestOffset(at, ReadMaxRows(6))
        read += ranges(source, before, at)
    assert read == [(0, 6), (6, 10)]


def test_the_first_batch_with_records_does_not_wait_for_the_least_offsets(
    cluster: FakeSourceCluster,
) -> None:
    """As in Spark; the next one does."""
    source = reader(startingOffsets="earliest", minOffsetsPerTrigger="100")
    start = source.latestOffset(source.initialOffset(), NO_LIMIT)
    end = source.latestOffset(start, NO_LIMIT)
    assert ranges(source, start, end) == [(0, 10)]
    cluster.log("orders").latest = 15
    assert source.latestOffset(end, NO_LIMIT) == end


@pytest.mark.usefixtures("cluster")
def test_trigger_is_barrier_once_reads_everything_in_its_one_batch() -> None:
    """Spark asks once only: an empty first batch would be all."""
    source = reader(startingOffsets="earliest")
    start = source.initialOffset()
    assert ranges(source, start, source.latestOffset(start, ReadAllAvailable())) == [(0, 10)]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    "go_on",
    [
        lambda source, read_to: source.latestOffset(read_to, NO_LIMIT),
        lambda source, read_to: source.partitions(read_to, {"orders": {"0": 7}}),
    ],
    ids=["behind a batch that is done", "with one that is not"],
)
def test_a_log_of_sparks_own_source_is_told_with_the_offsets_to_begin_at(
    go_on: Callable[[KafkaStreamReader, dict[str, Any]], object],
) -> None:
    """Who changes the format of a query that there is keeps its checkpoint location."""
    read_to = {"orders": {"0": 4}}
    source = reader()
    assert source.partitions(read_to, read_to) == [], "as Spark asks first, whatever is logged"
    with pytest.raises(ConfigError, match="checkpoint of Spark's Kafka source") as refused:
        go_on(source, read_to)
    assert 'read_to={"orders": {"0": 4}}' in str(refused.value)
    assert "startingOffsets" in str(refused.value)
    assert ranges(*begun_at('{"orders": {"0": 4}}')) == [(4, 10)]


def begun_at(given: str) -> tuple[KafkaStreamReader, dict[str, Any], dict[str, Any]]:
    """A query that begins there, and its first batch with records."""
    source = reader(startingOffsets=given)
    start = source.latestOffset(source.initialOffset(), NO_LIMIT)
    return source, start, source.latestOffset(start, NO_LIMIT)


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("is_logged", [True, False], ids=["in the log", "behind it"])
def test_two_sources_that_change_places_are_refused_before_one_reads_the_others_topic(
    cluster: FakeSourceCluster, fails: str, is_logged: bool
) -> None:
    """Spark's log knows sources by their place: a start with the two sides of a union exchanged
    gives each the offsets of the other."""
    cluster.create("payments", FakeLog(latest=5))
    begins = {"startingOffsets": "earliest", "failOnDataLoss": fails}
    payments = reader(subscribe="payments", **begins)
    start = payments.latestOffset(payments.initialOffset(), NO_LIMIT)
    end = payments.latestOffset(start, NO_LIMIT)
    orders = reader(subscribe="orders", **begins)
    with pytest.raises(ConfigError, match="payments-0"):
        orders.partitions(start, end) if is_logged else orders.latestOffset(end, NO_LIMIT)
