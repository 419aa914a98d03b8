"""Positions after an open transaction: what readers may not see yet is not gone.

Offsets of Spark's own checkpoints and of consumer groups may lie there.
"""

import pytest

from sluice.runtime.errors import DataLostError, UnreachableError
from tests.kit.source.fake_source_cluster import FakeLog, FakeSourceCluster
from tests.kit.source.source_setup import Bench, bounds

_STARTS = '{"orders":{"0":1000}}'


def bench_of(log: FakeLog, **options: str) -> Bench:
    """A source that starts at 1,000 of this partition."""
    cluster = FakeSourceCluster()
    cluster.create("orders", log)
    return Bench(cluster, startingOffsets=_STARTS, **options)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_start_after_an_open_transaction_waits_for_its_end(
    fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = bench_of(FakeLog(latest=500, end=1000), failOnDataLoss=fails)
    position = bench.start()
    for _ in range(4):
        position = bench.cut(position)
        assert bounds(position) == {"orders-0": (1000, 1000)}
        bench.clock.pass_time(31)
    bench.cluster.log("orders").latest = 1200
    assert bounds(bench.cut(position)) == {"orders-0": (1000, 1200)}
    assert bench.enumerator.lost_records == 0
    assert not caplog.records


def test_a_bounded_run_after_an_open_transaction_has_nothing_to_read() -> None:
    cluster = FakeSourceCluster()
    cluster.create("orders", FakeLog(latest=500, end=1000))
    bench = Bench(cluster, bounded=True, startingOffsets=_STARTS)
    ranges = bench.cut(bench.start())
    assert bounds(ranges) == {"orders-0": (1000, 1000)}
    assert bench.enumerator.is_finished(ranges)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_log_that_ends_before_the_position_is_judged_as_before(fails: str) -> None:
    """A new leader may know a lower end for a moment; half a minute later it is a truncation."""
    bench = bench_of(FakeLog(latest=500, end=1000), failOnDataLoss=fails)
    position = bench.cut(bench.start())
    bench.cluster.log("orders").end = 700
    bench.cut(position)
    bench.clock.pass_time(29)
    bench.cut(position)
    bench.clock.pass_time(2)
    with pytest.raises(DataLostError, match=r"orders-0\[700,1000\)"):
        bench.cut(position)


def test_the_lowest_end_of_a_short_log_is_where_its_loss_begins() -> None:
    """Records that come while the log is found to be shorter are instead of lost ones."""
    bench = bench_of(FakeLog(latest=700))
    position = bench.cut(bench.start())
    bench.clock.pass_time(20)
    bench.cluster.log("orders").latest = 690
    bench.cut(position)
    bench.cluster.leaderless.add(("orders", 0))
    bench.cut(position)
    bench.cluster.leaderless.clear()
    bench.clock.pass_time(31)
    bench.cluster.log("orders").latest = 720
    with pytest.raises(DataLostError, match=r"orders-0\[690,1000\)"):
        bench.cut(position)


def test_a_lower_end_of_a_moment_is_no_loss() -> None:
    bench = bench_of(FakeLog(latest=500, end=1000))
    position = bench.cut(bench.start())
    for end in (700, 1000, 700):
        bench.cluster.log("orders").end = end
        assert bounds(bench.cut(position)) == {"orders-0": (1000, 1000)}
        bench.clock.pass_time(20)


def test_an_end_that_a_former_leader_tells_settles_nothing() -> None:
    """It is neither shorter for it, nor whole; a run that ends by itself says so."""
    log = FakeLog(latest=500, end=700, leader_epoch=3, end_epoch=2)
    bench = bench_of(log)
    position = bench.start()
    for _ in range(3):
        position = bench.cut(position)
        assert bounds(position) == {"orders-0": (1000, 1000)}
        bench.clock.pass_time(31)
    bounded = Bench(bench.cluster, bounded=True, startingOffsets=_STARTS)
    with pytest.raises(UnreachableError, match="orders-0"):
        bounded.cut(bounded.start())


def test_only_a_position_that_readers_do_not_see_costs_a_question() -> None:
    cluster = FakeSourceCluster()
    cluster.create("orders", FakeLog(latest=10), FakeLog(latest=5, end=9))
    bench = Bench(cluster)
    start = bench.start()
    assert cluster.end_requests == [{("orders", 0), ("orders", 1)}]  # once, of all
    bench.cut(bench.cut(start))
    assert len(cluster.end_requests) == 1
    behind = Bench(cluster, startingOffsets='{"orders":{"0":10,"1":9}}')
    start = behind.start()
    cluster.end_requests.clear()
    behind.cut(start)
    assert cluster.end_requests == [{("orders", 1)}]
