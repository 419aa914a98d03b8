"""The driver's side of a Kafka source, on a cluster in memory."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import pytest

from sluice.connectors.kafka.source.enumerator.discovery import OffsetFact
from sluice.connectors.kafka.source.positions import Edge, PartitionKey
from sluice.runtime.contracts import Backlog
from sluice.runtime.errors import ConfigError, DataLostError, SourceChangedError, UnreachableError
from sluice.runtime.model.splits import SplitRange
from tests.kit.source.fake_source_cluster import FakeLog, FakeSourceCluster
from tests.kit.source.source_setup import TIMEOUT_S, Bench, bounds

# --- starting positions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ({"startingOffsets": "earliest"}, 2, 0),
        ({"startingOffsets": "latest"}, 10, 20),
        ({"startingOffsets": '{"orders":{"0":7,"1":-1}}'}, 7, 20),
        ({"startingOffsets": '{"orders":{"0":-2,"1":4}}'}, 2, 4),
        ({"startingOffsets": '{"orders":"eArliest"}'}, 2, 0),
        ({"startingOffsets": '{"orders":"latest"}'}, 10, 20),
        ({"startingOffsets": "committed", "kafka.group.id": "g"}, 2, 13),
        ({"startingTimestamp": "500"}, 5, 3),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":400,"1":500}}'}, 4, 3),
    ],
)
def test_every_kind_of_start_becomes_numbers(
    options: dict[str, str], first: int, second: int
) -> None:
    """Rule `start-offsets-once`. A group without an offset for a partition begins at its first
    record."""
    cluster = FakeSourceCluster()
    cluster.create(
        "orders",
        FakeLog(earliest=2, latest=10, times_ms={n: n * 100 for n in range(2, 10)}),
        FakeLog(latest=20, times_ms={3: 500}),
    )
    cluster.groups["g"] = {("orders", 1): 13}
    bench = Bench(cluster, bounded=False, **options)
    start = bench.start()
    assert bounds(start) == {"orders-0": (first, first), "orders-1": (second, second)}
    assert {split.topic_id for split in start} == {"id-of-orders"}


@pytest.mark.parametrize(
    ("options", "offset"),
    [
        ({"startingOffsets": "latest"}, 10),
        ({"startingOffsets": "committed", "kafka.group.id": "g"}, 9),
        ({"startingOffsets": '{"orders":{"0":8}}'}, 8),
        ({"startingTimestamp": "900"}, 9),
    ],
)
def test_records_in_the_place_of_those_before_a_start_are_not_passed_over(
    options: dict[str, str], offset: int
) -> None:
    """A topic is quiet behind a start, a leader that lacks some of it is elected, and new records
    come where the lost ones were."""
    cluster = FakeSourceCluster()
    cluster.create("orders", FakeLog(latest=10, leader_epoch=3, times_ms={9: 900}, began={3: 0}))
    cluster.groups["g"] = {("orders", 0): 9}
    bench = Bench(cluster, **options)
    start = bench.start()
    assert bench.cut(start)[0].is_empty == (offset == 10)
    cluster.log("orders").elect(cut_off_at=7, grown_to=30)
    with pytest.raises(DataLostError, match=rf"orders-0\[7,{offset}\)"):
        bench.cut(start)


def test_a_start_by_numbers_waits_for_no_leader() -> None:
    """Nothing is asked but by whom the records before it are, and the others' regions begin."""

    class Leaderless(FakeSourceCluster):
        """One partition has none, which librdkafka answers for all that are asked about."""

        def log_ends(
            self, keys: Collection[PartitionKey], *, timeout_s: float
        ) -> Mapping[PartitionKey, OffsetFact]:
            assert timeout_s <= 1
            raise UnreachableError("no leader", {}, "Wait.")

    cluster = Leaderless()
    cluster.create("orders", FakeLog(latest=10), FakeLog(latest=20))
    start = Bench(cluster, startingOffsets='{"orders":{"0":7,"1":9}}').start()
    assert bounds(start) == {"orders-0": (7, 7), "orders-1": (9, 9)}
    assert {split.leader_epoch for split in start} == {None}


