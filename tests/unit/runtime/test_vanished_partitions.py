"""Topics and partitions that a source reads, or is to read, and that do not exist any more, or have
no leader."""

from dataclasses import replace
from unittest.mock import patch

import pytest

from sluice.connectors.kafka.source.splits import key_of
from sluice.runtime.errors import SourceChangedError
from tests.kit.source.fake_source_cluster import FakeLog, FakeSourceCluster
from tests.kit.source.source_setup import TIMEOUT_S, Bench, bounds


@pytest.mark.parametrize("gone", ["topic", "partition"])
def test_vanished_topic_or_partition_stops(gone: str) -> None:
    bench = Bench()
    position = bench.cut(bench.start())
    if gone == "topic":
        del bench.cluster.topics["orders"]
    else:
        del bench.cluster.topics["orders"][1][1]
    with pytest.raises(SourceChangedError, match="orders-1"):
        bench.cut(position)


def test_what_has_vanished_is_refused_each_time() -> None:
    """A region that was suspended for it is restarted by command, and asks for a cut again."""
    bench = Bench()
    position = bench.cut(bench.start())
    del bench.cluster.topics["orders"][1][1]
    for _ in range(3):
        with pytest.raises(SourceChangedError, match="orders-1"):
            bench.cut(position)
        with pytest.raises(SourceChangedError, match="orders-1"):
            bench.enumerator.readable(position, timeout_s=TIMEOUT_S)


def test_a_bounded_run_is_never_finished_without_what_has_vanished() -> None:
    bench = Bench(bounded=True)
    start = bench.start()
    read, _ = bench.cut(start)
    del bench.cluster.topics["orders"][1][1]
    for _ in range(2):
        with pytest.raises(SourceChangedError, match="orders-1"):
            bench.cut(start)
        assert not bench.enumerator.is_finished((read, start[1]))

    again = Bench(bounded=True)
    done = again.cut(again.start())
    again.cluster.topics["orders"][1][2] = FakeLog(latest=5)
    again.enumerator.restore(done, timeout_s=TIMEOUT_S)
    del again.cluster.topics["orders"][1][2]
    for _ in range(2):
        with pytest.raises(SourceChangedError, match="orders-2"):
            again.discover()


@pytest.mark.parametrize("bounded", [False, True])
def test_a_deleted_topic_is_gone_on_without_where_loss_is_allowed(bounded: bool) -> None:
    """Also over a restart, whether it is still named or not, and without waiting at each cut."""
    cluster = FakeSourceCluster()
    cluster.create("orders", FakeLog(latest=4))
    cluster.create("payments", FakeLog(latest=4))
    lenient = {"failOnDataLoss": "false", "bounded": bounded}
    bench = Bench(cluster, subscribe="orders,payments", **lenient)
    position = bench.cut(bench.start())
    del cluster.topics["payments"]
    for named in ("orders,payments", "orders"):
        again = Bench(cluster, subscribe=named, **lenient)
        again.enumerator.check(timeout_s=TIMEOUT_S)
        again.enumerator.restore(position, timeout_s=TIMEOUT_S)
        assert again.discover() == ()
        began_s = again.clock.now_s
        assert bounds(again.cut(position)) == {"orders-0": (4, 4), "payments-0": (4, 4)}
        assert again.clock.now_s == began_s
    with pytest.raises(SourceChangedError, match="payments"):
        Bench(cluster, subscribe="orders,payments", **lenient).start()


def test_what_is_gone_on_without_is_not_waited_for_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(failOnDataLoss="false")
    position = bench.cut(bench.start())
    del bench.cluster.topics["orders"][1][1]
    for _ in range(4):
        position = bench.cut(position)
        bench.clock.pass_time(31)
    assert "partitions=orders-1" in caplog.text, "it is said to be gone"
    assert "waited for" not in caplog.text


def test_nothing_more_is_cut_of_a_topic_that_was_deleted_with_a_backlog() -> None:
    """A task would ask for its records, and end the job that is to continue without them."""
    cluster = FakeSourceCluster()
    cluster.create("orders", FakeLog(latest=4))
    cluster.create("payments", FakeLog(latest=40))
    bench = Bench(
        cluster, subscribe="orders,payments", failOnDataLoss="false", maxOffsetsPerTrigger="4"
    )
    position = bench.cut(bench.start())
    del cluster.topics["payments"]
    before = bounds(position)["payments-0"][1]
    assert before < 40
    for _ in range(3):
        position = bench.cut(position)
        assert bounds(position)["payments-0"] == (before, before)


