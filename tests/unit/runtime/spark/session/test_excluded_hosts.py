"""Hosts that a running Spark session shall use no more."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from sluice.runtime.errors import ConfigError
from sluice.runtime.spark.session.hosts import Executor, HostExclusion
from tests.kit.fakes import ManualClock


@dataclass
class Cluster:
    """`sluice.runtime.spark.session.hosts.Executors` in memory.

    Attributes:
        hosts: of executors by id, "-" in front of those that have ended.
        wanted: how many the session wants.
        looks: how often somebody asked.
        ends_at_once: the report to end is not active any more.
        reported: to end.
    """

    hosts: dict[str, str] = field(default_factory=dict)
    refusal: str | None = None
    wanted: int | None = None
    looks: int = 0
    ends_at_once: bool = True
    told: list[str] = field(default_factory=list)

    def known(self) -> Sequence[Executor]:
        self.looks += 1
        return [
            Executor(executor_id=key, host=host.lstrip("-"), is_active=not host.startswith("-"))
            for key, host in self.hosts.items()
        ]

    def end(self, executor_ids: Sequence[str], *, keep: int) -> None:
        self.wanted = keep
        self.told += executor_ids
        if not self.ends_at_once:
            return
        self.hosts |= {key: f"-{self.hosts[key]}" for key in executor_ids}


def test_executors_there_are_ended_and_not_replaced() -> None:
    """Those elsewhere stay, and the session wants no others."""
    cluster = Cluster({"0": "bad", "1": "good", "2": "bad", "3": "-gone"})
    exclusion = HostExclusion(cluster)
    exclusion.require(["bad"])
    assert exclusion.exclude(["bad"]) == 2
    assert cluster.wanted == 1
    assert [found.host for found in cluster.known() if found.is_active] == ["good"]


def test_one_that_is_started_there_later_is_ended_too() -> None:
    """In place of one that died elsewhere; looked for about once a second, and only if needed."""
    cluster, clock = Cluster({"0": "bad", "1": "good"}), ManualClock()
    exclusion = HostExclusion(cluster, clock=clock)
    exclusion.enforce()
    assert cluster.looks == 0
    exclusion.exclude(["bad"])
    cluster.hosts |= {"1": "-good", "2": "bad", "3": "good"}
    exclusion.enforce()
    assert cluster.hosts["2"] == "-bad"
    cluster.hosts["4"] = "bad"
    exclusion.enforce()
    assert cluster.hosts["4"] == "bad"
    clock.advance(1.0)
    exclusion.enforce()
    assert cluster.hosts["4"] == "-bad"


@pytest.mark.parametrize(
    ("cluster", "hosts", "why"),
    [
        (Cluster({}, refusal="its master is local[2]"), ["bad"], r"session.*local\[2\]"),
        (Cluster({"0": "good"}), ["god"], "hosts=god known=good"),
        (Cluster({"0": "bad", "1": "-good"}), ["bad"], "no executor would be left"),
        (Cluster({"0": "bad", "1": "good"}), ["bad", "good"], "no executor would be left"),
    ],
    ids=["local", "unknown", "the last one alive", "all"],
)
def test_what_cannot_be_done_is_refused_by_name(
    cluster: Cluster, hosts: list[str], why: str
) -> None:
    """And nothing is changed."""
    exclusion = HostExclusion(cluster)
    with pytest.raises(ConfigError, match=why):
        exclusion.require(hosts)
    assert cluster.wanted is None


def test_a_host_that_was_lost_may_be_excluded() -> None:
    """It may come back."""
    cluster = Cluster({"0": "-bad", "1": "good"})
    exclusion = HostExclusion(cluster)
    exclusion.require(["bad"])
    assert exclusion.exclude(["bad"]) == 0
    assert cluster.wanted is None


def test_an_executor_that_takes_its_time_is_reported_once() -> None:
    """To be reported again would change the number that the session wants."""
    cluster, clock = Cluster({"0": "bad", "1": "good"}, ends_at_once=False), ManualClock()
    exclusion = HostExclusion(cluster, clock=clock)
    exclusion.exclude(["bad"])
    for _ in range(3):
        clock.advance(1.0)
        exclusion.enforce()
    assert cluster.told == ["0"]
    cluster.hosts["2"] = "bad"
    clock.advance(1.0)
    exclusion.enforce()
    assert cluster.told == ["0", "2"]
    assert cluster.wanted == 1
