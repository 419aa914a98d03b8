"""Who a batch is to the coordinator: region, attempt and number, and no checkpoint id."""

import dataclasses

import pytest

from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    Publish,
    RegionRestarted,
    RestartRequested,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.errors import FencedError, IllegalTransitionError, WrongJobError
from sluice.runtime.model.splits import BatchKey
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
    """Before and after the decision: the answer may have been lost."""
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
    """Whatever id its offset claims."""
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


def test_a_second_batch_before_the_first_is_decided_is_a_bug() -> None:
    """Refused, and nothing changes."""
    driver = CoreDriver(FAST)
    driver.epoch(3)
    driver.ack(None)
    with pytest.raises(IllegalTransitionError):
        driver.ack(None)


def test_an_unknown_region_is_refused() -> None:
    """The message comes from another job."""
    with pytest.raises(WrongJobError, match="other"):
        CoreDriver(FAST).poll(3, region="other")
