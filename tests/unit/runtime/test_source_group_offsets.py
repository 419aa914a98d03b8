"""Offsets of a consumer group, published after the decision for lag tools."""

from dataclasses import replace
from itertools import pairwise

import pytest

from sluice.runtime.errors import UnreachableError
from tests.kit.source.fake_source_cluster import FakeLog
from tests.kit.source.source_setup import TIMEOUT_S, Bench


def test_group_offsets_are_published_after_the_decision() -> None:
    bench = Bench()
    cut = bench.cut(bench.start())
    assert bench.cluster.groups == {}
    bench.enumerator.committed(cut)
    assert bench.cluster.groups == {"group": {("orders", 0): 10, ("orders", 1): 20}}


def test_publishing_group_offsets_never_raises() -> None:
    bench = Bench()
    cut = bench.cut(bench.start())
    bench.cluster.is_reachable = False
    bench.enumerator.committed(cut)
    with pytest.raises(UnreachableError):
        bench.cut(cut)


def test_a_group_that_does_not_answer_is_left_alone_for_a_while() -> None:
    bench = Bench()
    cut = bench.cut(bench.start())
    bench.cluster.is_reachable = False
    bench.enumerator.committed(cut)
    bench.cluster.is_reachable = True
    bench.enumerator.committed(cut)
    assert bench.cluster.groups == {}
    bench.clock.pass_time(60)
    bench.enumerator.committed(cut)
    assert bench.cluster.groups == {"group": {("orders", 0): 10, ("orders", 1): 20}}


def test_group_offsets_can_be_switched_off() -> None:
    bench = Bench(commitGroupOffsets="false")
    positions = bench.cut(bench.start())
    bench.enumerator.committed(positions)
    bench.clock.pass_time(60)
    bench.cut(positions)
    assert bench.cluster.groups == {}


def test_offsets_of_living_topics_are_published_beside_a_deleted_one() -> None:
    """The broker refuses those of a topic that it does not have."""
    bench = Bench(subscribe="orders,returns", failOnDataLoss="false")
    bench.cluster.create("returns", FakeLog(latest=7))
    positions = bench.cut(bench.start())
    del bench.cluster.topics["returns"]
    again = Bench(bench.cluster, subscribePattern="orders|returns", failOnDataLoss="false")
    again.enumerator.restore(positions, timeout_s=TIMEOUT_S)
    again.enumerator.committed(positions)
    assert bench.cluster.groups["group"] == {("orders", 0): 10, ("orders", 1): 20}


@pytest.mark.parametrize("restores", [True, False])
def test_offsets_of_a_quiet_topic_are_published_again_before_brokers_delete_them(
    *, restores: bool
) -> None:
    """A group without members loses them a minute after the last publication, at the earliest."""
    bench = Bench()
    positions = bench.cut(bench.start())
    if restores:
        bench.enumerator.restore(positions, timeout_s=TIMEOUT_S)
    else:
        bench.enumerator.committed(positions)
    published: list[float] = []
    began_s = bench.clock()
    for _ in range(300):
        bench.cluster.groups.clear()
        bench.cut(positions)
        if bench.cluster.groups:
            assert bench.cluster.groups == {"group": {("orders", 0): 10, ("orders", 1): 20}}
            published.append(bench.clock() - began_s)
        bench.clock.pass_time(1.0)
    assert 10 <= len(published) <= 20, "in time, and cheaply"
    assert max(b - a for a, b in pairwise([0.0, *published])) <= 30.0


def test_only_the_offsets_that_are_old_are_published_again() -> None:
    """Regions may commit at different times; another one's new position is not taken back."""
    bench = Bench()
    first, second = bench.cut(bench.start())
    bench.cluster.log("orders", 1).latest = 200
    bench.enumerator.committed([first, second])
    for _ in range(100):
        bench.clock.pass_time(1.0)
        second = replace(second, end_offset=second.end_offset + 1)
        bench.cluster.groups.clear()
        bench.enumerator.committed([second])
        bench.cut((first, second))
        assert bench.cluster.groups["group"]["orders", 1] == second.end_offset


def test_a_group_that_does_not_answer_delays_few_barriers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, asked = Bench(), list[float]()
    positions = bench.cut(bench.start())
    bench.enumerator.committed(positions)

    def commit(*_: object, timeout_s: float) -> None:
        asked.append(timeout_s)
        raise UnreachableError("no coordinator", {}, "Wait.")

    monkeypatch.setattr(bench.cluster, "commit", commit)
    for _ in range(300):
        bench.cut(positions)
        bench.clock.pass_time(1.0)
    assert len(asked) <= 5
    assert set(asked) == {1.0}
