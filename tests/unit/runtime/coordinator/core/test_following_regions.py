"""Regions whose tasks follow their splits, savepoints on request, and work after a commit."""

import threading
from dataclasses import replace

import pytest

from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    BarrierPolled,
    EndJob,
    FetchBarrierOffsets,
    GiveBarrier,
    Progress,
    Publish,
    PublishPositions,
    RegionBarrierOffsets,
    Repair,
    Retire,
    Triggered,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, OnLost, RegionPlan
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.coordinator.shell.action_dispatcher import ListenerThread
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import CheckpointKind, Verdict
from sluice.runtime.model.splits import Barrier, BatchKey
from tests.kit.coordinator.core_driver import FAST, CoreDriver, split
from tests.kit.waiting import PATIENCE_S

_PLAN = RegionPlan(
    name="main", source_ids=("source",), sink_ids=("sink",), chained=True, follows=True
)


def _driver(settings: CheckpointSettings = FAST) -> CoreDriver:
    return CoreDriver(settings, regions=(_PLAN,))


def _ack(driver: CoreDriver, barrier: Barrier, batch_id: int, *, end: int) -> Acknowledgement:
    batch = BatchKey(region="main", attempt_id=0, batch_id=batch_id)
    made = driver.acknowledgement(batch, barrier)
    start = barrier.splits[0].start_offset
    return replace(made, region=replace(made.region, splits=(split(0, start, end),)))


def test_two_phase_repair_a_repair_ends_the_attempt_that_has_written_on() -> None:
    driver = _driver(replace(FAST, on_lost=OnLost.REPAIR))
    driver.outcomes[b"main.0.0"] = CommitOutcome.ABORTED
    driver.tick(1.0)
    barrier = driver.poll(10)
    assert barrier is not None
    driver.tell(Acknowledged(ack=_ack(driver, barrier, 0, end=10)))
    assert driver.seen(Repair)
    assert not driver.core.is_live("main", 0)


@pytest.mark.parametrize("is_lost", [False, True])
def test_two_phase_repair_nothing_is_decided_after_an_epoch_that_may_have_to_be_repaired(
    is_lost: bool,
) -> None:
    driver = _driver(replace(FAST, on_lost=OnLost.REPAIR, max_concurrent=2))
    driver.auto = False
    for batch_id, end in enumerate((10, 20)):
        driver.tick(1.0)
        barrier = driver.poll(end)
        assert barrier is not None
        driver.tell(Acknowledged(ack=_ack(driver, barrier, batch_id, end=end)))
        if batch_id == 0:
            driver.answer(driver.held.pop())  # decided, and not committed yet
    assert [action.checkpoint_id for action in driver.seen(Publish)] == [1]

    if is_lost:
        driver.outcomes[b"main.0.0"] = CommitOutcome.ABORTED
    driver.auto = True
    driver.answer(driver.held.pop())

    decided = [a.checkpoint_id for a in driver.seen(Publish) if a.verdict is Verdict.DECIDED]
    assert decided == ([1] if is_lost else [1, 2])
    assert bool(driver.seen(Repair)) is is_lost


def test_an_epoch_to_end_is_asked_for_though_nothing_is_left_to_cut() -> None:
    """A split of it was given away, or its partition is gone."""
    driver = _driver()
    driver.tick(1.0)
    polled = BarrierPolled(region="main", attempt_id=0, has_read=True)
    (asked,) = [a for a in driver.tell(polled) if isinstance(a, FetchBarrierOffsets)]
    assert asked.has_read
    cut = RegionBarrierOffsets(
        checkpoint_id=asked.checkpoint_id,
        region="main",
        attempt_id=0,
        splits=asked.positions,
        finished=False,
        has_read=asked.has_read,
    )
    (given,) = [a for a in driver.tell(cut) if isinstance(a, GiveBarrier)]
    assert all(s.is_empty for s in given.barrier.splits)
    assert [p.state for p in driver.core._state.pending.values()] == [State.ALIGNING]  # noqa: SLF001


def test_a_savepoint_waits_until_the_checkpoint_before_it_has_its_decision() -> None:
    driver = CoreDriver(replace(FAST, max_concurrent=1))
    driver.tick()
    barrier = driver.poll(3)
    driver.trigger(CheckpointKind.SAVEPOINT, "somebody")
    assert not driver.seen(Triggered)
    driver.ack(barrier)
    (triggered,) = driver.seen(Triggered)
    assert triggered.kind is CheckpointKind.SAVEPOINT
    driver.ack(driver.poll(3))
    decided = driver.seen(Publish)[-1]
    assert (decided.checkpoint_id, decided.kind) == (
        triggered.checkpoint_id,
        CheckpointKind.SAVEPOINT,
    )


def test_a_savepoint_does_not_wait_for_a_query_that_has_nothing_to_read() -> None:
    driver = CoreDriver(replace(FAST, interval_s=None))
    driver.ack()
    driver.trigger(CheckpointKind.SAVEPOINT, "somebody")
    first, savepoint = driver.seen(Publish)
    assert (savepoint.kind, savepoint.verdict) == (CheckpointKind.SAVEPOINT, Verdict.DECIDED)
    assert [r.batch_id for r in first.regions] == [1]
    assert [r.committables for r in savepoint.regions] == [()]


def _driver_post() -> CoreDriver:
    return CoreDriver(replace(FAST, interval_s=0.1))


def _told(driver: CoreDriver) -> list[int]:
    """End offsets that lag tools were reported."""
    return [action.positions[0].end_offset for action in driver.seen(PublishPositions)]


def test_the_newest_positions_are_reported_when_the_job_is_stopped() -> None:
    driver = _driver_post()
    driver.epoch(3)
    driver.tick(0.2)
    driver.epoch(6)
    driver.stop()
    assert _told(driver) == [3, 6]


def test_a_bounded_job_has_reported_its_last_positions_before_it_is_over() -> None:
    driver = _driver_post()
    for end in (3, 6):
        driver.epoch(end)
        driver.tick(0.2)
    while not driver.seen(EndJob):
        driver.tick(0.2)
        barrier = driver.poll(6, finished=True)
        if barrier is not None:
            driver.ack(barrier)
    assert _told(driver)[-1] == 6
    order = [type(a) for a in driver.log if isinstance(a, EndJob | PublishPositions | Retire)]
    assert order[-1] is EndJob


MOST = 1_000
"""News that wait for a listener."""


def _news(checkpoint_id: int) -> Progress:
    return Progress(
        checkpoint_id=checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        requested_by="interval",
        state=State.MARKED,
    )


class Hanging:
    """A listener that comes back when it is let go."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.began, self.let_go = threading.Event(), threading.Event()

    def on_progress(self, progress: Progress) -> None:
        self.seen.append(progress.checkpoint_id)
        self.began.set()
        assert self.let_go.wait(PATIENCE_S)


def test_news_for_a_listener_that_hangs_are_dropped_and_nobody_waits() -> None:
    listener = Hanging()
    thread = ListenerThread([listener])
    thread.publish(_news(0))
    assert listener.began.wait(PATIENCE_S)
    for number in range(1, 3 * MOST):
        thread.publish(_news(number))
    thread.stop(timeout_s=0.0)
    assert listener.seen == [0]
    listener.let_go.set()
    thread.stop(timeout_s=PATIENCE_S)
    assert listener.seen == list(range(MOST + 1))
