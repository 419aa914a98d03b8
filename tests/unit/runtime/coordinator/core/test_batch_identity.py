"""How the coordinator knows a batch (region, attempt, number), and batches that a sink requests."""

import dataclasses
from dataclasses import replace

import pytest

from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    EndJob,
    Publish,
    RegionFailed,
    RegionRestarted,
    RestartRequested,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.coordinator.region.region_pace import Pace
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.errors import FencedError, IllegalTransitionError, StreamError, WrongJobError
from sluice.runtime.model import offsets
from sluice.runtime.model.checkpoint_record import CheckpointKind, RegionRecord, StateSnapshot
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.model.splits import Barrier, BatchKey, SplitRange
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver, split


def test_an_older_attempt_is_refused_and_changes_nothing() -> None:
    """Rule `callback-after-commit`: every message skips the region's attempt."""
    driver = CoreDriver(FAST)
    driver.tick()
    barrier = driver.poll(3)
    driver.tell(RestartRequested(region="main"))
    before = driver.status()
    with pytest.raises(FencedError):
        driver.ack(barrier)
    with pytest.raises(FencedError):
        driver.poll(3)
    with pytest.raises(FencedError):
        driver.core.require_wanted(BatchKey(region="main", attempt_id=0, batch_id=1))
    assert driver.status() == before


def test_an_acknowledgement_may_be_repeated() -> None:
    driver = CoreDriver(FAST, regions=TWO)
    driver.tick()
    barrier = driver.poll(3)
    batch = driver.ack(barrier)
    again = Acknowledged(ack=driver.acknowledgement(batch, barrier))
    driver.tell(again)
    driver.poll(0, region="side")
    driver.tell(again)
    assert driver.core.last_committed == 1
    driver.tick(5.0)
    assert len(driver.seen(Publish)) == 1


def test_a_batch_that_no_barrier_asked_for_joins_the_next_checkpoint() -> None:
    """Rule `batch-identity`: known by (region, attempt, batch id), never by the label in the
    offset."""
    driver = CoreDriver(FAST)
    driver.epoch(3)
    batch = driver.ack(None)
    assert not driver.core.is_decided(batch)
    driver.tick(1.0)
    assert driver.core.is_decided(batch)
    assert driver.seen(Publish)[1].checkpoint_id == 2


def test_it_joins_a_checkpoint_that_is_under_way() -> None:
    driver = CoreDriver(FAST, regions=TWO)
    driver.tick()
    driver.poll(3)
    driver.ack(None, region="side")
    driver.ack(driver.poll(3))
    assert [r.batch_id for r in driver.seen(Publish)[0].regions] == [1, 1]


def test_batch_ids_of_a_stateless_region_mean_nothing_in_its_next_attempt() -> None:
    """Its logs begin again: batch 1 of a new attempt is another batch."""
    driver = CoreDriver(FAST)
    driver.epoch(3)
    driver.tell(RestartRequested(region="main"))
    attempt_id = driver.seen(RegionRestarted)[0].attempt_id
    assert driver.core.is_decided(BatchKey(region="main", attempt_id=0, batch_id=1))
    assert not driver.core.is_decided(BatchKey(region="main", attempt_id=attempt_id, batch_id=1))


@pytest.mark.parametrize(
    "plan",
    [
        RegionPlan(name="main", source_ids=("source",), stateful=True),
        RegionPlan(name="main", source_ids=("source",), keeps_logs=True),
    ],
)
def test_batch_ids_that_continue_are_recognised_in_the_next_attempt(plan: RegionPlan) -> None:
    """Rule `batch-identity` and `stateful-replay`: Spark replays its last batch under a new
    attempt."""
    driver = CoreDriver(FAST, regions=[plan])
    driver.epoch(3)
    driver.tell(RestartRequested(region="main"))
    attempt_id = driver.seen(RegionRestarted)[0].attempt_id
    assert driver.core.is_decided(BatchKey(region="main", attempt_id=attempt_id, batch_id=1))
    assert not driver.core.is_decided(BatchKey(region="main", attempt_id=attempt_id, batch_id=2))


def test_a_batch_over_decided_ranges_is_refused() -> None:
    """It would double them, whatever its identity claims."""
    driver = CoreDriver(FAST)
    driver.epoch(3)
    batch = BatchKey(region="main", attempt_id=0, batch_id=9)
    ack = driver.acknowledgement(batch)
    doubled = dataclasses.replace(
        ack, region=dataclasses.replace(ack.region, splits=(split(0, 2, 5),))
    )
    with pytest.raises(IllegalTransitionError, match="input-0"):
        driver.tell(Acknowledged(ack=doubled))


def _batch(driver: CoreDriver, number: int, *splits: SplitRange) -> None:
    ack = driver.acknowledgement(BatchKey(region="main", attempt_id=0, batch_id=number))
    driver.tell(Acknowledged(ack=replace(ack, region=replace(ack.region, splits=splits))))