def test_a_start_that_readers_do_not_see_yet_knows_its_leader() -> None:
    """As a timestamp behind an open transaction."""
    cluster = FakeSourceCluster()
    cluster.create("orders", FakeLog(latest=10, end=15, times_ms={12: 900}, leader_epoch=3))
    (start,) = Bench(cluster, startingTimestamp="900").start()
    assert (start.end_offset, start.leader_epoch) == (12, 3)


@pytest.mark.parametrize(
    "ending",
    [
        {"endingOffsets": '{"orders":{"0":-1}}'},
        {"endingTimestamp": "2000000"},
        {"endingOffsetsByTimestamp": '{"orders":{"0":2000000}}'},
        {},
    ],
)
def test_a_read_of_what_is_there_does_not_end_before_it_starts(ending: dict[str, str]) -> None:
    """It starts behind an open transaction, where nothing can be read yet."""
    cluster = FakeSourceCluster()
    cluster.create("orders", FakeLog(latest=10, end=15, times_ms={12: 900}))
    bench = Bench(cluster, bounded=True, startingTimestamp="900", **ending)
    cut = bench.cut(bench.start())
    assert bounds(cut) == {"orders-0": (12, 12)}
    assert bench.enumerator.is_finished(cut)


@pytest.mark.parametrize(
    "ending",
    [
        {"endingOffsets": '{"orders":{"0":5}}'},
        {"endingTimestamp": "500"},
        {"endingOffsetsByTimestamp": '{"orders":{"0":500}}'},
    ],
)
def test_a_read_that_is_told_to_end_before_it_starts_is_refused(ending: dict[str, str]) -> None:
    cluster = FakeSourceCluster()
    cluster.create("orders", FakeLog(latest=10, times_ms={5: 500, 9: 900}))
    with pytest.raises(ConfigError, match="orders-0=start=9 end=5"):
        Bench(cluster, bounded=True, startingTimestamp="900", **ending).start()


def test_a_start_behind_the_end_of_the_log_is_no_leaders_word() -> None:
    """Which one will write what is to come before it, nobody knows."""
    cluster = FakeSourceCluster()
    cluster.create("orders", FakeLog(latest=10, leader_epoch=3))
    assert Bench(cluster, startingOffsets='{"orders":{"0":11}}').start()[0].leader_epoch is None


def test_latest_is_resolved_once_so_later_records_are_read() -> None:
    """Rule `start-offsets-once`: records that come after the start are not skipped by asking
    again."""
    bench = Bench(startingOffsets="latest")
    start = bench.start()
    bench.cluster.log("orders", 0).latest = 15
    assert bounds(bench.cut(start))["orders-0"] == (10, 15)


def test_timestamp_without_a_match_is_an_error_or_latest() -> None:
    with pytest.raises(ConfigError, match="orders-0"):
        Bench(startingTimestamp="500").start()
    latest = Bench(startingTimestamp="500", startingOffsetsByTimestampStrategy="latest").start()
    assert bounds(latest) == {"orders-0": (10, 10), "orders-1": (20, 20)}


def test_a_record_that_comes_while_a_timestamp_is_looked_up_is_read() -> None:
    """Nothing is as young when it is asked for, and something is a moment later."""

    class Growing(FakeSourceCluster):
        """A record comes behind each question."""

        def offsets(
            self, wanted: Mapping[PartitionKey, Edge | int], *, timeout_s: float
        ) -> Mapping[PartitionKey, OffsetFact | None]:
            found = super().offsets(wanted, timeout_s=timeout_s)
            for key in wanted:
                log = self.log(*key)
                log.times_ms[log.latest] = 400 + log.latest  # the 100th is as young
                log.latest += 1
            return found

    cluster = Growing()
    cluster.create("orders", FakeLog(latest=100))
    bench = Bench(cluster, startingTimestamp="500", startingOffsetsByTimestampStrategy="latest")
    (first, _) = bounds(bench.start())["orders-0"]
    assert first == 100


def test_offsets_must_be_given_for_exactly_the_partitions() -> None:
    with pytest.raises(ConfigError) as caught:
        Bench(startingOffsets='{"orders":{"0":1,"7":1}}').start()
    assert "missing=orders-1" in str(caught.value)
    assert "unknown=orders-7" in str(caught.value)


def test_missing_topic_is_named() -> None:
    with pytest.raises(SourceChangedError, match="payments"):
        Bench(subscribe="orders,payments").start()


