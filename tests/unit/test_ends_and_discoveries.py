"""The end of a bounded region's sources, and a split that is found while a decision is written."""

from dataclasses import replace

from runtime.checkpoint.handlers import RegionalCheckpointHandler
from runtime.checkpoint.messages import EndJob, RegionFailed, SplitsDiscovered
from runtime.checkpoint.plan import OnRegionFailure, RegionPlan
from runtime.errors import RegionsParkedError
from tests.core_driver import FAST, CoreDriver, split


def test_a_split_that_is_found_while_the_end_is_decided_is_missed_when_its_region_is_parked() -> (
    None
):
    """The decision has all that was known at its cut, and not this one."""
    settings = replace(
        FAST, on_region_failure=OnRegionFailure.PARK, handler=RegionalCheckpointHandler()
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
    barriers = {
        "main": driver.poll(10, finished=True),
        "side": driver.poll(10, region="side"),
    }
    for region, barrier in barriers.items():
        driver.ack(barrier, region=region)
    driver.tell(SplitsDiscovered(source_id="source", splits=(split(9, 0, 0),)))
    driver.auto = True
    held, driver.held = driver.held, []
    for action in held:
        driver.answer(action)
    error = RuntimeError("for good")
    driver.tell(RegionFailed(region="main", generation=0, error=error, permanent=True))
    for _ in range(4):
        driver.tick(1.0)
        if barrier := driver.poll(10, region="side", finished=True):
            driver.ack(barrier, region="side")
    driver.tick(1.0)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, RegionsParkedError)