def test_a_topic_that_a_drop_in_query_gave_up_begins_as_a_new_one() -> None:
    """Its batches have all positions of a source, so one without the topic has given it up
    (``forgetTopics``). Positions of another source stay."""
    other = replace(split(0, 0, 5), source_id="second")
    returns = replace(split(0, 0, 7), topic="returns")
    by_trigger = CheckpointSettings(interval_s=None)
    driver = CoreDriver(by_trigger, regions=[RegionPlan(name="main", keeps_logs=True)])
    _batch(driver, 1, split(0, 0, 3), split(1, 0, 2), returns, other)
    _batch(driver, 2, split(0, 3, 4))
    decided = driver.seen(Publish)[-1]
    keys = {split(0, 3, 4).key, split(1, 0, 2).key, other.key}
    assert {each.key for each in decided.regions[0].splits} == keys
    assert decided.assignment is not None
    assert decided.assignment.regions == {"main": keys}
    with pytest.raises(IllegalTransitionError, match="input-1"):
        _batch(driver, 3, split(0, 4, 5), split(1, 0, 1))
    _batch(driver, 3, split(0, 4, 5), replace(returns, start_offset=0))
    found = driver.seen(Publish)[-1]
    assert found.assignment is not None
    assert found.assignment.regions == {"main": keys | {returns.key}}


def test_a_job_keeps_the_positions_of_a_topic_that_a_batch_has_not_read() -> None:
    """Its batch names the splits that had records."""
    driver = CoreDriver(FAST, regions=[RegionPlan(name="main", source_ids=("source",))])
    returns = replace(split(0, 0, 7), topic="returns")
    _batch(driver, 1, split(0, 0, 3), returns)
    driver.tick(1.0)
    _batch(driver, 2, split(0, 3, 4))
    driver.tick(1.0)
    keys = {each.key for each in driver.seen(Publish)[-1].regions[0].splits}
    assert keys == {split(0, 0, 3).key, returns.key}


def test_a_second_batch_before_the_first_is_decided_is_a_bug() -> None:
    driver = CoreDriver(FAST)
    driver.epoch(3)
    driver.ack(None)
    with pytest.raises(IllegalTransitionError):
        driver.ack(None)


def test_an_unknown_region_is_refused() -> None:
    with pytest.raises(WrongJobError, match="other"):
        CoreDriver(FAST).poll(3, region="other")


BOUNDED = (RegionPlan(name="main", source_ids=("source",), bounded=True),)


def test_an_asked_batch_has_a_barrier_without_records_once_its_time_has_come() -> None:
    driver = CoreDriver(FAST)
    driver.tick()
    driver.ack(driver.poll(3), again_in_s=5.0)
    driver.tick(4.0)
    assert driver.poll(3) is None
    driver.tick(1.0)
    asked = driver.poll(3)
    assert [(s.start_offset, s.end_offset) for s in asked.splits] == [(3, 3)]
    assert driver.poll(3) == asked
    driver.ack(asked)
    driver.tick(60.0)
    assert driver.poll(3) is None


def test_records_that_come_first_are_cut_as_ever() -> None:
    driver = CoreDriver(FAST)
    driver.tick()
    driver.ack(driver.poll(3), again_in_s=5.0)
    driver.tick(2.0)
    driver.ack(driver.poll(4))
    driver.tick(60.0)
    assert driver.poll(4) is None


def test_a_sink_that_keeps_a_state_is_asked_at_once_in_each_attempt() -> None:
    driver = CoreDriver(FAST)
    driver.tick()
    driver.ack(driver.poll(3), keeps=True, again_in_s=60.0)
    driver.tick(1.0)
    assert driver.poll(3) is None
    driver.tell(RegionFailed(region="main", attempt_id=0, error=StreamError("x", {}, "")))
    attempt_id = driver.restart()
    driver.tick(1.0)
    asked = driver.poll(3, attempt_id=attempt_id)
    assert asked is not None
    driver.ack(asked, attempt_id=attempt_id)
    driver.tick(1.0)
    assert driver.poll(3, attempt_id=attempt_id) is None


def test_a_region_without_states_and_wishes_runs_no_empty_batch() -> None:
    driver = CoreDriver(FAST)
    driver.epoch(3)
    driver.tick(60.0)
    assert driver.poll(3) is None


@pytest.mark.parametrize("end", [3, 4])
def test_the_last_batch_of_a_bounded_run_knows_that_it_is(end: int) -> None:
    """Also where the sources turn out to have ended with the batch before it."""
    driver = CoreDriver(FAST, regions=BOUNDED)
    driver.tick()
    first = driver.poll(3)
    assert not first.publishes_all
    driver.ack(first, keeps=True, again_in_s=60.0)
    driver.tick(1.0)
    last = driver.poll(end, finished=True)
    assert last.publishes_all
    driver.ack(last)
    assert driver.seen(Publish)[-1].kind is CheckpointKind.FINAL
    assert driver.seen(EndJob)[-1].finished