def test_missing_assigned_partition_is_named() -> None:
    with pytest.raises(SourceChangedError, match="orders-5"):
        Bench(assign='{"orders":[0,5]}').start()


@pytest.mark.parametrize("bounded", [True, False])
def test_a_missing_assigned_partition_is_skipped_if_records_may_be_lost(
    caplog: pytest.LogCaptureFixture, *, bounded: bool
) -> None:
    """As by Spark's own source. A stream reads it from its first record once it exists."""
    bench = Bench(bounded=bounded, assign='{"orders":[0,2]}', failOnDataLoss="false")
    positions = bench.start()
    assert bounds(positions) == {"orders-0": (0, 0)}
    assert bounds(bench.cut(positions)) == {"orders-0": (0, 10)}
    assert "missing=orders-2" in caplog.text
    bench.cluster.topics["orders"][1][2] = FakeLog(latest=3)
    bench.clock.pass_time(60)
    assert bounds(bench.discover()) == ({} if bounded else {"orders-2": (0, 0)})


@pytest.mark.parametrize("options", [{"subscribe": "orders,gone"}, {"assign": '{"gone":[0]}'}])
def test_a_missing_topic_is_an_error_at_the_first_start(options: dict[str, str]) -> None:
    """Also if records may be lost, as in Spark: a misspelt name would read nothing."""
    with pytest.raises(SourceChangedError, match="gone"):
        Bench(failOnDataLoss="false", **options).start()


def test_pattern_matches_whole_names_and_no_internal_topics() -> None:
    cluster = FakeSourceCluster()
    for name in ("orders", "orders-eu", "reorders", "__consumer_offsets"):
        cluster.create(name, FakeLog())
    assert set(bounds(Bench(cluster, subscribePattern="orders.*").start())) == {
        "orders-0",
        "orders-eu-0",
    }
    assert "__consumer_offsets-0" not in bounds(Bench(cluster, subscribePattern=".*").start())


def test_topics_that_a_pattern_leaves_out_are_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spark's own source also reads a topic of which only a part matches."""
    bench = Bench(FakeSourceCluster(), subscribePattern="orders")
    bench.start()
    bench.cluster.create("re-orders", FakeLog())
    for _ in range(3):
        bench.clock.pass_time(60)
        bench.discover()
    assert [record.getMessage() for record in caplog.records] == [
        "no topic matches the pattern: pattern=orders",
        "topics are not read, because only a part of the name matches: pattern=orders "
        "topics=re-orders; write the pattern for the whole name",
    ]


def test_a_start_of_a_whole_topic_is_of_those_that_are_read_and_not_of_later_ones() -> None:
    """As of Spark's source: the others begin at their first record."""
    bench = Bench(subscribePattern="orders.*", startingOffsets='{"orders":"latest"}')
    start = bench.start()
    assert bounds(start) == {"orders-0": (10, 10), "orders-1": (20, 20)}
    bench.cluster.create("orders-eu", FakeLog(latest=3))
    assert bounds(bench.discover()) == {"orders-eu-0": (0, 0)}
    with pytest.raises(ConfigError, match="topics=payments"):
        Bench(startingOffsets='{"orders":"latest","payments":"latest"}').start()


WAYS = {
    "assign": json.dumps({"orders": [0, 1]}),
    "subscribe": "orders",
    "subscribePattern": "ord.*",
}
STARTS = {
    "latest": ({"startingOffsets": "latest"}, (10, 20)),
    "earliest": ({"startingOffsets": "earliest"}, (2, 0)),
    "specific offsets": ({"startingOffsets": json.dumps({"orders": {"0": -2, "1": 4}})}, (2, 4)),
    "specific timestamps": (
        {"startingOffsetsByTimestamp": json.dumps({"orders": {"0": 400, "1": 500}})},
        (4, 3),
    ),
    "global timestamp": ({"startingTimestamp": "400"}, (4, 3)),
}


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("way", WAYS)
def test_a_query_starts_once_and_goes_on_where_it_was(
    way: str, kind: str, fail_on_data_loss: str
) -> None:
    """The start of Spark's suite: then a restart with records that came meanwhile, and a partition
    that was added, from its first record."""
    cluster = FakeSourceCluster()
    times = {n: n * 100 for n in range(2, 10)}
    cluster.create(
        "orders",
        FakeLog(earliest=2, latest=10, times_ms=times),
        FakeLog(latest=20, times_ms={3: 500}),
    )
    starting, expected = STARTS[kind]
    given = {way: WAYS[way]} | starting | {"failOnDataLoss": fail_on_data_loss}
    bench = Bench(cluster, **given)
    start = bench.start()
    assert tuple(split.end_offset for split in start) == expected
    read = bench.cut(start)
    assert [split.end_offset for split in read] == [10, 20]
    for number in range(2):
        cluster.log("orders", number).latest += 3
    again = Bench(cluster, **given)
    again.enumerator.restore(read, timeout_s=TIMEOUT_S)
    assert bounds(again.cut(read)) == {"orders-0": (10, 13), "orders-1": (20, 23)}
    cluster.topics["orders"][1][2] = FakeLog(latest=5)
    added = () if way == "assign" else (("orders-2", (0, 0)),)
    assert tuple(bounds(again.discover()).items()) == added


