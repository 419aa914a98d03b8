"""Offsets of a consumer group, published after the decision for lag tools."""

import pytest

from sluice.runtime.errors import UnreachableError
from tests.kit.source.source_setup import Bench


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
    bench.enumerator.committed(bench.cut(bench.start()))
    assert bench.cluster.groups == {}
