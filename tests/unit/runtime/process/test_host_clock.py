"""A host that sleeps or a driver that is paused: transactions age, and no wait ends early."""

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sluice.runtime.contracts import PublishOutcome, RegisteredAttempt
from sluice.runtime.coordinator.committing.commit_steps import drive
from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    Commit,
    Publish,
    Published,
    Tick,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.coordinator.policy.handlers import (
    RegionalCheckpointHandler,
)
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import RegionRecord, Verdict
from sluice.runtime.model.splits import Barrier, BatchKey
from sluice.runtime.process.host_clock import SleepMeter, age_clock, slept_s
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantTime
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.run_io_executor import hands_of
from tests.kit.fakes import FakeBroker, FakeSink, FakeSource, ManualClock
from tests.kit.waiting import PATIENCE_S, wait_for

_KEPT_S = 30.0  # for so long a broker keeps what is open


def sleep(*clocks: ManualClock, seconds: float) -> None:
    for clock in clocks:
        clock.advance(seconds)


def acknowledge(driver: CoreDriver, region: str = "main") -> None:
    """The region's next batch, which brokers keep for a while from now on."""
    barrier = driver.poll(3, region=region)
    batch = BatchKey(region=region, attempt_id=0, batch_id=1)
    decide_by_s = driver.clock() + driver.slept_s + _KEPT_S
    ack = replace(driver.acknowledgement(batch, barrier), decide_by_s=decide_by_s)
    driver.tell(Acknowledged(ack=ack))


# --- the clocks -----------------------------------------------------------------------------------


def test_sleep_is_what_the_clock_of_the_start_is_ahead() -> None:
    running, lasting = ManualClock(), ManualClock()
    sleep(lasting, seconds=5_000.0)
    slept = SleepMeter(running=running, lasting=lasting)
    running.advance(10.0)
    lasting.advance(10.0)
    assert slept() == 0.0
    sleep(lasting, seconds=60.0)
    sleep(lasting, seconds=7.0)
    assert slept() == 67.0


def test_a_thread_that_was_off_its_core_between_two_clocks_has_not_slept() -> None:
    running, wall = ManualClock(), ManualClock()
    pauses = iter([0.0, 30.0])

    def late() -> float:
        pause_s = next(pauses, 0.0)
        running.advance(pause_s)
        wall.advance(pause_s)
        return wall()

    slept = SleepMeter(running=running, lasting=late)
    assert slept() == 0.0


def test_this_host_has_an_age_clock() -> None:
    before_s = age_clock()
    assert time.monotonic() - 1e-3 <= age_clock() - slept_s()
    assert 0.0 <= age_clock() - before_s < PATIENCE_S


# --- the core -------------------------------------------------------------------------------------


def test_transaction_timeout_what_grew_old_while_the_host_slept_is_not_decided() -> None:
    """The brokers have gone on, and aborted it: decided it would be lost."""
    driver = CoreDriver(FAST, regions=TWO)
    driver.tick()
    acknowledge(driver)
    driver.slept_s = _KEPT_S
    acknowledge(driver, "side")
    assert not [each for each in driver.seen(Publish) if each.verdict is Verdict.DECIDED]
    assert "too old to decide" in str(driver.core.why_ended("main"))
    assert not driver.seen(Commit)


def test_a_sleep_that_brokers_outlast_ends_nothing() -> None:
    driver = CoreDriver(FAST, regions=TWO)
    driver.tick()
    acknowledge(driver)
    driver.slept_s = _KEPT_S - 1.0
    acknowledge(driver, "side")
    assert driver.core.last_committed == 1


def test_who_waits_has_not_waited_while_the_host_slept() -> None:
    driver = CoreDriver(FAST, regions=TWO)
    driver.tick()
    driver.ack(driver.poll(3))
    late = driver.poll(3, region="side")
    driver.slept_s = 100 * FAST.timeout_s
    driver.tick(FAST.timeout_s / 2)
    driver.ack(late, region="side")
    assert driver.core.last_committed == 1


def test_transaction_timeout_a_batch_that_waited_while_the_host_slept_joins_no_checkpoint() -> None:
    driver = CoreDriver(replace(FAST, handler=RegionalCheckpointHandler()), regions=TWO)
    driver.tick()
    driver.ack(driver.poll(3))
    driver.ack(driver.poll(3, region="side"), region="side")
    batch = BatchKey(region="main", attempt_id=0, batch_id=9)
    decide_by_s = driver.clock() + _KEPT_S
    ack = replace(driver.acknowledgement(batch, None), decide_by_s=decide_by_s)
    driver.tell(Acknowledged(ack=ack))
    driver.slept_s = _KEPT_S
    driver.tick(FAST.interval_s or 0.0)
    assert not driver.core.is_live("main", 0)
    assert driver.core.is_live("side", 0)


_REGIONAL = RegionalCheckpointHandler(max_failed_ratio=0.4)


def test_transaction_timeout_a_decision_on_its_way_is_looked_at_again_after_a_sleep() -> None:
    """It was asked for before, and the thread that makes it woke after."""
    driver = CoreDriver(FAST)
    driver.auto = False
    driver.tick()
    acknowledge(driver)
    (decision,) = driver.seen(Publish)
    store, ages = FakeStore(), ManualClock()
    io_executor = hands_of(store, age_clock=ages)
    sleep(ages, seconds=_KEPT_S)
    unknown = Published(checkpoint_id=1, outcome=PublishOutcome.UNKNOWN)
    assert drive(io_executor.perform(decision)) == unknown
    assert store.records == {}


def test_the_next_look_at_an_age_comes_by_the_clock_of_the_loop() -> None:
    driver = CoreDriver(FAST, regions=TWO)
    driver.tick()
    acknowledge(driver)
    driver.slept_s = _KEPT_S - 1.0
    driver.tell(Tick())
    assert driver.core.deadline_s() == driver.clock() + 1.0


def test_an_attempt_is_registered_by_the_age_clock() -> None:
    clock = ManualClock()
    plan = JobPlan(name="job", regions=(RegionPlan(name="main", source_ids=("source",)),))
    with BarrierCoordinator(
        plan,
        FakeStore(),
        sinks={"sink": FakeSink(FakeBroker())},
        sources={"source": FakeSource("source", {0: 100})},
        settings=FAST,
        clock=clock,
        slept=lambda: 500.0,
    ) as coordinator:
        started = coordinator.start(PATIENCE_S)
        batch = BatchKey(region="main", attempt_id=started.attempt_id, batch_id=1)
        attempt = RegisteredAttempt(batch=batch, operator_id="sink", resource="id", checkpoint_id=1)
        assert coordinator.register(attempt) == clock() + 500.0


_LONG_S = 100_000.0


def test_a_look_counts_no_more_than_its_step() -> None:
    attended = PauseTolerantTime(longest_step_s=5.0)
    assert attended.advance(100.0) == 0.0
    assert attended.advance(103.0) == 3.0
    assert attended.advance(103.0 + _LONG_S) == 8.0
    assert attended.advance(0.0) == 8.0
    assert attended.advance(2.0) == 10.0 == attended.passed_s


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