@pytest.mark.parametrize("way", ["subscribe", "subscribePattern"])
@pytest.mark.parametrize("kind", ["startingOffsetsByTimestamp", "startingTimestamp"])
@pytest.mark.parametrize("strategy", [None, "error", "latest"])
def test_a_start_after_every_record_follows_the_strategy(
    way: str, kind: str, strategy: str | None
) -> None:
    """Partition 1 has no record of that time."""
    cluster = FakeSourceCluster()
    cluster.create(
        "orders", FakeLog(latest=3, times_ms={1: 2000}), FakeLog(latest=3, times_ms={1: 1000})
    )
    at = "2000" if kind == "startingTimestamp" else json.dumps({"orders": {"0": 2000, "1": 2000}})
    given = {way: WAYS[way], kind: at}
    if strategy is not None:
        given["startingOffsetsByTimestampStrategy"] = strategy
    bench = Bench(cluster, **given)
    if strategy == "latest":
        assert bounds(bench.start()) == {"orders-0": (1, 1), "orders-1": (3, 3)}
    else:
        with pytest.raises(ConfigError, match="orders-1"):
            bench.start()


# --- cuts ---------------------------------------------------------------------------------------


def test_cut_goes_from_position_to_the_visible_end() -> None:
    bench = Bench()
    first = bench.cut(bench.start())
    assert bounds(first) == {"orders-0": (0, 10), "orders-1": (0, 20)}
    assert first[0].leader_epoch == 0
    second = bench.cut(first)
    assert bounds(second) == {"orders-0": (10, 10), "orders-1": (20, 20)}
    assert all(split.idle_since_ms == round(bench.clock.now_s * 1000) for split in second)
    bench.clock.pass_time(5)
    bench.cluster.log("orders", 1).latest = 21
    third = bench.cut(second)
    assert third[0].idle_since_ms == second[0].idle_since_ms
    assert third[1].idle_since_ms is None


def test_limit_is_shared_in_proportion_to_the_backlog() -> None:
    """As Spark's maxOffsetsPerTrigger; the smaller of the job's and the source's limit counts."""
    bench = Bench(maxOffsetsPerTrigger="15")
    assert bounds(bench.cut(bench.start())) == {"orders-0": (0, 5), "orders-1": (0, 10)}
    assert bounds(bench.cut(bench.start(), max_records=6)) == {
        "orders-0": (0, 2),
        "orders-1": (0, 4),
    }


def test_least_offsets_are_waited_for_but_not_longer_than_the_delay() -> None:
    """As in Spark, the first barrier of a start never waits, and starts the wait of the next."""
    bench = Bench(minOffsetsPerTrigger="40", maxTriggerDelay="10s")
    first = bench.cut(bench.start())
    assert bounds(first) == {"orders-0": (0, 10), "orders-1": (0, 20)}
    bench.cluster.log("orders", 0).latest = 25
    assert all(split.is_empty for split in bench.cut(first))
    bench.cluster.log("orders", 0).latest = 50
    second = bench.cut(first)
    assert bounds(second)["orders-0"] == (10, 50)
    bench.cluster.log("orders", 1).latest = 21
    assert all(split.is_empty for split in bench.cut(second))
    bench.clock.pass_time(10)
    assert bounds(bench.cut(second))["orders-1"] == (20, 21)


