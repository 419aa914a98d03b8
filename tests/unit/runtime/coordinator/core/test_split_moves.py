"""Splits that change their region: by a decision, between whom, and what is refused."""

import dataclasses
from collections.abc import Mapping

import pytest

from sluice.runtime.coordinator.core.events import (
    BarrierPolled,
    FetchBarrierOffsets,
    GiveBarrier,
    NothingDue,
    Publish,
    RegionalStep,
    RegionBarrierOffsets,
    RegionFailed,
    RegionRestarted,
)
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint
from sluice.runtime.coordinator.core.reassignment import may_move
from sluice.runtime.coordinator.policy.assignment import Move
from sluice.runtime.coordinator.policy.balance import Choice, LoadBalancer, RegionLoad
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.region.region_pace import Pace
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.errors import ConfigError, IllegalTransitionError
from sluice.runtime.model.checkpoint_record import CheckpointKind, RegionRecord
from tests.kit.coordinator.core_driver import FAST, CoreDriver, split


class _Wishes:
    """Moves all splits of one region to another one, whenever it may; notes who may."""

    def __init__(self, source_region: str = "main", target_region: str = "side") -> None:
        self.source_region, self.target_region = source_region, target_region
        self.seen: list[dict[str, RegionLoad]] = []

    def choose(self, offered: Mapping[str, RegionLoad], overloaded: Mapping[str, int]) -> Choice:
        """See `Balancer.choose`."""
        self.seen.append(dict(offered))
        if not {self.source_region, self.target_region} <= offered.keys():
            return Choice()
        keys = sorted(offered[self.source_region].records)
        moves = (
            Move(split=key, source_region=self.source_region, target_region=self.target_region)
            for key in keys
        )
        return Choice(moves=tuple(moves))


