"""What one region tells costs the same however many others there are, and hides nothing of them."""

from dataclasses import dataclass, field, replace

import pytest

from sluice.runtime.coordinator.core.events import (
    Publish,
    RegionFailed,
    RegionRestarted,
    RestartCommanded,
    RestartRequested,
    TriggerBarrier,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import OnRegionFailure, RegionPlan
from sluice.runtime.coordinator.policy.handlers import (
    Alignment,
    HandlerDecision,
    RegionalCheckpointHandler,
)
from tests.kit.coordinator.core_driver import FAST, CoreDriver


@dataclass(frozen=True, kw_only=True)
class CountedHandler(RegionalCheckpointHandler):
    """Notes how often it was asked about a checkpoint that somebody is missing in."""

    asked: list[Alignment] = field(default_factory=list)

    def rule(self, alignment: Alignment, *, timeout_s: float) -> HandlerDecision:
        self.asked.append(alignment)
        return super().rule(alignment, timeout_s=timeout_s)


def many(count: int, handler: RegionalCheckpointHandler) -> CoreDriver:
    plans = [RegionPlan(name=f"r{number}", source_ids=("source",)) for number in range(count)]
    return CoreDriver(replace(FAST, handler=handler), regions=plans)


def epoch(driver: CoreDriver, count: int, end: int) -> None:
    driver.tick(1.0)
    names = [f"r{number}" for number in range(count)]
    barriers = {name: driver.poll(end, region=name) for name in names}
    for name, barrier in barriers.items():
        assert barrier is not None
        driver.ack(barrier, region=name)


def test_the_handler_is_not_asked_more_often_for_more_regions() -> None:
    asked = []
    for count in (3, 60):
        handler = CountedHandler()
        driver = many(count, handler)
        epoch(driver, count, 10)
        handler.asked.clear()
        epoch(driver, count, 20)
        assert driver.core.last_committed == 2
        asked.append(len(handler.asked))
    assert asked[0] == asked[1]


def test_a_failure_among_many_is_ruled_on_at_once() -> None:
    handler = CountedHandler()
    driver = many(4, handler)
    driver.tick(1.0)
    barriers = {f"r{n}": driver.poll(10, region=f"r{n}") for n in range(4)}
    for name in ("r0", "r1", "r2"):
        driver.ack(barriers[name], region=name)
    assert not driver.seen(Publish)
    driver.tell(RegionFailed(region="r3", attempt_id=0, error=RuntimeError("killed")))
    assert handler.asked[-1].failed == {"r3"}
    published = driver.seen(Publish)[-1]
    assert [r.region for r in published.regions if r.snapshot_id is not None] == ["r3"]


def test_after_the_handlers_deadline_every_acknowledgement_may_decide() -> None:
    """Three of four late are too many to carry; two are not."""
    driver = many(4, RegionalCheckpointHandler(region_timeout_s=2.0, max_failed_ratio=0.5))
    driver.tick(1.0)
    barriers = {f"r{n}": driver.poll(10, region=f"r{n}") for n in range(4)}
    driver.ack(barriers["r0"], region="r0")
    driver.tick(2.5)
    assert not driver.seen(Publish)
    driver.ack(barriers["r1"], region="r1")
    assert driver.core.last_committed == 1


def _fail(driver: CoreDriver, name: str) -> None:
    driver.tell(RegionFailed(region=name, attempt_id=0, error=RuntimeError("killed")))


def test_what_expires_begins_no_checkpoint_that_could_not_be_decided() -> None:
    """Also where there is room for one, in the very step in which the regions are closed."""
    settings = replace(FAST, handler=RegionalCheckpointHandler(), max_concurrent=9)
    plans = [RegionPlan(name=f"r{number}", source_ids=("source",)) for number in range(4)]
    driver = CoreDriver(settings, regions=plans)
    driver.tick(1.0)
    for plan in plans:
        driver.poll(10, region=plan.name)
    driver.auto = False
    begun = len(driver.seen(TriggerBarrier))
    driver.tick(20.0)
    assert not any(driver.core.is_live(plan.name, 0) for plan in plans)
    assert len(driver.seen(TriggerBarrier)) == begun


def test_a_region_that_was_skipped_too_often_holds_up_the_next_checkpoint() -> None:
    driver = many(4, RegionalCheckpointHandler(max_skipped_in_a_row=2))
    driver.tick(1.0)
    _fail(driver, "r3")
    for end in (10, 20, 30):
        barriers = {f"r{n}": driver.poll(end, region=f"r{n}") for n in range(3)}
        for name, barrier in barriers.items():
            if barrier is not None:
                driver.ack(barrier, region=name)
        driver.tick(1.0)
    assert driver.core.last_committed == 2
    assert len(driver.seen(TriggerBarrier)) == 2


@pytest.mark.parametrize(("records", "begun"), [(5, 1), (10, 2)])
def test_a_cut_that_leaves_records_after_begins_the_next_checkpoint_at_once(
    records: int, begun: int
) -> None:
    """Else it waits for the interval."""
    driver = CoreDriver(replace(FAST, max_concurrent=3, first_epoch_records=10))
    driver.tick(1.0)
    driver.poll(records)
    assert len(driver.seen(TriggerBarrier)) == begun


def test_a_region_whose_next_attempt_was_asked_for_while_suspended_begins_by_command() -> None:
    settings = replace(FAST, on_region_failure=OnRegionFailure.SUSPEND)
    settings = replace(settings, handler=RegionalCheckpointHandler())
    plans = [RegionPlan(name=f"r{number}", source_ids=("source",)) for number in range(3)]
    driver = CoreDriver(settings, regions=plans)
    driver.tick(1.0)
    error = RuntimeError("for good")
    driver.tell(RegionFailed(region="r2", attempt_id=0, error=error, permanent=True))
    driver.tell(RestartRequested(region="r2"))
    driver.tick(1.0)
    assert driver.core.is_suspended("r2")
    assert not driver.seen(RegionRestarted)
    driver.tell(RestartCommanded(regions=("r2",)))
    driver.tick(1.0)
    assert [found.region for found in driver.seen(RegionRestarted)] == ["r2"]