def test_least_and_largest_limit_together() -> None:
    """Spark's composite limit: a batch that runs takes no more than the largest."""
    bench = Bench(minOffsetsPerTrigger="8", maxOffsetsPerTrigger="15", maxTriggerDelay="10s")
    first = bench.cut(bench.start())
    assert bounds(first) == {"orders-0": (0, 5), "orders-1": (0, 10)}
    second = bench.cut(first)
    assert bounds(second) == {"orders-0": (5, 10), "orders-1": (10, 20)}
    bench.cluster.log("orders", 1).latest = 24
    assert all(split.is_empty for split in bench.cut(second))
    bench.clock.pass_time(10)
    assert bounds(bench.cut(second))["orders-1"] == (20, 24)


def test_bounded_source_ends_where_the_topic_ended_at_its_start() -> None:
    bench = Bench(bounded=True)
    start = bench.start()
    bench.cluster.log("orders", 0).latest = 99
    bench.cluster.topics["orders"][1][2] = FakeLog(latest=5)
    assert bench.discover() == ()
    cut = bench.cut(start)
    assert bounds(cut) == {"orders-0": (0, 10), "orders-1": (0, 20)}
    assert not bench.enumerator.is_finished(start)
    assert bench.enumerator.is_finished(cut)


def _restored_beside_a_new_partition() -> tuple[Bench, tuple[SplitRange, ...]]:
    """A bounded run that goes on from these positions, and orders-2, which they do not have."""
    bench = Bench()
    done = bench.cut(bench.start())
    bench.cluster.topics["orders"][1][2] = FakeLog(latest=5)
    again = Bench(bench.cluster, bounded=True)
    again.enumerator.restore(done, timeout_s=TIMEOUT_S)
    return again, done


def test_restored_bounded_source_also_reads_partitions_made_meanwhile() -> None:
    """Everything present at the start of the run is read, a new partition from its beginning."""
    again, done = _restored_beside_a_new_partition()
    new = again.discover()
    assert bounds(new) == {"orders-2": (0, 0)}
    assert again.enumerator.is_finished(done)
    assert not again.enumerator.is_finished((*done, *new))
    assert bounds(again.cut((*done, *new)))["orders-2"] == (0, 5)


def test_what_is_made_behind_the_start_of_a_bounded_run_is_left_to_the_next_one() -> None:
    """Also while a partition is looked for that was there: it has no end to be read up to."""
    again, _ = _restored_beside_a_new_partition()
    again.cluster.topics["orders"][1][3] = FakeLog(latest=5)
    assert bounds(again.discover()) == {"orders-2": (0, 0)}


def test_a_bounded_source_asks_again_for_a_new_partition_that_was_not_found_at_once() -> None:
    """The first look may meet brokers that do not answer."""
    again, _ = _restored_beside_a_new_partition()
    again.cluster.is_reachable = False
    with pytest.raises(UnreachableError):
        again.discover()
    again.cluster.is_reachable = True
    assert bounds(again.discover()) == {"orders-2": (0, 0)}
    assert again.discover() == ()


def test_a_bounded_source_asks_again_for_a_new_partition_that_has_no_leader_yet() -> None:
    """An end and no beginning: nobody may take the source for read until it is found."""
    again, _ = _restored_beside_a_new_partition()
    again.cluster.leaderless.add(("orders", 2))
    with pytest.raises(UnreachableError, match="orders-2"):
        again.discover()
    again.cluster.leaderless.clear()
    assert bounds(again.discover()) == {"orders-2": (0, 0)}


def test_unbounded_source_is_never_finished_and_knows_its_lag() -> None:
    bench = Bench(maxOffsetsPerTrigger="15")
    start = bench.start()
    assert bench.enumerator.lag_records(start) is None
    cut = bench.cut(start)
    assert bench.enumerator.lag_records(cut) == 15
    assert not bench.enumerator.is_finished(cut)


def test_a_bounded_source_tells_where_each_split_ends() -> None:
    """By the keys that a region's tasks know them by: one that finds no end would read on."""
    bench = Bench(bounded=True)
    first, second = bench.start()
    assert bench.enumerator.fixed_ends() == {first.key: 10, second.key: 20}
    assert Bench(bench.cluster).enumerator.fixed_ends() is None


