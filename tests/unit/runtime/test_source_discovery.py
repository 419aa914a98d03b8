"""Partitions that a Kafka source finds after its start: how old they are, and where it begins."""

import pytest

from sluice.runtime.errors import AuthenticationError, DataLostError, SourceChangedError
from tests.kit.source.fake_source_cluster import FakeLog, FakeSourceCluster
from tests.kit.source.source_setup import TIMEOUT_S, Bench, bounds


def test_new_partition_is_read_from_its_first_record_whatever_the_start() -> None:
    bench = Bench(startingOffsets="latest", partitionDiscoveryIntervalMs="10000")
    start = bench.start()
    bench.cluster.topics["orders"][1][2] = FakeLog(latest=8)
    assert bench.discover() == ()  # not due yet
    bench.clock.pass_time(10)
    new = bench.discover()
    assert bounds(new) == {"orders-2": (0, 0)}
    assert bounds(bench.cut((*start, *new)))["orders-2"] == (0, 8)
    bench.clock.pass_time(10)
    assert bench.discover() == ()


def test_a_topic_that_is_refused_is_reported_by_its_own_cut_alone() -> None:
    cluster = FakeSourceCluster()
    cluster.create("orders", FakeLog(latest=10))
    cluster.create("payments", FakeLog(latest=20))
    bench = Bench(cluster, subscribe="orders,payments", partitionDiscoveryIntervalMs="10000")
    orders, payments = bench.start()
    bench.cluster.refused = {"payments"}
    bench.cluster.topics["orders"][1][1] = FakeLog(latest=5)
    bench.clock.pass_time(10)
    new = bench.discover()
    assert bounds(new) == {"orders-1": (0, 0)}
    assert bounds(bench.cut((orders, *new))) == {"orders-0": (0, 10), "orders-1": (0, 5)}
    with pytest.raises(AuthenticationError, match="payments"):
        bench.cut((payments,))
    bench.cluster.refused = set()
    bench.cluster.topics["payments"][1][1] = FakeLog(latest=7)
    bench.clock.pass_time(10)
    assert bounds(bench.discover()) == {"payments-1": (0, 0)}


def test_a_topic_that_nobody_reads_yet_and_is_refused_stops_who_looks() -> None:
    bench = Bench(subscribePattern="orders|refunds")
    bench.start()
    bench.cluster.create("refunds", FakeLog(latest=5))
    bench.cluster.refused = {"orders", "refunds"}
    with pytest.raises(AuthenticationError, match="refunds"):
        bench.discover()


def test_a_bounded_source_does_not_go_without_what_is_refused() -> None:
    bench, _, logs = _hidden()
    logs[2] = FakeLog(latest=5)
    bench.cluster.refused = {"orders"}
    with pytest.raises(AuthenticationError):
        bench.discover()


def _hidden() -> tuple[Bench, FakeLog, dict[int, FakeLog]]:
    """A bounded source has an end for a partition that the broker it asks next does not show."""
    bench = Bench()
    done = bench.cut(bench.start())
    logs = bench.cluster.topics["orders"][1]
    logs[2] = FakeLog(latest=5)
    again = Bench(bench.cluster, bounded=True)
    again.enumerator.restore(done, timeout_s=TIMEOUT_S)
    return again, logs.pop(2), logs


def test_a_bounded_source_looks_again_for_what_a_broker_does_not_show_yet() -> None:
    """Its metadata lags after: without the partition the run would end too early."""
    bench, hidden, logs = _hidden()
    bench.on_pause = lambda: logs.setdefault(2, hidden)
    assert bounds(bench.discover()) == {"orders-2": (0, 0)}


def test_a_bounded_source_that_never_sees_a_partition_again_says_so() -> None:
    """It is gone before its first record was read."""
    bench, _, _ = _hidden()
    with pytest.raises(SourceChangedError, match="orders-2"):
        bench.discover()


def test_new_topic_of_a_pattern_is_discovered() -> None:
    cluster = FakeSourceCluster()
    cluster.create("orders-eu", FakeLog(latest=4))
    bench = Bench(cluster, subscribePattern="orders-.*", startingOffsets="latest")
    bench.start()
    cluster.create("orders-us", FakeLog(latest=6))
    assert bounds(bench.discover()) == {"orders-us-0": (0, 0)}


