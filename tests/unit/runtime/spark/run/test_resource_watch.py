"""Waiting for cores: reported once, only while tasks wait, and for a limited time."""

import logging
from dataclasses import dataclass

import pytest

from sluice.runtime.coordinator.region.status_views import WaitingForResources
from sluice.runtime.errors import MissingRequirementError
from sluice.runtime.spark.run.resource_watch import ResourceWatch
from tests.kit.fakes import ManualClock


@dataclass
class Slots:
    """What the session has."""

    count: int = 0
    starved: bool = True

    def present(self) -> int:
        return self.count

    def has_starved_stage(self) -> bool:
        return self.starved


class Bench:
    """A watch of a job that needs three cores, and what it reported."""

    def __init__(self, *, timeout_s: float | None = 60.0) -> None:
        self.slots, self.clock = Slots(1), ManualClock()
        self.reported: list[WaitingForResources | None] = []
        self.watch = ResourceWatch(
            self.slots,
            needed=3,
            timeout_s=timeout_s,
            report=self.reported.append,
            clock=self.clock,
            wall_ms=lambda: round(self.clock() * 1000),
        )

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.watch.check()
            self.clock.advance(1.0)


def test_a_job_that_lacks_cores_reports_it_once_and_its_end_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    began_ms = round(bench.clock() * 1000)
    with caplog.at_level(logging.INFO):
        bench.run(20)
        assert bench.reported == [WaitingForResources(needed=3, present=1, since_ms=began_ms)]
        bench.slots.count = 2
        bench.run(4)
        bench.slots.count = 3
        bench.run(4)
    assert bench.reported[1:] == [
        WaitingForResources(needed=3, present=2, since_ms=began_ms),
        None,
    ]
    lines = [each.getMessage() for each in caplog.records]
    assert lines == [
        "job state WAITING_FOR_RESOURCES: needed=3 present=1 timeout_s=60.0",
        "job has its resources: needed=3 present=3",
    ]


def test_a_moment_without_cores_is_not_reported() -> None:
    bench = Bench()
    bench.run(3)
    bench.slots.count = 3
    bench.run(3)
    bench.slots.count = 1
    bench.run(3)
    assert bench.reported == []


def test_a_session_without_work_needs_no_executors() -> None:
    """Dynamic allocation has ended them."""
    bench = Bench()
    bench.slots.starved = False
    bench.run(600)
    assert bench.reported == []


def test_a_stage_that_gets_one_task_going_does_not_end_the_wait() -> None:
    """Of three regions one has a core."""
    bench = Bench()
    bench.run(10)
    bench.slots.starved = False
    bench.run(10)
    assert len(bench.reported) == 1


def test_the_wait_ends_with_an_error_that_names_the_numbers() -> None:
    bench = Bench()
    bench.run(60)
    with pytest.raises(MissingRequirementError, match=r"needed=3 present=1 waited_s=60") as caught:
        bench.run(2)
    assert "resource_timeout_s" in str(caught.value)
    bench = Bench(timeout_s=None)
    bench.run(10_000)