def test_two_losses_of_a_partition_count_for_what_each_of_them_is() -> None:
    """What was read between them was not lost; one that grows counts for what is new of it."""
    bench = Bench(failOnDataLoss="false", assign='{"orders":[0]}')
    log = bench.cluster.log("orders", 0)
    position = bench.start()
    for earliest, latest, lost in ((3, 3, 3), (5, 10, 5), (12, 12, 7), (15, 20, 10)):
        log.earliest, log.latest = earliest, latest
        position = bench.cut(position)
        assert bench.enumerator.lost_records == lost


def test_losses_of_two_topics_are_not_taken_for_one_another() -> None:
    """Partitions have the same numbers in each; a loss counts once, however often it is seen."""
    cluster = FakeSourceCluster()
    for name in ("orders", "payments"):
        cluster.create(name, FakeLog(latest=10))
    bench = Bench(cluster, subscribe="orders,payments", failOnDataLoss="false")
    position = bench.start()
    cluster.log("orders").earliest, cluster.log("payments").earliest = 3, 4
    cluster.log("orders").latest, cluster.log("payments").latest = 3, 4
    for _ in range(3):
        bench.cut(position)
    assert bench.enumerator.lost_records == 7


@pytest.mark.parametrize(("at_once", "end"), [(False, 0), (True, 10)])
def test_who_wants_what_there_is_does_not_wait_for_more(at_once: bool, end: int) -> None:
    """The last batch of a query, say: the least number of offsets is for those that follow."""
    bench = Bench(minOffsetsPerTrigger="1000", assign='{"orders":[0]}')
    bench.cut(bench.start())  # the first one does not wait
    found = bench.enumerator.cut_to_ends(
        bench.start(), max_records=None, timeout_s=TIMEOUT_S, at_once=at_once
    )
    assert bounds(found) == {"orders-0": (0, end)}


@pytest.mark.parametrize(
    "begin",
    [Bench.start, lambda bench: bench.enumerator.fix_ends(timeout_s=TIMEOUT_S)],
    ids=["first start", "behind a restore"],
)
def test_a_partition_without_a_leader_is_left_out_of_no_bounded_read(
    begin: Callable[[Bench], object],
) -> None:
    """Without an end nobody would miss it."""
    bench = Bench(bounded=True)
    bench.cluster.leaderless.add(("orders", 1))
    with pytest.raises(SourceChangedError, match=r"no leader.*orders-1"):
        begin(bench)


def test_what_nobody_reads_is_measured_as_it_is_now() -> None:
    """Also what retention took of it; a topic that was made anew has no number, and nothing of a
    later cut is changed by the question."""
    bench = Bench(maxOffsetsPerTrigger="15")
    first, second = bench.start()
    bench.cluster.log("orders", 0).latest = 1000
    bench.cluster.log("orders", 0).earliest = 300
    found = bench.enumerator.measure((first, second), timeout_s=TIMEOUT_S)
    assert found == {
        first.key: Backlog(records=1000, lost_records=300),
        second.key: Backlog(records=20),
    }
    assert bench.enumerator.lag_records((first,)) is None
    other = replace(first, topic_id="another one")
    assert bench.enumerator.measure((other,), timeout_s=TIMEOUT_S) == {}
    assert bench.enumerator.measure((), timeout_s=TIMEOUT_S) == {}


def test_the_backlog_of_a_bounded_run_ends_where_the_run_does() -> None:
    """What came later is not missing."""
    bench = Bench(bounded=True)
    start = bench.start()
    bench.cluster.log("orders", 0).latest = 1000
    found = bench.enumerator.measure(start, timeout_s=TIMEOUT_S)
    assert [found[split.key].records for split in start] == [10, 20]


def test_a_bounded_source_says_that_it_waits_for_a_log_that_ends_too_early(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Cut off where nobody had read yet: no position is lost, and nothing more may ever come."""
    bench = Bench(bounded=True)
    position = bench.cut(bench.start(), max_records=6)
    bench.cluster.log("orders", 0).elect(cut_off_at=7)
    position = bench.cut(position)
    assert (
        "ends before the end" not in caplog.text
    )  # a new leader may know a lower one for a moment
    bench.clock.pass_time(30.0)
    for _ in range(3):
        position = bench.cut(position)
    assert not bench.enumerator.is_finished(position)
    assert caplog.text.count("partition=orders-0 log_end=7 end=10;") == 1
