"""Splits that change their region, and a balanced job."""

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
from sluice.runtime.coordinator.policy.assignment import Move, assignment_of
from sluice.runtime.coordinator.policy.balance import Balancer, Choice, LoadBalancer, RegionLoad
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.coordinator.region.region_pace import Pace
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.errors import ConfigError, IllegalTransitionError
from sluice.runtime.functions.at_most_once import Drops, encode_drops
from sluice.runtime.functions.record_counts import encode_totals
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.checkpoint_record import CheckpointKind, RegionRecord
from sluice.runtime.model.splits import Barrier, SplitRange
from tests.kit.coordinator.core_driver import FAST, CoreDriver, split


class _Wishes:
    """Moves all splits of one region to another one, whenever it may; notes who may."""

    def __init__(self, source_region: str = "main", target_region: str = "side") -> None:
        self.source_region, self.target_region = source_region, target_region
        self.seen: list[dict[str, RegionLoad]] = []

    def choose(self, offered: Mapping[str, RegionLoad], overloaded: Mapping[str, int]) -> Choice:
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


def test_restore_by_attempt_a_split_moves_with_a_decision_and_continues_at_its_end() -> None:
    """The record says who read it last and who continues; the taker's next range follows on."""
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


def test_restore_by_attempt_regions_that_are_skipped_neither_give_nor_take() -> None:
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
    assert assignment.regions["main"] == {split(0, 0, 0).key}


class _Stubborn(_Wishes):
    """Moves the first region's split wherever it wants to."""

    def choose(self, offered: Mapping[str, RegionLoad], overloaded: Mapping[str, int]) -> Choice:
        return Choice(
            moves=(
                Move(
                    split=split(0, 0, 0).key, source_region="main", target_region=self.target_region
                ),
            )
        )


