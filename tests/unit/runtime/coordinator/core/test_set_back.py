"""A source that goes back: the coordinator accepts it over transaction markers only."""

from dataclasses import replace

import pytest

from sluice.runtime.coordinator.core.events import Acknowledged
from sluice.runtime.errors import IllegalTransitionError
from sluice.runtime.model.splits import BatchKey, SplitRange
from tests.kit.coordinator.core_driver import CoreDriver, split


def _driver(
    decided_to: int, *, leader_epoch: int | None, leader_epoch_end: int | None
) -> CoreDriver:
    driver = CoreDriver()
    driver.tick(1.0)
    barrier = driver.poll(decided_to)
    assert barrier is not None
    known = {"leader_epoch": leader_epoch, "leader_epoch_end": leader_epoch_end}
    _tell(driver, 1, replace(barrier.splits[0], **known))
    assert driver.core.last_committed == 1
    return driver


def _tell(driver: CoreDriver, batch_id: int, read: SplitRange) -> None:
    made = driver.acknowledgement(BatchKey(region="main", attempt_id=0, batch_id=batch_id))
    driver.tell(Acknowledged(ack=replace(made, region=replace(made.region, splits=(read,)))))


def _next(driver: CoreDriver, read: SplitRange) -> None:
    driver.tick(1.0)
    driver.asked_cut()
    _tell(driver, 2, read)


def test_batch_identity_a_range_may_begin_at_markers_that_are_read_again() -> None:
    """No record lies between the last one that a leader is known to have written and the end."""
    driver = _driver(10, leader_epoch=1, leader_epoch_end=8)
    _next(driver, replace(split(0, 8, 30), leader_epoch=2))
    assert driver.core.last_committed == 2


@pytest.mark.parametrize(("start", "known_end"), [(7, None), (9, None), (7, 8)])
def test_batch_identity_a_range_that_a_decided_checkpoint_contains_is_refused(
    start: int, known_end: int | None
) -> None:
    """Also under a later leader: a truncated log stops the source."""
    driver = _driver(10, leader_epoch=1, leader_epoch_end=known_end)
    with pytest.raises(IllegalTransitionError, match="a decided checkpoint contains"):
        _next(driver, replace(split(0, start, 30), leader_epoch=2))
