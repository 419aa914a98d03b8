"""A restore takes positions over to another topic, or to the topic of another cluster."""

from dataclasses import replace

import pytest

from sluice.runtime.errors import SourceChangedError, UnreachableError
from sluice.runtime.model.splits import SplitRange
from tests.kit.source.fake_source_cluster import FakeLog
from tests.kit.source.source_setup import TIMEOUT_S, Bench


def at(*ends: int) -> tuple[SplitRange, ...]:
    return tuple(
        SplitRange(
            source_id="s",
            topic="orders",
            topic_id="of another cluster",
            partition=partition,
            start_offset=end,
            end_offset=end,
        )
        for partition, end in enumerate(ends)
    )


def test_positions_get_the_ids_of_the_new_topic() -> None:
    """Both ends of the log are positions in it, also when an open transaction hides the last
    records."""
    bench = Bench()
    bench.cluster.create("orders", FakeLog(earliest=4, latest=10), FakeLog(latest=20, end=25))
    found = bench.enumerator.adopt(at(4, 25), timeout_s=TIMEOUT_S)
    assert found == tuple(replace(split, topic_id="id-of-orders") for split in at(4, 25))
    bench.enumerator.restore(found, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize(
    ("ends", "named"),
    [((3, 0), r"position=3 log=\[4,10\)"), ((4, 26), r"position=26 log=\[0,25\)")],
)
def test_a_position_outside_of_the_new_log_is_refused(ends: tuple[int, int], named: str) -> None:
    """Also with failOnDataLoss=false: this is the wrong topic, not a loss."""
    bench = Bench(failOnDataLoss="false")
    bench.cluster.create("orders", FakeLog(earliest=4, latest=10), FakeLog(latest=20, end=25))
    with pytest.raises(SourceChangedError, match=named):
        bench.enumerator.adopt(at(*ends), timeout_s=TIMEOUT_S)


def test_a_partition_that_the_new_topic_lacks_is_refused() -> None:
    with pytest.raises(SourceChangedError, match="missing=orders-2"):
        Bench().enumerator.adopt(at(1, 2, 3), timeout_s=TIMEOUT_S)


def test_a_partition_without_a_leader_is_not_adopted() -> None:
    bench = Bench()
    bench.cluster.leaderless.add(("orders", 1))
    with pytest.raises(UnreachableError, match="orders-1"):
        bench.enumerator.adopt(at(1, 2), timeout_s=TIMEOUT_S)
