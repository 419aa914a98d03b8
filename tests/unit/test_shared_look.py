"""One look at the brokers for all regions that are cut at the same time."""

from collections.abc import Collection

import pytest

from sluice.connectors.kafka.source.enumerator.cluster_view import SharedView
from sluice.connectors.kafka.source.enumerator.discovery import ClusterView, OffsetFact
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.runtime.errors import UnreachableError

ALL = [("orders", number) for number in range(4)]


class Bench:
    """A cluster that notes what it is asked for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.asked: list[set[PartitionKey]] = []
        self.timeouts_s: list[float] = []
        self.ends = dict.fromkeys(ALL, 100)
        self.leaderless: set[PartitionKey] = set()
        self.shared = SharedView(self, lambda: self.now_s)  # type: ignore[arg-type]

    def fetch_view(self, keys: Collection[PartitionKey], *, timeout_s: float) -> ClusterView:
        self.asked.append(set(keys))
        self.timeouts_s.append(timeout_s)
        if self.leaderless & set(keys):
            raise UnreachableError("no leader", {}, "Wait.")
        facts = {key: OffsetFact(offset=self.ends[key]) for key in keys}
        return ClusterView(topics={}, earliest={}, latest=facts)

    def cut(self, *numbers: int, start: int = 0) -> ClusterView:
        starts = {("orders", number): start for number in numbers}
        return self.shared.view_of(starts, ALL, timeout_s=10.0)


def test_regions_that_are_cut_together_cost_one_look() -> None:
    bench = Bench()
    looks = [bench.cut(0), bench.cut(1), bench.cut(2, 3)]
    assert len(bench.asked) == 1
    assert looks[0] is looks[1] is looks[2]


def test_who_cuts_again_looks_again() -> None:
    bench = Bench()
    bench.cut(0)
    bench.ends[ALL[0]] = 120
    assert bench.cut(0).latest[ALL[0]].offset == 120


def test_who_asks_what_is_there_now_looks_again() -> None:
    """Also at what another region's look has in store for it."""
    bench = Bench()
    bench.cut(0)
    bench.shared.forget()
    bench.cut(1)
    assert len(bench.asked) == 2


def test_a_look_is_shared_for_a_moment_only() -> None:
    bench = Bench()
    bench.cut(0)
    bench.now_s += 0.05
    bench.cut(1)
    assert len(bench.asked) == 2


def test_a_look_that_is_older_than_where_the_caller_is_is_not_used() -> None:
    bench = Bench()
    bench.cut(0)
    bench.ends[ALL[1]] = 150
    assert bench.cut(1, start=120).latest[ALL[1]].offset == 150


def test_what_the_first_one_did_not_ask_for_is_looked_up() -> None:
    bench = Bench()
    bench.shared.view_of({ALL[0]: 0}, [], timeout_s=1.0)
    bench.cut(1)
    assert len(bench.asked) == 2


def test_a_partition_without_a_leader_holds_up_no_other_region_for_longer_than_one_look() -> None:
    bench = Bench()
    bench.leaderless = {ALL[3]}
    assert bench.cut(0).latest.keys() == {ALL[0]}
    assert bench.timeouts_s == [1.0, 10.0], "a moment for all, and then the time there is"
    assert bench.cut(1).latest.keys() == {ALL[1]}
    with pytest.raises(UnreachableError):
        bench.cut(3)
    assert bench.cut(2).latest.keys() == {ALL[2]}
    bench.leaderless = set()
    bench.now_s += 31.0
    assert bench.cut(0).latest.keys() == set(ALL)
