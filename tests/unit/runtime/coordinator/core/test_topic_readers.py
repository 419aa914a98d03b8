"""A region that reads what others write: it ends after them, and its time follows theirs."""

from dataclasses import replace

import pytest

from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    BarrierPolled,
    EndJob,
    FetchBarrierOffsets,
    RegionBarrierOffsets,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.model.event_time import EventTime
from sluice.runtime.model.splits import Barrier, BatchKey
from sluice.runtime.model.state.keyed_state import Due, KeyedState
from tests.kit.coordinator.core_driver import FAST, CoreDriver

_TIME = EventTime("kafka")
_REGIONS = (
    RegionPlan(name="main", source_ids=("source",), sink_ids=("sink",), event_time=_TIME),
    RegionPlan(
        name="reader",
        source_ids=("topic",),
        sink_ids=("sink",),
        upstream=("main",),
        event_time=_TIME,
    ),
)


def _driver() -> CoreDriver:
    return CoreDriver(FAST, regions=_REGIONS)


def _fetch(driver: CoreDriver, region: str) -> FetchBarrierOffsets:
    answers = driver.tell(BarrierPolled(region=region, attempt_id=0))
    (found,) = [each for each in answers if isinstance(each, FetchBarrierOffsets)]
    return found


def test_a_reader_may_finish_once_all_output_of_its_writers_is_committed() -> None:
    driver = _driver()
    driver.tick(1.0)
    assert not _fetch(driver, "reader").may_finish, "the writer has not ended"
    barrier = driver.poll(10, finished=True)
    assert barrier is not None
    assert not _fetch(driver, "reader").may_finish, "its last epoch is open"
    driver.auto = False
    driver.ack(barrier)
    driver.poll(0, region="reader")
    driver.tick(0.1)
    while driver.held:  # the decision, its commits and its mark, one after the other
        driver.answer(driver.held.pop(0))
    driver.auto = True
    driver.tick(1.0)
    assert driver.poll(0, finished=True) is None
    assert _fetch(driver, "reader").may_finish


def test_a_job_ends_after_the_reader() -> None:
    driver = _driver()
    driver.tick(1.0)
    driver.poll(0, finished=True)
    assert not driver.seen(EndJob)
    driver.poll(0, region="reader", finished=True)
    driver.tick(1.0)
    driver.poll(0, finished=True)
    driver.poll(0, region="reader", finished=True)
    driver.tick(1.0)
    assert driver.seen(EndJob)


def test_the_watermark_of_the_writers_reaches_the_reader_with_the_rows_before_it() -> None:
    driver = _driver()
    driver.tick(1.0)
    barrier = driver.poll(10)
    assert barrier is not None
    timed = replace(barrier, splits=tuple(replace(s, watermark_ms=500) for s in barrier.splits))
    driver.poll(0, region="reader")
    driver.ack(timed)
    driver.tick(1.0)
    asked = _fetch(driver, "reader")
    assert asked.input_ms == 500
    (position,) = asked.positions
    driver.tell(
        RegionBarrierOffsets(
            checkpoint_id=asked.checkpoint_id,
            region="reader",
            attempt_id=0,
            splits=(replace(position, end_offset=4),),
            finished=False,
            log_ends={position.key: 4},
            input_ms=asked.input_ms,
        )
    )
    barrier = driver.poll(4, region="reader")
    assert barrier is not None
    assert barrier.watermark_ms is None, "the rows before it are not read yet"
    driver.poll(10)
    driver.ack(barrier, region="reader")
    driver.tick(1.0)
    later = driver.poll(8, region="reader")
    assert later is not None
    assert later.watermark_ms == 500


def _keyed_ack(driver: CoreDriver, barrier: Barrier, number: int, due: Due) -> None:
    """The writer's epoch: its rows are at 500; ``due``: what its windows wait for then."""
    splits = tuple(replace(split, watermark_ms=500) for split in barrier.splits)
    ack = driver.acknowledgement(BatchKey(region="main", attempt_id=0, batch_id=number), barrier)
    state = KeyedState().covering({split.key for split in splits})
    region = replace(ack.region, splits=splits, keyed_state=state)
    driver.tell(Acknowledged(ack=replace(ack, region=region, due=due)))


@pytest.mark.parametrize(("expiry_ms", "is_due"), [(500, True), (501, False)])
def test_state_that_expires_wants_a_barrier_and_holds_back_no_watermark(
    expiry_ms: int, *, is_due: bool
) -> None:
    """No row comes out of it, and none has come in."""
    driver = CoreDriver(FAST, regions=(replace(_REGIONS[0], keyed=True), _REGIONS[1]))
    driver.tick(1.0)
    barrier = driver.poll(10)
    assert barrier is not None
    driver.poll(0, region="reader")
    _keyed_ack(driver, barrier, 1, Due(expiry_ms=expiry_ms))
    driver.tick(1.0)
    assert _fetch(driver, "reader").input_ms == 500
    assert (driver.poll(10) is not None) == is_due


def test_windows_that_wait_in_a_writer_hold_back_the_watermark_of_its_rows() -> None:
    """They come out at a later barrier, after the end of the log as it is now."""
    driver = CoreDriver(FAST, regions=(replace(_REGIONS[0], keyed=True), _REGIONS[1]))
    driver.tick(1.0)
    barrier = driver.poll(10)
    assert barrier is not None
    driver.poll(0, region="reader")
    _keyed_ack(driver, barrier, 1, Due(event_ms=300))
    driver.tick(1.0)
    assert _fetch(driver, "reader").input_ms == 299
    barrier = driver.poll(20)
    assert barrier is not None
    assert barrier.watermark_ms == 500
    driver.poll(0, region="reader")
    _keyed_ack(driver, barrier, 2, Due(event_ms=700))
    driver.tick(1.0)
    assert _fetch(driver, "reader").input_ms == 500, "they are in the log"
