"""What a bounded job says of regions that are suspended: what is missing, and what is not."""

from dataclasses import replace

from sluice.runtime.coordinator.core.events import (
    BarrierPolled,
    EndJob,
    NothingDue,
    RegionFailed,
    RegionRestarted,
    RestartCommanded,
    RestartRequested,
    SplitsDiscovered,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    OnRegionFailure,
    RegionPlan,
)
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.errors import RegionsSuspendedError
from sluice.runtime.model.checkpoint_record import CheckpointKind
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver, split
from tests.unit.runtime.coordinator.core.test_suspended_regions import (
    BOTH,
    NO_USE,
    REGIONAL,
    break_for_good,
    decided,
    record_of,
    side_epoch,
    suspended,
)


def read_all(driver: CoreDriver) -> None:
    """``side`` reads its end with a last checkpoint."""
    driver.tick(1.0)
    driver.ack(driver.poll(6, region="side", finished=True), region="side")


@BOTH
def test_a_bounded_job_ends_with_what_is_missing(settings: CheckpointSettings) -> None:
    driver = suspended(settings)
    read_all(driver)
    (end,) = driver.seen(EndJob)
    assert end.finished, "readers see the others' work before anybody is reported"
    assert isinstance(end.error, RegionsSuspendedError)
    assert "regions=main not_written_from=input-0:0" in str(end.error)
    assert "DeliveryError" in str(end.error)
    assert end.error.__cause__ is NO_USE
    assert decided(driver)[-1].kind is CheckpointKind.FINAL
    assert record_of(driver, "side").splits[0].end_offset == 6
    assert driver.status().state == "failed"
    told = driver.tell(BarrierPolled(region="side", attempt_id=0))
    assert told == [NothingDue()], "the others idle until they are stopped"


def test_a_region_that_was_restarted_before_the_end_is_read() -> None:
    """A final checkpoint that began without it is not the last one."""
    driver = suspended(REGIONAL)
    driver.tick(1.0)
    last = driver.poll(6, region="side", finished=True)
    driver.auto = False
    driver.ack(last, region="side")
    driver.tell(RestartCommanded())
    driver.tell(RestartRequested(region="main"))
    driver.auto = True
    for step in list(driver.held):
        driver.answer(step)
    assert not driver.seen(EndJob)
    attempt_id = driver.seen(RegionRestarted)[-1].attempt_id
    driver.tick(1.0)
    driver.poll(6, region="side", finished=True)
    driver.ack(driver.poll(6, attempt_id=attempt_id, finished=True), attempt_id=attempt_id)
    driver.poll(6, region="side", finished=True)
    driver.tick(1.0)
    driver.poll(6, attempt_id=attempt_id, finished=True)
    driver.poll(6, region="side", finished=True)
    (end,) = driver.seen(EndJob)
    assert end.finished
    assert end.error is None
    assert record_of(driver, "main").splits[0].end_offset == 6


@BOTH
def test_a_region_whose_end_was_decided_before_it_was_suspended_is_missing_nothing(
    settings: CheckpointSettings,
) -> None:
    driver = CoreDriver(settings, regions=TWO)
    driver.tick()
    driver.ack(driver.poll(3, finished=True))
    driver.ack(driver.poll(3, region="side"), region="side")
    break_for_good(driver)
    side_epoch(driver, 5)
    side_epoch(driver, 5)
    read_all(driver)
    (end,) = driver.seen(EndJob)
    assert end.finished
    assert end.error is None


@BOTH
def test_a_suspended_region_that_is_given_a_new_partition_after_its_end_is_missing_it(
    settings: CheckpointSettings,
) -> None:
    """Its end was decided, and is none any more."""
    plans = (TWO[0], replace(TWO[1], source_ids=("other",)))
    driver = CoreDriver(settings, regions=plans)
    driver.tick()
    driver.ack(driver.poll(3, finished=True))
    driver.ack(driver.poll(3, region="side"), region="side")
    break_for_good(driver)
    driver.tell(SplitsDiscovered(source_id="source", splits=(split(7, 0, 0),)))
    read_all(driver)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, RegionsSuspendedError)
    assert "regions=main" in str(end.error)


@BOTH
def test_a_region_that_is_suspended_at_its_last_range_has_not_written_it(
    settings: CheckpointSettings,
) -> None:
    driver = CoreDriver(settings, regions=TWO)
    driver.tick()
    driver.poll(3, finished=True)
    last = driver.poll(3, region="side", finished=True)
    driver.ack(last, region="side")
    break_for_good(driver)
    for _ in range(3):
        side_end(driver)
    assert record_of(driver, "main").splits[0].end_offset == 0
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, RegionsSuspendedError)
    assert "regions=main" in str(end.error)


def side_end(driver: CoreDriver) -> None:
    driver.tick(1.0)
    if not driver.core.is_over and driver.core.is_live("side", 0):
        barrier = driver.poll(3, region="side", finished=True)
        if barrier is not None:
            driver.ack(barrier, region="side")


def test_a_split_that_is_found_while_the_end_is_decided_is_missed_when_its_region_is_suspended() -> (
    None
):
    """The decision has all that was known at its cut, and not this one."""
    settings = replace(
        FAST, on_region_failure=OnRegionFailure.SUSPEND, handler=RegionalCheckpointHandler()
    )
    driver = CoreDriver(
        settings,
        regions=(
            RegionPlan(name="main", source_ids=("source",), bounded=True),
            RegionPlan(name="side", source_ids=("other",), bounded=True),
        ),
    )
    driver.tick(1.0)
    driver.auto = False
    barriers = {"main": driver.poll(10, finished=True), "side": driver.poll(10, region="side")}
    for region, barrier in barriers.items():
        driver.ack(barrier, region=region)
    driver.tell(SplitsDiscovered(source_id="source", splits=(split(9, 0, 0),)))
    driver.auto = True
    held, driver.held = driver.held, []
    for action in held:
        driver.answer(action)
    error = RuntimeError("for good")
    driver.tell(RegionFailed(region="main", attempt_id=0, error=error, permanent=True))
    for _ in range(4):
        driver.tick(1.0)
        if barrier := driver.poll(10, region="side", finished=True):
            driver.ack(barrier, region="side")
    driver.tick(1.0)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, RegionsSuspendedError)