def _plan(name: str, **changes: object) -> RegionPlan:
    made = RegionPlan(
        name=name, source_ids=("source",), sink_ids=("sink",), stateful_sink_ids=(), chained=True
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


_TWO = (_plan("main"), _plan("side"))


def _driver(wishes: _Wishes, *plans: RegionPlan, settings: CheckpointSettings = FAST) -> CoreDriver:
    return CoreDriver(
        dataclasses.replace(settings, balancer=wishes), regions=plans or _TWO, partitions=1
    )


def _checkpoint(driver: CoreDriver, end: int, *regions: str) -> None:
    driver.tick(1.0)
    for region in regions or ("main", "side"):
        barrier = driver.poll(end, region=region)
        if barrier is not None:
            driver.ack(barrier, region=region)


def _owned(driver: CoreDriver) -> dict[str, dict[str, int]]:
    return {view.region: dict(view.splits) for view in driver.status().regions}


def test_restore_by_attempt_a_split_moves_with_a_decision_and_goes_on_at_its_end() -> None:
    """The record says who read it last and who goes on; the taker's next range follows on."""
    driver = _driver(_Wishes())
    _checkpoint(driver, 5)
    decided = driver.seen(Publish)[0]
    assert decided.steps == (RegionalStep.MOVE,)
    assert [r.splits for r in decided.regions] == [(split(0, 0, 5),), (split(1, 0, 5),)]
    assert decided.assignment is not None
    assert decided.assignment.regions["main"] == frozenset()
    assert _owned(driver) == {"main": {}, "side": {"input-1": 5, "input-0": 5}}
    driver.tick(1.0)
    barrier = driver.poll(9, region="side")
    assert barrier is not None
    assert set(barrier.splits) == {split(0, 5, 9), split(1, 5, 9)}
    assert driver.poll(9) is None


def test_restore_by_attempt_a_move_takes_effect_only_once_its_decision_is_durable() -> None:
    """An answer that is awaited may be "taken": then nothing has moved."""
    driver = _driver(_Wishes())
    driver.auto = False
    _checkpoint(driver, 5)
    assert _owned(driver) == {"main": {"input-0": 5}, "side": {"input-1": 5}}
    driver.answer(driver.held.pop(0))
    assert _owned(driver) == {"main": {}, "side": {"input-1": 5, "input-0": 5}}


def test_restore_by_attempt_regions_that_are_carried_neither_give_nor_take() -> None:
    """The batch under way of a failed region, or its own log, may have the split in it."""
    regional = dataclasses.replace(FAST, handler=RegionalCheckpointHandler())
    wishes = _Wishes()
    driver = _driver(wishes, *_TWO, _plan("third"), settings=regional)
    driver.tick()
    driver.poll(5)
    driver.tell(RegionFailed(region="main", attempt_id=0, error=RuntimeError("a task failed")))
    for region in ("side", "third"):
        driver.ack(driver.poll(5, region=region), region=region)
    assert [seen.keys() for seen in wishes.seen] == [{"side", "third"}]
    assignment = driver.seen(Publish)[0].assignment
    assert assignment is not None
    assert assignment.regions["main"] == {split(0, 0, 0).key}


class _Stubborn(_Wishes):
    """Moves the first region's split wherever it wants to."""

    def choose(self, offered: Mapping[str, RegionLoad], overloaded: Mapping[str, int]) -> Choice:
        """See `Balancer.choose`."""
        return Choice(
            moves=(
                Move(
                    split=split(0, 0, 0).key, source_region="main", target_region=self.target_region
                ),
            )
        )


@pytest.mark.parametrize("target_region", ["main", "side"])
def test_restore_by_attempt_a_balancer_cannot_move_splits_of_a_carried_region(
    target_region: str,
) -> None:
    """Nothing is decided then, whatever it wants."""
    regional = dataclasses.replace(FAST, handler=RegionalCheckpointHandler())
    plans = (*_TWO, _plan("third"))
    driver = _driver(_Stubborn(target_region=target_region), *plans, settings=regional)
    driver.tick()
    driver.tell(RegionFailed(region="main", attempt_id=0, error=RuntimeError("a task failed")))
    driver.ack(driver.poll(5, region="side"), region="side")
    with pytest.raises(IllegalTransitionError, match="may not reassign"):
        driver.ack(driver.poll(5, region="third"), region="third")
    assert not driver.seen(Publish)


@pytest.mark.parametrize(
    "main",
    [
        _plan("main", stateful=True),
        _plan("main", stateful_sink_ids=None),
        _plan("main", stateful_sink_ids=("sink",)),
        _plan("main", chained=False),
        _plan("main", keeps_logs=True),
        _plan("main", source_ids=("other",)),
        _plan("main", sink_ids=("other",)),
    ],
    ids=["state", "sinks", "sink state", "planner", "drop-in", "source", "sink"],
)
def test_restore_by_attempt_regions_that_keep_something_keep_their_splits(main: RegionPlan) -> None:
    """State stays where its splits are; other sources, and other sinks, are not comparable."""
    wishes = _Wishes()
    driver = _driver(wishes, main, _plan("side"))
    driver.tick()
    driver.ack(driver.poll(5, region="side"), region="side")
    driver.tell(BarrierPolled(region="main", attempt_id=0))
    read = (split(0, 0, 5, source_id=main.source_ids[0]),)
    cut = RegionBarrierOffsets(
        checkpoint_id=1, region="main", attempt_id=0, splits=read, finished=False
    )
    (given,) = (a for a in driver.tell(cut) if isinstance(a, GiveBarrier))
    driver.ack(given.barrier)
    assert driver.seen(Publish)[0].assignment is not None
    assert wishes.seen == []


def test_a_sink_that_keeps_a_state_in_a_region_keeps_its_splits_there() -> None:
    """Whatever the plan says that it may keep."""
    wishes = _Wishes()
    driver = _driver(wishes)
    driver.tick()
    driver.ack(driver.poll(5), keeps=True)
    driver.ack(driver.poll(5, region="side"), region="side")
    wishes.seen.clear()
    _checkpoint(driver, 9)
    assert wishes.seen == []


def test_restore_by_attempt_a_region_that_has_cut_for_a_later_checkpoint_keeps_its_splits() -> None:
    """What it reads by then goes on from the decided end, and so would the taker's next range."""
    kept = RegionRecord(region="main", attempt_id=0, splits=(split(0, 0, 5),))
    region = RegionState(plan=_plan("main"), attempt_id=0, record=kept, pace=Pace(limit=1))
    checkpoint = PendingCheckpoint(
        checkpoint_id=3, kind=CheckpointKind.CHECKPOINT, requested_by="interval"
    )
    region.open_ranges = {3: (split(0, 5, 7),)}
    assert may_move(region, checkpoint)
    region.open_ranges[4] = (split(0, 7, 9),)
    assert not may_move(region, checkpoint)


def test_only_checkpoints_of_the_interval_move_splits() -> None:
    """A savepoint is taken to start elsewhere from, a final one to end."""
    wishes = _Wishes()
    driver = _driver(wishes)
    driver.trigger(CheckpointKind.SAVEPOINT, "user")
    _checkpoint(driver, 5)
    assert len(driver.seen(Publish)) == 1
    assert wishes.seen == []


def test_restore_by_attempt_a_cut_that_was_asked_for_before_a_move_is_not_taken() -> None:
    """Its region asks again, and is told of the splits that it has now."""
    driver = _driver(_Wishes())
    _checkpoint(driver, 5)
    driver.tick(1.0)
    asked = driver.tell(BarrierPolled(region="main", attempt_id=0))
    assert [a.positions for a in asked if isinstance(a, FetchBarrierOffsets)] == [()]
    late = RegionBarrierOffsets(
        checkpoint_id=2, region="main", attempt_id=0, splits=(split(0, 5, 9),), finished=False
    )
    assert driver.tell(late) == [NothingDue()]


def test_restore_by_attempt_a_new_life_begins_with_the_splits_that_the_decision_left_it() -> None:
    """Both regions' queries are restarted behind the move, as after a crash."""
    driver = _driver(_Wishes())
    _checkpoint(driver, 5)
    for region in ("main", "side"):
        driver.tell(RegionFailed(region=region, attempt_id=0, error=RuntimeError("failed")))
        driver.restart(region)
    restored = {r.region: r.restored.splits for r in driver.seen(RegionRestarted)}
    assert restored["main"] == ()
    assert set(restored["side"]) == {split(1, 0, 5), split(0, 5, 5)}


def test_loads_tell_what_was_cut_and_what_waits_behind_it() -> None:
    """By split, with the region's speed from barrier to acknowledgement."""
    wishes = _Wishes("nobody", "nobody")
    driver = _driver(wishes)
    driver.tick()
    driver.tell(BarrierPolled(region="main", attempt_id=0))
    cut = RegionBarrierOffsets(
        checkpoint_id=1,
        region="main",
        attempt_id=0,
        splits=(split(0, 0, 50),),
        finished=False,
        waiting={split(0, 0, 0).key: 7},
    )
    given = [a for a in driver.tell(cut) if isinstance(a, GiveBarrier)]
    driver.clock.advance(2.0)
    driver.ack(given[0].barrier)
    assert driver.poll(0, region="side") is None
    loads = wishes.seen[0]
    assert loads["main"] == RegionLoad(records={split(0, 0, 0).key: 57}, records_per_s=25.0)
    assert loads["side"] == RegionLoad(records={split(1, 0, 0).key: 0}, records_per_s=None)


def test_splits_are_not_moved_while_another_checkpoint_is_under_way() -> None:
    """A later epoch could hold what a move gives away."""
    with pytest.raises(ConfigError, match="max_concurrent=2"):
        CheckpointSettings(balancer=LoadBalancer(), max_concurrent=2)