@pytest.mark.parametrize("target_region", ["main", "side"])
def test_restore_by_attempt_a_balancer_cannot_move_splits_of_a_skipped_region(
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
    wishes = _Wishes()
    driver = _driver(wishes)
    driver.tick()
    driver.ack(driver.poll(5), keeps=True)
    driver.ack(driver.poll(5, region="side"), region="side")
    wishes.seen.clear()
    _checkpoint(driver, 9)
    assert wishes.seen == []


def test_regions_that_count_records_for_on_error_and_drops_still_exchange_splits() -> None:
    """Totals are facts about the region, not about its splits; they stay where they are."""
    totals = (
        encode_totals(RecordCounts(read=5, skipped=1), operator_id="parse"),
        encode_drops(Drops(in_all=2, ranges=()), operator_id="source"),
    )
    wishes = _Wishes(source_region="nobody")
    driver = _driver(wishes)
    driver.tick()
    for region in ("main", "side"):
        driver.ack(driver.poll(5, region=region), region=region, states=totals)
    wishes.source_region = "main"
    driver.tick(1.0)
    for region in ("main", "side"):
        driver.ack(driver.poll(9, region=region), region=region, states=totals)
    assert _owned(driver) == {"main": {}, "side": {"input-1": 9, "input-0": 9}}
    kept = {region.region: region.operator_states for region in driver.seen(Publish)[-1].regions}
    assert kept == {"main": totals, "side": totals}


def test_restore_by_attempt_a_region_that_has_cut_for_a_later_checkpoint_keeps_its_splits() -> None:
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
    """Its region asks again, and is reported the splits that it has now."""
    driver = _driver(_Wishes())
    _checkpoint(driver, 5)
    driver.tick(1.0)
    asked = driver.tell(BarrierPolled(region="main", attempt_id=0))
    assert [a.positions for a in asked if isinstance(a, FetchBarrierOffsets)] == [()]
    late = RegionBarrierOffsets(
        checkpoint_id=2, region="main", attempt_id=0, splits=(split(0, 5, 9),), finished=False
    )
    assert driver.tell(late) == [NothingDue()]


def test_restore_by_attempt_a_new_attempt_begins_with_the_splits_that_the_decision_left_it() -> (
    None
):
    driver = _driver(_Wishes())
    _checkpoint(driver, 5)
    for region in ("main", "side"):
        driver.tell(RegionFailed(region=region, attempt_id=0, error=RuntimeError("failed")))
        driver.restart(region)
    restored = {r.region: r.restored.splits for r in driver.seen(RegionRestarted)}
    assert restored["main"] == ()
    assert set(restored["side"]) == {split(1, 0, 5), split(0, 5, 5)}


def test_splits_are_not_moved_while_another_checkpoint_is_under_way() -> None:
    """A later epoch could hold what a move gives away."""
    with pytest.raises(ConfigError, match="max_concurrent=2"):
        CheckpointSettings(balancer=LoadBalancer(), max_concurrent=2)


_REGIONS = ("r0", "r1", "r2", "r3")
_SPLITS_EACH = 4
_RECORDS = 500_000  # in each split
_SPEEDS = dict.fromkeys(_REGIONS, 20_000.0) | {"r0": 5_000.0}
_OVERHEAD_S = 0.3  # of an epoch, as Spark has it


def _cut(asked: FetchBarrierOffsets) -> RegionBarrierOffsets:
    left = {s.key: _RECORDS - s.end_offset for s in asked.positions}
    limit = asked.max_records or sum(left.values())
    share = min(1.0, limit / max(1, sum(left.values())))
    splits: tuple[SplitRange, ...] = tuple(
        dataclasses.replace(
            s, start_offset=s.end_offset, end_offset=s.end_offset + -int(-left[s.key] * share // 1)
        )
        for s in asked.positions
    )
    return RegionBarrierOffsets(
        checkpoint_id=asked.checkpoint_id,
        region=asked.region,
        attempt_id=asked.attempt_id,
        splits=splits,
        finished=False,
        waiting={s.key: _RECORDS - s.end_offset for s in splits},
    )


def _poll(driver: CoreDriver, region: str) -> Barrier | None:
    actions = driver.tell(BarrierPolled(region=region, attempt_id=0))
    for asked in [action for action in actions if isinstance(action, FetchBarrierOffsets)]:
        actions += driver.tell(_cut(asked))
    return next((a.barrier for a in actions if isinstance(a, GiveBarrier)), None)


def _seconds_until_all_is_read(balancer: Balancer | None) -> tuple[float, Mapping[str, int]]:
    driver = CoreDriver(
        CheckpointSettings(balancer=balancer),
        regions=[
            RegionPlan(name=name, source_ids=("source",), stateful_sink_ids=(), chained=True)
            for name in _REGIONS
        ],
        partitions=_SPLITS_EACH,
    )
    start_s = driver.clock()
    while True:
        driver.tick(0.05)
        barriers = [found for name in _REGIONS if (found := _poll(driver, name)) is not None]
        if not barriers:
            decided = driver.seen(Publish)[-1]
            done = all(s.end_offset == _RECORDS for r in decided.regions for s in r.splits)
            if done:
                counts = decided.assignment or assignment_of(decided.regions)
                return driver.clock() - start_s, {
                    name: len(keys) for name, keys in counts.regions.items()
                }
        ready = {found.region: _took_s(found) for found in barriers}
        began_s = driver.clock()
        for found in sorted(barriers, key=lambda barrier: ready[barrier.region]):
            driver.clock.advance(began_s + ready[found.region] - driver.clock())
            driver.ack(found, region=found.region)


def _took_s(barrier: Barrier) -> float:
    records = sum(s.end_offset - s.start_offset for s in barrier.splits)
    return _OVERHEAD_S + records / _SPEEDS[barrier.region]


def test_a_slow_region_is_relieved_and_the_job_is_done_sooner() -> None:
    """16 splits in 4 regions, one at a quarter of its speed: at least 1.3 times the throughput of
    the fixed assignment, from the first record to the last; no region is left without a split."""
    fixed_s, even = _seconds_until_all_is_read(None)
    balanced_s, counts = _seconds_until_all_is_read(LoadBalancer())
    assert set(even.values()) == {_SPLITS_EACH}
    assert fixed_s / balanced_s >= 1.3
    assert counts["r0"] < min(counts[name] for name in _REGIONS[1:])
    assert min(counts.values()) >= 1
    assert sum(counts.values()) == sum(even.values())
