"""When a region with a state has a batch although there is nothing to read."""

from dataclasses import replace

from sluice.runtime.coordinator.core.events import Acknowledged, EndJob, Publish
from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.coordinator.region.region_pace import Pace
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.model.checkpoint_record import CheckpointKind, RegionRecord, StateSnapshot
from sluice.runtime.model.splits import BatchKey
from tests.kit.coordinator.core_driver import FAST, CoreDriver

STATEFUL = RegionPlan(name="main", source_ids=("source",), stateful=True)


def test_a_quiet_state_has_a_batch_where_it_has_something_to_give_and_no_other() -> None:
    """As Spark runs one without records: each of them would write a whole result once more."""
    driver = CoreDriver(FAST, regions=[STATEFUL])
    driver.tick()
    assert driver.poll(0) is None, "there is no state yet"
    driver.ack(driver.poll(3), state_is_due=True)
    driver.tick(1.0)
    barrier = driver.poll(3)
    assert barrier is not None
    assert all(found.is_empty for found in barrier.splits)
    driver.ack(barrier)
    driver.tick(1.0)
    assert driver.poll(3) is None
    assert driver.poll(4) is not None


def test_a_state_is_asked_once_in_each_life() -> None:
    """What it had to give when the last life ended is not on record."""
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
    """And its batches are told from those of older lives by their attempt, not by their ids."""
    state = StateSnapshot(
        provider="RocksDB", checkpoint_format_version=2, state_version=9, state_partitions=0
    )
    record = RegionRecord(region="main", attempt_id=0, batch_id=8, state=state)
    for plan, goes_on in ((STATEFUL, True), (replace(STATEFUL, stateful=False), False)):
        region = RegionState(plan=plan, attempt_id=5, record=record, pace=Pace(limit=1))
        assert region.wants_batch(0.0, is_last=False) is goes_on
        assert region.is_decided(BatchKey(region="main", attempt_id=5, batch_id=1)) is goes_on


def test_a_bounded_state_has_a_batch_behind_its_last_records() -> None:
    """In which Spark gives what the watermark of those has closed; only then is it the end."""
    region = RegionPlan(name="main", source_ids=("source",), bounded=True, stateful=True)
    driver = CoreDriver(FAST, regions=[region])
    driver.tick()
    with_records = driver.poll(3, finished=True)
    assert with_records is not None
    assert not with_records.is_last
    driver.ack(with_records, state_is_due=True)
    assert not driver.seen(EndJob)
    driver.tick()  # nobody waits for an interval, which may be long
    behind_them = driver.poll(3, finished=True)
    assert behind_them is not None
    assert behind_them.is_last
    assert all(each.is_empty for each in behind_them.splits)
    driver.ack(behind_them)
    assert driver.seen(Publish)[-1].kind is CheckpointKind.FINAL
    assert driver.seen(EndJob)[-1].finished


def test_a_bounded_state_that_has_nothing_more_to_give_ends_behind_its_last_records() -> None:
    """At once, without a batch that would write a complete result a second time."""
    region = replace(STATEFUL, bounded=True)
    driver = CoreDriver(replace(FAST, interval_s=3600.0), regions=[region])
    driver.tick()
    driver.ack(driver.poll(3, finished=True))
    driver.tick()
    assert driver.poll(3, finished=True) is None
    assert driver.seen(Publish)[-1].kind is CheckpointKind.FINAL
    assert driver.seen(EndJob)[-1].finished
