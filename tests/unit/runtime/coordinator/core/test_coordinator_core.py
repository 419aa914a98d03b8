"""The order of a checkpoint's steps, and the barriers that begin one, on a manual clock."""

from sluice.runtime.coordinator.core.events import (
    Commit,
    MarkCommitted,
    Publish,
    PublishPositions,
    ReturnBatches,
)
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver


def test_a_checkpoint_takes_its_steps_in_order() -> None:
    """Decision, commit, mark, return, group offsets: never in another order (design section 4)."""
    driver = CoreDriver(FAST)
    driver.epoch(3)
    order = [
        type(action)
        for action in driver.log
        if isinstance(action, Publish | Commit | MarkCommitted | ReturnBatches | PublishPositions)
    ]
    assert order == [Publish, Commit, MarkCommitted, ReturnBatches, PublishPositions]


def test_no_step_begins_before_the_one_before_is_answered() -> None:
    """Each remote step is asked for only when its predecessor is certain."""
    driver = CoreDriver(FAST)
    driver.auto = False
    driver.epoch(3)
    for expected in (Publish, Commit, MarkCommitted):
        (step,) = driver.held
        assert isinstance(step, expected)
        assert not driver.seen(ReturnBatches)
        driver.held.clear()
        driver.answer(step)
    assert driver.seen(ReturnBatches)


def test_the_decision_waits_for_every_region() -> None:
    """One region's acknowledgement decides nothing."""
    driver = CoreDriver(FAST, regions=TWO)
    driver.tick()
    driver.ack(driver.poll(3))
    assert not driver.seen(Publish)
    driver.ack(driver.poll(3, region="side"), region="side")
    (published,) = driver.seen(Publish)
    assert [record.region for record in published.regions] == ["main", "side"]


def test_a_region_without_records_acknowledges_same_offsets() -> None:
    """Rule `one-batch-per-checkpoint`: at most one batch per region and checkpoint, and none where
    nothing is read."""
    driver = CoreDriver(FAST, regions=TWO)
    driver.tick()
    driver.ack(driver.poll(3))
    assert driver.poll(0, region="side") is None
    (published,) = driver.seen(Publish)
    assert published.regions[1].batch_id is None
    assert published.regions[1].committables == ()


def test_a_barrier_is_given_again_until_it_is_acknowledged() -> None:
    """Contract of `poll_barrier`."""
    driver = CoreDriver(FAST)
    driver.tick()
    barrier = driver.poll(3)
    assert driver.poll(9) == barrier
    driver.ack(barrier)
    assert driver.poll(9) is None


def test_the_next_barrier_continues_where_the_last_ended() -> None:
    """No offset is cut twice and none is skipped."""
    driver = CoreDriver(FAST, partitions=2)
    driver.epoch(3)
    driver.tick(1.0)
    barrier = driver.poll(8)
    assert barrier is not None
    assert [(s.start_offset, s.end_offset) for s in barrier.splits] == [(3, 8), (3, 8)]
