"""Reads that end by themselves: never fewer records than asked for without a word."""

import pytest

from tests.fake_source_cluster import FakeLog, FakeSourceCluster
from tests.source_bench import Bench, bounds


def bench_of(*latest: int, **options: str) -> Bench:
    """A bounded source over partitions with so many records."""
    cluster = FakeSourceCluster()
    cluster.create("orders", *(FakeLog(latest=end) for end in latest))
    return Bench(cluster, bounded=True, **options)


def test_a_log_that_stays_short_is_named_while_it_is_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bounded job goes on; once it has grown nothing more is said."""
    bench = bench_of(10, endingOffsets='{"orders":{"0":15}}')
    position = bench.cut(bench.start())
    for _ in range(5):
        bench.clock.pass_time(15)
        bench.cut(position)
    assert caplog.text.count("partition=orders-0 log_end=10 end=15") == 2
    bench.cluster.log("orders").latest = 15
    assert bounds(bench.cut(position)) == {"orders-0": (10, 15)}
    assert caplog.text.count("log_end") == 2


def test_a_batch_read_that_stops_short_says_so_where_loss_is_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is planned once, and over before a log has been short for long."""
    bench = bench_of(10, 20, endingOffsets='{"orders":{"0":11,"1":20}}', failOnDataLoss="false")
    ranges = bench.cut(bench.start())
    bench.enumerator.require_readable_ends(ranges)
    assert bounds(ranges) == {"orders-0": (0, 10), "orders-1": (0, 20)}
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "fewer records are read than asked for" in record.getMessage()
    assert "orders-0: readable=10 ending=11" in record.getMessage()
    assert "orders-1" not in record.getMessage()


def test_a_batch_read_that_is_whole_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bench = bench_of(10, 20, failOnDataLoss="false")
    bench.enumerator.require_readable_ends(bench.cut(bench.start()))
    assert not caplog.records
