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
