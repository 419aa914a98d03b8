"""The assignment of splits to regions inside decisions: what is recorded, restored and refused."""

import dataclasses

import pytest

from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    Publish,
    RegionFailed,
    SplitsDiscovered,
)
from sluice.runtime.coordinator.policy.assignment import Move, moved
from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.errors import DamagedCheckpointError, IllegalTransitionError
from sluice.runtime.model.checkpoint_record import Assignment, RegionRecord, RegionStatus
from sluice.runtime.model.splits import BatchKey, SplitKey
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver, split
from tests.kit.coordinator.starting_job import PLAN, Job, record

_REGIONAL = dataclasses.replace(FAST, handler=RegionalCheckpointHandler())
_TWO_PLAN = dataclasses.replace(
    PLAN,
    regions=tuple(
        RegionPlan(name=name, source_ids=("source",), sink_ids=("sink",))
        for name in ("main", "side")
    ),
)


def _keys(*partitions: int) -> frozenset[SplitKey]:
    return frozenset(split(number, 0, 0).key for number in partitions)


def _discover(driver: CoreDriver, partition: int, *, at: int = 0) -> None:
    new = (split(partition, at, at),)
    driver.tell(SplitsDiscovered(source_id="source", splits=new))


def _checkpoint(driver: CoreDriver, end: int) -> Publish:
    driver.tick(1.0)
    for region in ("main", "side"):
        barrier = driver.poll(end, region=region)
        assert barrier is not None
        driver.ack(barrier, region=region)
    return driver.seen(Publish)[-1]


def test_a_decision_records_the_assignment_and_its_version_rises_with_it_alone() -> None:
    """Positions change with every decision, the assignment with a new split."""
    driver = CoreDriver(FAST, regions=TWO)
    first, second = _checkpoint(driver, 1), _checkpoint(driver, 2)
    assert first.assignment == Assignment(version=1, regions={"main": _keys(0), "side": _keys(1)})
    assert second.assignment == first.assignment
    _discover(driver, 2)
    _discover(driver, 3)
    third = _checkpoint(driver, 3)
    assert third.assignment == Assignment(
        version=2, regions={"main": _keys(0, 2), "side": _keys(1, 3)}
    )


def test_restore_by_attempt_a_new_split_is_on_record_where_it_begins_though_its_region_is_skipped() -> (
    None
):
    driver = CoreDriver(_REGIONAL, regions=TWO)
    _checkpoint(driver, 1)
    _discover(driver, 2, at=7)  # main's, by order
    driver.tick(1.0)
    driver.tell(RegionFailed(region="main", attempt_id=0, error=RuntimeError("a task failed")))
    driver.ack(driver.poll(9, region="side"), region="side")
    decided = driver.seen(Publish)[-1]
    main = decided.regions[0]
    assert main.status is RegionStatus.SKIPPED
    assert [s for s in main.splits if s.partition == 2] == [split(2, 7, 7)]
    assert decided.assignment is not None
    assert decided.assignment.regions == {"main": _keys(0, 2), "side": _keys(1)}
    attempt_id = driver.restart()
    driver.tick(1.0)
    barrier = driver.poll(9, attempt_id=attempt_id)
    assert split(2, 7, 9) in barrier.splits


@pytest.mark.parametrize("decided", [True, False])
def test_restore_by_attempt_a_batch_that_reads_a_split_of_another_region_is_refused(
    *, decided: bool
) -> None:
    """Also one that is assigned and not on record yet; nothing of the batch is taken in."""
    driver = CoreDriver(FAST, regions=TWO)
    foreign = 1 if decided else 3
    _discover(driver, 2)  # main's
    _discover(driver, 3)  # side's
    driver.tick()
    barrier = driver.poll(5)
    stolen = dataclasses.replace(barrier, splits=(*barrier.splits, split(foreign, 0, 5)))
    batch = BatchKey(region="main", attempt_id=0, batch_id=1)
    with pytest.raises(IllegalTransitionError, match=f"splits=input-{foreign}"):
        driver.tell(Acknowledged(ack=driver.acknowledgement(batch, stolen)))
    driver.ack(driver.poll(5, region="side"), region="side")
    assert not driver.seen(Publish)


# --- at a start -----------------------------------------------------------------------------------


def _job(assignment: Assignment | None, *, side: tuple[int, ...] = ()) -> Job:
    main = record(1)
    there = RegionRecord(
        region="side", attempt_id=0, splits=tuple(split(number, 3, 4) for number in side)
    )
    made = dataclasses.replace(main, regions=(*main.regions, there), assignment=assignment)
    return Job(record(0), made, committed=(0, 1))


def test_a_record_of_format_version_1_leaves_every_split_where_it_is() -> None:
    """It has no assignment; the next decision records one."""
    found = _job(None, side=(1,)).start(plan=_TWO_PLAN)
    assert found.assignment == Assignment(version=1, regions={"main": _keys(0), "side": _keys(1)})
    assert found.regions["side"].splits == (split(1, 3, 4),)


@pytest.mark.parametrize(
    "assignment",
    [
        Assignment(version=2, regions={"main": _keys(0), "side": _keys()}),
        Assignment(version=2, regions={"main": _keys(0), "side": _keys(1, 2)}),
        Assignment(version=2, regions={"main": _keys(0, 1)}),
    ],
    ids=["nobody reads a split", "a split has no position", "a region is missing"],
)
def test_an_assignment_that_does_not_fit_its_positions_is_refused_before_anything_changes(
    assignment: Assignment,
) -> None:
    job = _job(assignment, side=(1,))
    before = dict(job.store.records)
    with pytest.raises(DamagedCheckpointError, match="name different splits"):
        job.start(plan=_TWO_PLAN)
    assert job.store.records == before


@pytest.mark.parametrize(
    "move",
    [
        Move(split=split(1, 0, 0).key, source_region="main", target_region="side"),
        Move(split=split(0, 0, 0).key, source_region="gone", target_region="side"),
        Move(split=split(0, 0, 0).key, source_region="main", target_region="gone"),
    ],
    ids=["what the giver lacks", "from nowhere", "to nowhere"],
)
def test_restore_by_attempt_a_move_that_would_lose_or_double_a_split_is_refused(move: Move) -> None:
    assignment = Assignment(version=1, regions={"main": _keys(0), "side": _keys(1)})
    with pytest.raises(IllegalTransitionError, match="Nothing was decided"):
        moved(assignment, [move])