def test_a_bounded_run_does_not_wait_for_a_topic_that_is_deleted_under_it() -> None:
    bench = Bench(bounded=True, failOnDataLoss="false")
    start = bench.start()
    bench.cluster.topics.clear()
    assert bench.enumerator.is_finished(bench.cut(start))


def test_ranges_of_a_deleted_topic_are_left_out_where_loss_is_allowed() -> None:
    bench = Bench(failOnDataLoss="false")
    logged = bench.cut(bench.start())
    del bench.cluster.topics["orders"][1][1]
    assert bench.enumerator.readable(logged, timeout_s=TIMEOUT_S) == logged[:1]


def test_whoever_has_read_a_range_is_reported_what_it_is_of_now() -> None:
    """Not what a cut of another region saw a moment ago: it was read after that."""
    bench = Bench()
    read = bench.cut(bench.start())
    bench.cut(read[:1])
    bench.cluster.create("orders", FakeLog(latest=10), FakeLog(latest=20), topic_id="another")
    with pytest.raises(SourceChangedError, match="id-of-orders->another"):
        bench.enumerator.readable(read[1:], timeout_s=TIMEOUT_S)


def test_vanished_partition_is_left_out_where_loss_is_allowed() -> None:
    bench = Bench(failOnDataLoss="false")
    position = bench.cut(bench.start())
    del bench.cluster.topics["orders"][1][1]
    assert bounds(bench.cut(position)) == {"orders-0": (10, 10), "orders-1": (20, 20)}


def test_of_what_has_vanished_nothing_is_left_to_be_read() -> None:
    bench = Bench(failOnDataLoss="false", maxOffsetsPerTrigger="3")
    position = bench.cut(bench.start())
    assert bench.enumerator.lag_records(position[1:]) == 18
    del bench.cluster.topics["orders"][1][1]
    bench.cut(position)
    assert bench.enumerator.lag_records(position[1:]) == 0


def test_a_vanished_partition_is_judged_once_beside_cuts_of_other_regions() -> None:
    bench = Bench(failOnDataLoss="false")
    position = bench.cut(bench.start())
    mine, others = position[1:], position[:1]
    del bench.cluster.topics["orders"][1][1]
    bench.cut(mine)
    bench.cut(others)
    began_s = bench.clock()
    bench.cut(mine)
    assert bench.clock() == began_s, "it is not waited for again"


def test_a_partition_that_no_leader_reports_of_is_named_while_that_lasts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    position = bench.start()
    bench.cluster.leaderless.add(("orders", 1))
    for _ in range(7):
        position = bench.cut(position)
        bench.clock.pass_time(10)
    assert caplog.text.count("partition=orders-1; are all brokers up?") == 2
    assert "orders-0" not in caplog.text
    bench.cluster.leaderless.clear()
    bench.cut(position)
    bench.cluster.leaderless.add(("orders", 1))
    bench.cut(position)
    assert caplog.text.count("are all brokers up?") == 2, "it had one meanwhile"


def test_a_new_partition_that_no_leader_reports_of_is_named_while_that_lasts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.start()
    bench.cluster.topics["orders"][1][2] = FakeLog(latest=5)
    bench.cluster.leaderless.add(("orders", 2))
    for _ in range(5):
        assert bench.discover() == ()
        bench.clock.pass_time(10)
    assert caplog.text.count("partition=orders-2; are all brokers up?") == 1
    bench.cluster.leaderless.clear()
    assert bounds(bench.discover()) == {"orders-2": (0, 0)}


def test_a_topic_that_is_deleted_under_a_look_has_no_number() -> None:
    """Its end came in time, and what it is did not: both are asked for at once."""
    bench = Bench()
    position = bench.start()
    look = bench.cluster.fetch_view(list(map(key_of, position)), timeout_s=TIMEOUT_S)
    with patch.object(bench.cluster, "fetch_view", lambda *_, **__: replace(look, topics={})):
        assert bench.enumerator.measure(position, timeout_s=TIMEOUT_S) == {}