@pytest.mark.parametrize("read", [{"subscribe": "orders"}, {"subscribePattern": "orders.*"}])
def test_records_that_a_new_partition_lost_before_it_was_found_are_lost_records(
    read: dict[str, str],
) -> None:
    """It began at 0 while the source was at work, so what retention took was never read."""
    bench = Bench(**read)
    start = bench.start()
    bench.cluster.topics["orders"][1][2] = FakeLog(earliest=3, latest=8)
    new = bench.discover()
    with pytest.raises(DataLostError, match=r"orders-2\[0,3\)"):
        bench.cut((*start, *new))
    lenient = Bench(bench.cluster, **read, failOnDataLoss="false")
    lenient.enumerator.restore(start, timeout_s=TIMEOUT_S)
    assert bounds(lenient.cut((*start, *lenient.discover())))["orders-2"] == (3, 8)
    assert lenient.enumerator.lost_records == 3


def test_a_topic_that_is_named_later_is_read_from_what_it_holds() -> None:
    """It is as old as it is: what it lost before it was named was never asked for."""
    bench = Bench()
    start = bench.start()
    bench.cluster.create("old", FakeLog(earliest=500, latest=510))
    more = Bench(bench.cluster, subscribe="orders,old")
    more.enumerator.restore(start, timeout_s=TIMEOUT_S)
    assert bounds(more.discover()) == {"old-0": (500, 500)}


@pytest.mark.parametrize("bounded", [False, True])
def test_a_topic_that_a_pattern_takes_in_later_is_read_from_what_it_holds(*, bounded: bool) -> None:
    """The pattern was widened, or the topic may be described since: it is as old as it is."""
    cluster = FakeSourceCluster()
    cluster.create("a-1", FakeLog(latest=10))
    cluster.create("b-1", FakeLog(earliest=500, latest=510))
    before = Bench(cluster, subscribePattern="a-.*")
    read = before.cut(before.start())
    more = Bench(cluster, bounded=bounded, subscribePattern="[ab]-.*")
    more.enumerator.restore(read, timeout_s=TIMEOUT_S)
    new = more.discover()
    assert bounds(new) == {"b-1-0": (500, 500)}
    assert bounds(more.cut((*read, *new)))["b-1-0"] == (500, 510)


def test_a_topic_of_a_pattern_that_came_between_two_runs_is_read_from_what_it_holds() -> None:
    bench = Bench(subscribePattern="orders.*")
    read = bench.cut(bench.start())
    bench.cluster.create("orders-new", FakeLog(latest=4))
    bench.cluster.create("orders-trimmed", FakeLog(earliest=2, latest=4))
    again = Bench(bench.cluster, subscribePattern="orders.*")
    again.enumerator.restore(read, timeout_s=TIMEOUT_S)
    assert bounds(again.discover()) == {"orders-new-0": (0, 0), "orders-trimmed-0": (2, 2)}


def test_what_a_topic_lost_that_appeared_in_this_run_is_lost_records() -> None:
    """An earlier look of the run, under the same pattern, did not have it: it is really new."""
    bench = Bench(subscribePattern="orders.*")
    read = bench.cut(bench.start())
    again = Bench(bench.cluster, subscribePattern="orders.*")
    again.enumerator.restore(read, timeout_s=TIMEOUT_S)
    assert again.discover() == ()
    again.cluster.create("orders-new", FakeLog(earliest=3, latest=8))
    new = again.discover()
    with pytest.raises(DataLostError, match=r"orders-new-0\[0,3\)"):
        again.cut((*read, *new))


@pytest.mark.parametrize("wider", [{"subscribe": "orders,old"}, {"subscribePattern": "o.*"}])
def test_a_partition_without_a_leader_is_as_old_as_its_topic(wider: dict[str, str]) -> None:
    bench = Bench()
    read = bench.cut(bench.start())
    bench.cluster.create("old", *(FakeLog(earliest=500, latest=510) for _ in range(2)))
    bench.cluster.leaderless.add(("old", 1))
    more = Bench(bench.cluster, **wider)
    more.enumerator.restore(read, timeout_s=TIMEOUT_S)
    assert bounds(more.discover()) == {"old-0": (500, 500)}
    bench.cluster.leaderless.clear()
    assert bounds(more.discover()) == {"old-1": (500, 500)}


def test_assigned_partitions_stay_as_they_are() -> None:
    bench = Bench(assign='{"orders":[1]}')
    assert bounds(bench.start()) == {"orders-1": (0, 0)}
    bench.cluster.topics["orders"][1][2] = FakeLog(latest=5)
    assert bench.discover() == ()
