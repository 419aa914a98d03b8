"""A source that goes back, since its log was cut off: what the coordinator takes, and what not."""

from dataclasses import replace

import pytest

from sluice.runtime.coordinator.core.events import Acknowledged
from sluice.runtime.errors import IllegalTransitionError
from sluice.runtime.model.model import BatchKey, SplitRange
from tests.core_driver import CoreDriver, split


def _driver(decided_to: int, *, leader_epoch: int | None) -> CoreDriver:
    driver = CoreDriver()
    driver.tick(1.0)
    barrier = driver.poll(decided_to)
    assert barrier is not None
    _tell(driver, 1, replace(barrier.splits[0], leader_epoch=leader_epoch))
    assert driver.core.last_committed == 1
    return driver


def _tell(driver: CoreDriver, batch_id: int, read: SplitRange) -> None:
    made = driver.acknowledgement(BatchKey(region="main", attempt_id=0, batch_id=batch_id))
    driver.tell(Acknowledged(ack=replace(made, region=replace(made.region, splits=(read,)))))


def _next(driver: CoreDriver, read: SplitRange) -> None:
    driver.tick(1.0)
    driver.asked_cut()
    _tell(driver, 2, read)


@pytest.mark.parametrize(
    ("start", "end", "before", "after", "set_back_from"),
    [
        (7, 30, 1, 2, 10),
        (7, 30, None, 2, 10),
        (7, 30, 1, None, 10),
        (7, 7, 1, 1, 10),
        (7, 30, 1, 2, 15),  # an epoch that is not decided yet had read on
    ],
    ids=[
        "a later leader",
        "nobody knows who led",
        "nobody knows who leads",
        "nothing to read yet",
        "from further on",
    ],
)
def test_batch_identity_a_range_that_was_set_back_is_decided(
    start: int, end: int, before: int | None, after: int | None, set_back_from: int
) -> None:
    """And the next one begins at its end; that it was set back is not on record."""
    driver = _driver(10, leader_epoch=before)
    read = replace(split(0, start, end), leader_epoch=after, set_back_from=set_back_from)
    _next(driver, read)
    assert driver.core.last_committed == 2
    driver.tick(1.0)
    assert driver.asked_cut().positions == (replace(read, set_back_from=None),)


@pytest.mark.parametrize(
    ("after", "set_back_from"),
    [(2, None), (2, 9), (1, 10)],
    ids=["not set back", "knew of less than is decided", "by the same leader"],
)
def test_batch_identity_a_range_that_a_decided_checkpoint_contains_is_refused(
    after: int, set_back_from: int | None
) -> None:
    driver = _driver(10, leader_epoch=1)
    read = replace(split(0, 7, 30), leader_epoch=after, set_back_from=set_back_from)
    with pytest.raises(IllegalTransitionError, match="decided_end_offset=10"):
        _next(driver, read)