def test_a_bounded_run_that_nobody_asks_ends_without_an_empty_batch() -> None:
    driver = CoreDriver(FAST, regions=BOUNDED)
    driver.epoch(3)
    driver.tick(1.0)
    assert driver.poll(3, finished=True) is None
    driver.poll(3, finished=True)
    assert driver.seen(EndJob)[-1].finished


@pytest.mark.parametrize("publishes_all", [False, True])
def test_the_end_travels_with_the_barrier(publishes_all: bool) -> None:
    """Through the service and through Spark's offset."""
    barrier = Barrier(
        checkpoint_id=4,
        region="main",
        attempt_id=3,
        splits=(split(0, 5, 5),),
        publishes_all=publishes_all,
    )
    assert from_json(Barrier, to_json(barrier)) == barrier
    assert offsets.decode(offsets.encode(barrier)) == barrier


STATEFUL = RegionPlan(name="main", source_ids=("source",), stateful=True)


def test_a_quiet_state_has_a_batch_where_it_has_something_to_give_and_no_other() -> None:
    """As Spark runs one without records: each of them would write a whole result once more."""
    driver = CoreDriver(FAST, regions=[STATEFUL])
    driver.tick()
    assert driver.poll(0) is None, "there is no state yet"
    driver.ack(driver.poll(3), state_is_due=True)
    driver.tick(1.0)
    barrier = driver.poll(3)
    assert all(found.is_empty for found in barrier.splits)
    driver.ack(barrier)
    driver.tick(1.0)
    assert driver.poll(3) is None
    assert driver.poll(4) is not None


def test_a_state_is_asked_once_in_each_attempt() -> None:
    driver = CoreDriver(FAST, regions=[STATEFUL])
    driver.tick()
    first = BatchKey(region="main", attempt_id=0, batch_id=1)
    kept = driver.acknowledgement(first, driver.poll(3))
    state = StateSnapshot(
        provider="RocksDB", checkpoint_format_version=2, state_version=2, state_partitions=1
    )
    driver.tell(Acknowledged(ack=replace(kept, region=replace(kept.region, state=state))))
    attempt_id = driver.restart()
    driver.tick(1.0)
    barrier = driver.poll(3, attempt_id=attempt_id)
    assert barrier is not None
    second = BatchKey(region="main", attempt_id=attempt_id, batch_id=2)
    driver.tell(Acknowledged(ack=driver.acknowledgement(second, barrier)))
    driver.tick(1.0)
    assert driver.poll(3, attempt_id=attempt_id) is None


def test_a_region_that_has_become_stateless_has_no_batch_without_records() -> None:
    """And its batches are reported from those of older lives by their attempt, not by their ids."""
    state = StateSnapshot(
        provider="RocksDB", checkpoint_format_version=2, state_version=9, state_partitions=0
    )
    record = RegionRecord(region="main", attempt_id=0, batch_id=8, state=state)
    for plan, goes_on in ((STATEFUL, True), (replace(STATEFUL, stateful=False), False)):
        region = RegionState(plan=plan, attempt_id=5, record=record, pace=Pace(limit=1))
        assert region.wants_batch(0.0, is_last=False) is goes_on
        assert region.is_decided(BatchKey(region="main", attempt_id=5, batch_id=1)) is goes_on


def test_a_bounded_state_has_a_batch_after_its_last_records() -> None:
    """In which Spark gives what the watermark of those has closed; only then is it the end."""
    region = RegionPlan(name="main", source_ids=("source",), bounded=True, stateful=True)
    driver = CoreDriver(FAST, regions=[region])
    driver.tick()
    with_records = driver.poll(3, finished=True)
    assert not with_records.publishes_all
    driver.ack(with_records, state_is_due=True)
    assert not driver.seen(EndJob)
    driver.tick()  # nobody waits for an interval, which may be long
    behind_them = driver.poll(3, finished=True)
    assert behind_them.publishes_all
    assert all(each.is_empty for each in behind_them.splits)
    driver.ack(behind_them)
    assert driver.seen(Publish)[-1].kind is CheckpointKind.FINAL
    assert driver.seen(EndJob)[-1].finished


def test_a_bounded_state_that_has_nothing_more_to_give_ends_after_its_last_records() -> None:
    """At once, without a batch that would write a complete result a second time."""
    region = replace(STATEFUL, bounded=True)
    driver = CoreDriver(replace(FAST, interval_s=3600.0), regions=[region])
    driver.tick()
    driver.ack(driver.poll(3, finished=True))
    driver.tick()
    assert driver.poll(3, finished=True) is None
    assert driver.seen(Publish)[-1].kind is CheckpointKind.FINAL
    assert driver.seen(EndJob)[-1].finished
