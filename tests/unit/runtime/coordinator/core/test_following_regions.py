"""Regions whose tasks follow their splits, in the coordinator's core."""

from dataclasses import replace

import pytest

from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    BarrierPolled,
    Commit,
    EndJob,
    FailBatches,
    FetchBarrierOffsets,
    GiveBarrier,
    Publish,
    RegionBarrierOffsets,
    Repair,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, OnLost, RegionPlan
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.checkpoint_record import Verdict
from sluice.runtime.model.splits import Barrier, BatchKey
from tests.kit.coordinator.core_driver import FAST, CoreDriver, split

_PLAN = RegionPlan(
    name="main", source_ids=("source",), sink_ids=("sink",), chained=True, follows=True
)


def _driver(settings: CheckpointSettings = FAST) -> CoreDriver:
    return CoreDriver(settings, regions=(_PLAN,))


def _ack(driver: CoreDriver, barrier: Barrier, batch_id: int, *, end: int) -> Acknowledgement:
    """Of an epoch that ends elsewhere than what was cut."""
    batch = BatchKey(region="main", attempt_id=0, batch_id=batch_id)
    made = driver.acknowledgement(batch, barrier)
    start = barrier.splits[0].start_offset
    return replace(made, region=replace(made.region, splits=(split(0, start, end),)))


def test_the_next_epoch_begins_where_the_last_one_said_that_it_ends() -> None:
    """Before what was cut, or behind it; and no limit of an epoch is asked for."""
    driver = _driver()
    at = 0
    for batch_id, end in enumerate((70, 130, 131)):
        driver.tick(1.0)
        asked = driver.asked_cut()
        assert [s.end_offset for s in asked.positions] == [at]
        assert asked.max_records is None
        barrier = driver.poll(100 * (batch_id + 1))
        assert barrier is not None
        assert not barrier.is_last
        driver.tell(Acknowledged(ack=_ack(driver, barrier, batch_id, end=end)))
        at = end
    assert driver.core.last_committed == 3


def test_a_bounded_one_ends_when_a_cut_finds_nothing() -> None:
    """A cut up to the end says nothing of where the task was."""
    driver = _driver()
    driver.tick(1.0)
    barrier = driver.poll(100, finished=True)
    assert barrier is not None
    assert not barrier.is_last
    driver.tell(Acknowledged(ack=_ack(driver, barrier, 0, end=40)))
    assert not driver.seen(EndJob)
    driver.tick(1.0)
    barrier = driver.poll(100, finished=True)
    assert barrier is not None
    driver.tell(Acknowledged(ack=_ack(driver, barrier, 1, end=100)))
    driver.tick(1.0)
    assert driver.poll(100, finished=True) is None
    driver.tick()
    assert [end.finished for end in driver.seen(EndJob)] == [True]


def test_two_phase_repair_a_repair_ends_the_life_that_has_written_on() -> None:
    """What it has written since lies before what is written again: it must never be committed."""
    driver = _driver(replace(FAST, on_lost=OnLost.REPAIR))
    driver.outcomes[b"main.0.0"] = CommitOutcome.ABORTED
    driver.tick(1.0)
    barrier = driver.poll(10)
    assert barrier is not None
    driver.tell(Acknowledged(ack=_ack(driver, barrier, 0, end=10)))
    assert driver.seen(Repair)
    assert not driver.core.is_live("main", 0)


@pytest.mark.parametrize("is_lost", [False, True])
def test_two_phase_repair_nothing_is_decided_behind_an_epoch_that_may_have_to_be_repaired(
    is_lost: bool,
) -> None:
    """With several checkpoints at once: the later epoch lies before what a repair writes, and what
    is decided can no longer be aborted."""
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


def test_what_may_be_lost_undecided_is_given_up_in_time() -> None:
    """Another region is slow; the transaction of this one would be aborted by its broker."""
    slow = RegionPlan(name="side", source_ids=("source",))
    driver = CoreDriver(replace(FAST, timeout_s=600.0), regions=(_PLAN, slow))
    driver.tick(1.0)
    barrier = driver.poll(10)
    assert barrier is not None
    assert driver.poll(10, region="side") is not None
    ack = replace(_ack(driver, barrier, 0, end=10), decide_by_s=driver.clock() + 30.0)
    driver.tell(Acknowledged(ack=ack))
    deadline_s = driver.core.deadline_s()
    assert deadline_s is not None
    assert deadline_s <= driver.clock() + 30.0
    driver.tick(29.0)
    assert driver.core.is_live("main", 0)
    driver.tick(2.0)
    assert not driver.core.is_live("main", 0)
    assert not driver.seen(Commit)


def test_a_late_epoch_that_grew_old_costs_the_others_nothing() -> None:
    """It is told behind its time: it is read again, and nobody else is to blame."""
    others = (RegionPlan(name="side", source_ids=("source",)),)
    handler = RegionalCheckpointHandler(region_timeout_s=2.0)
    driver = CoreDriver(replace(FAST, handler=handler), regions=(_PLAN, *others))
    driver.tick(1.0)
    barrier = driver.poll(10)
    assert barrier is not None
    driver.ack(driver.poll(10, region="side"), region="side")
    driver.tick(2.5)  # decided without it
    late = replace(_ack(driver, barrier, 0, end=10), decide_by_s=driver.clock() + 0.0)
    driver.tell(Acknowledged(ack=late))
    driver.tick(1.0)
    assert not driver.core.is_live("main", 0)
    assert driver.core.is_live("side", 0)
    assert not driver.core.is_over


def test_a_late_epoch_that_grows_old_before_the_next_barrier_is_read_again() -> None:
    """It waits for a checkpoint that it would take down: the others' epochs go on without it."""
    others = (RegionPlan(name="side", source_ids=("source",)),)
    handler = RegionalCheckpointHandler(region_timeout_s=2.0)
    driver = CoreDriver(replace(FAST, handler=handler, interval_s=5.0), regions=(_PLAN, *others))
    driver.tick(1.0)
    barrier = driver.poll(10)
    assert barrier is not None
    driver.ack(driver.poll(10, region="side"), region="side")
    driver.tick(2.5)  # decided without it
    late = _ack(driver, barrier, 0, end=10)
    driver.tell(Acknowledged(ack=replace(late, decide_by_s=driver.clock() + 0.5)))
    assert driver.core.is_live("main", 0), "it is waiting for the next barrier"
    driver.tick(3.0)
    assert not driver.core.is_live("main", 0)
    (failed,) = driver.seen(FailBatches)
    assert failed.batches == (late.batch,)
    assert "too old to decide" in str(failed.error)
    driver.ack(driver.poll(20, region="side"), region="side")
    decided = driver.seen(Publish)[-1]
    assert (decided.verdict, decided.regions[0].committables) == (Verdict.DECIDED, ())


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
