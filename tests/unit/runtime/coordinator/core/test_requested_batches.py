"""A sink that asks for a batch gets one, also where there is nothing to read
(`one-batch-per-checkpoint`)."""

import pytest

from sluice.runtime.coordinator.core.events import EndJob, Publish, RegionFailed
from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.errors import StreamError
from sluice.runtime.model import offsets
from sluice.runtime.model.checkpoint_record import CheckpointKind
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.model.splits import Barrier
from tests.kit.coordinator.core_driver import FAST, CoreDriver, split

BOUNDED = (RegionPlan(name="main", source_ids=("source",), bounded=True),)


def test_an_asked_batch_has_a_barrier_without_records_once_its_time_has_come() -> None:
    """Not before, and once: at most one batch per region and checkpoint."""
    driver = CoreDriver(FAST)
    driver.tick()
    driver.ack(driver.poll(3), again_in_s=5.0)
    driver.tick(4.0)
    assert driver.poll(3) is None
    driver.tick(1.0)
    asked = driver.poll(3)
    assert asked is not None
    assert [(s.start_offset, s.end_offset) for s in asked.splits] == [(3, 3)]
    assert driver.poll(3) == asked
    driver.ack(asked)
    driver.tick(60.0)
    assert driver.poll(3) is None


def test_records_that_come_first_are_cut_as_ever() -> None:
    """And what the sink then says stands in place of what it said before."""
    driver = CoreDriver(FAST)
    driver.tick()
    driver.ack(driver.poll(3), again_in_s=5.0)
    driver.tick(2.0)
    driver.ack(driver.poll(4))
    driver.tick(60.0)
    assert driver.poll(4) is None


def test_a_sink_that_keeps_a_state_is_asked_at_once_in_each_life() -> None:
    """What it wanted is not on record, and its settings may have changed."""
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
    assert first is not None
    assert not first.is_last
    driver.ack(first, keeps=True, again_in_s=60.0)
    driver.tick(1.0)
    last = driver.poll(end, finished=True)
    assert last is not None
    assert last.is_last
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


@pytest.mark.parametrize("is_last", [False, True])
def test_the_end_travels_with_the_barrier(is_last: bool) -> None:
    """Through the service and through Spark's offset."""
    barrier = Barrier(
        checkpoint_id=4, region="main", attempt_id=3, splits=(split(0, 5, 5),), is_last=is_last
    )
    assert from_json(Barrier, to_json(barrier)) == barrier
    assert offsets.decode(offsets.encode(barrier)) == barrier
