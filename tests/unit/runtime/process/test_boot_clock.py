"""A driver that is paused hears nothing: that is nobody's silence, and what is open grows old."""

import dataclasses
from collections.abc import Iterator

import pytest

from sluice.runtime.contracts import RegionAttempt, RegisteredAttempt
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.embedded.ports import free_ports
from sluice.runtime.errors import RegionUnansweredError, UnreachableError
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import Barrier, BatchKey
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantClock, PauseTolerantTime
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient
from sluice.runtime.spark.run.attempt_supervisor import RegionAttempts
from tests.kit.coordinator.core_driver import FAST
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.fakes import FakeBroker, FakeSink, FakeSource, ManualClock
from tests.kit.waiting import PATIENCE_S, wait_for

_LONG_S = 100_000.0


def test_a_look_counts_no_more_than_its_step() -> None:
    """And a clock that goes back takes nothing away."""
    attended = PauseTolerantTime(longest_step_s=5.0)
    assert attended.advance(100.0) == 0.0
    assert attended.advance(103.0) == 3.0
    assert attended.advance(103.0 + _LONG_S) == 8.0
    assert attended.advance(0.0) == 8.0
    assert attended.advance(2.0) == 10.0 == attended.passed_s


def test_a_clock_that_is_looked_at_often_is_the_one_it_is_made_from() -> None:
    clock = ManualClock()
    attended = PauseTolerantClock(clock, longest_step_s=5.0)
    for _ in range(100):
        clock.advance(4.0)
        assert attended() == clock()
    clock.advance(_LONG_S)
    assert attended() == clock() - _LONG_S + 5.0


# --- the coordinator ------------------------------------------------------------------------------


class Run:
    """A coordinator whose clock is the test's, and one region of it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FakeStore()
        self.coordinator = BarrierCoordinator(
            JobPlan(name="job", regions=(RegionPlan(name="main", source_ids=("source",)),)),
            self.store,
            sinks={"sink": FakeSink(FakeBroker())},
            sources={"source": FakeSource("source", {0: 100})},
            settings=dataclasses.replace(FAST, timeout_s=60.0),
            clock=self.clock,
        )
        self.attempt_id = self.coordinator.start(PATIENCE_S).attempt_id

    def barrier(self) -> Barrier:
        """The region's first one."""
        self.clock.advance(2.0)
        found = wait_for(
            lambda: self.coordinator.poll_barrier("main", self.attempt_id, wait_s=0.1), poll_s=0.005
        )
        assert found is not None
        return found

    def acknowledge(self, barrier: Barrier, *, decide_by_s: float) -> BatchKey:
        batch = BatchKey(region="main", attempt_id=self.attempt_id, batch_id=1)
        self.coordinator.acknowledge(
            Acknowledgement(
                batch=batch,
                checkpoint_id=barrier.checkpoint_id,
                region=RegionRecord(
                    region="main", attempt_id=self.attempt_id, batch_id=1, splits=barrier.splits
                ),
                decide_by_s=decide_by_s,
            )
        )
        return batch


@pytest.fixture
def run() -> Iterator[Run]:
    made = Run()
    yield made
    made.coordinator.stop()


def test_a_checkpoint_does_not_expire_while_its_driver_is_paused(run: Run) -> None:
    barrier = run.barrier()
    run.clock.advance(_LONG_S)
    for _ in range(3):  # after a question the core is reported the time, if it is long since
        assert run.coordinator.is_live("main", run.attempt_id)
    batch = run.acknowledge(barrier, decide_by_s=run.clock() + 60.0)
    run.coordinator.await_committed(batch, timeout_s=PATIENCE_S)


def test_transaction_timeout_what_grew_old_in_a_pause_of_the_driver_is_not_decided(
    run: Run,
) -> None:
    barrier = run.barrier()
    decide_by_s = run.clock() + 60.0
    run.clock.advance(_LONG_S)
    run.acknowledge(barrier, decide_by_s=decide_by_s)
    wait_for(lambda: not run.coordinator.is_live("main", run.attempt_id), poll_s=0.005)
    assert "too old to decide" in str(run.coordinator.why_ended("main"))
    assert run.coordinator.last_committed == 0


# --- the regions' hosts ---------------------------------------------------------------------------


class _Silent:
    """A region's host that answers nothing."""

    def start(self, attempt: RegionAttempt, *, timeout_s: float) -> None:
        del attempt, timeout_s
        raise RegionUnansweredError("no answer", {}, "Look at it.")


def test_a_regions_host_was_not_away_while_the_driver_was_paused(run: Run) -> None:
    """It was asked once before, and once after."""
    handles = {"main": _Silent()}
    attempts = RegionAttempts(
        run.coordinator,
        handles,  # type: ignore[arg-type]  # no more than this is called
        outage_limit_s=900.0,
        clock=run.clock,
    )
    restored = RegionRecord(region="main", attempt_id=0)
    attempts.begin(RegionAttempt(attempt_id=run.attempt_id, restored=restored, after=0))
    run.clock.advance(_LONG_S)
    attempts.watch()

    def asked_in_each_second() -> None:
        for _ in range(900):
            run.clock.advance(1.0)
            attempts.watch()

    with pytest.raises(RegionUnansweredError):
        asked_in_each_second()


# --- the coordinator, seen by a task --------------------------------------------------------------


def test_a_task_that_stood_still_asks_again_before_it_gives_the_coordinator_up() -> None:
    clock = ManualClock()
    looks: list[float] = []

    def stops_at_each_look() -> float:
        clock.advance(_LONG_S)
        looks.append(clock())
        return clock()

    (port,) = free_ports(1)
    address = CoordinatorAddress(
        address=f"http://127.0.0.1:{port}", token="t", leader_session_id="s", job_uid="u"
    )
    batch = BatchKey(region="main", attempt_id=1, batch_id=1)
    attempt = RegisteredAttempt(batch=batch, operator_id="sink", resource="id", checkpoint_id=1)
    with (
        CoordinatorClient(address, deadline_s=60.0, clock=stops_at_each_look) as client,
        pytest.raises(UnreachableError, match=str(port)),
    ):
        client.register(attempt)
    assert len(looks) >= 6, "it was asked several times, and not for ever"
