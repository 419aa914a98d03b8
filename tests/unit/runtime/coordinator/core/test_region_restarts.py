"""How a restart strategy and the coordinator work together, on a manual clock."""

from dataclasses import replace

import pytest

from sluice.runtime.coordinator.core.events import (
    EndJob,
    Publish,
    RegionFailed,
    RegionRestarted,
    RestartRequested,
)
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.errors import (
    CheckpointFailedError,
    DeliveryError,
    RegionGivenUpError,
    StorageUnreachableError,
)
from sluice.runtime.failover.restart_strategies import FixedDelayRestart
from sluice.runtime.model.checkpoint_record import Verdict
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver

FIXED = replace(FAST, restart_strategy=FixedDelayRestart(attempts=2, delay_s=5.0))
REGIONAL = replace(FIXED, handler=RegionalCheckpointHandler())
AWAY = StorageUnreachableError("a file system is away", {}, "Wait.")


def fail(
    driver: CoreDriver,
    region: str = "main",
    attempt_id: int = 0,
    error: BaseException | None = None,
) -> None:
    error = error or RuntimeError("a task failed four times")
    driver.tell(RegionFailed(region=region, attempt_id=attempt_id, error=error))


def restarted(driver: CoreDriver, region: str = "main") -> list[int]:
    """Attempts of the attempts that began so far."""
    return [found.attempt_id for found in driver.seen(RegionRestarted) if found.region == region]


def come_back(driver: CoreDriver, region: str = "main", *, delay_s: float = 5.0) -> int:
    before = len(restarted(driver, region))
    driver.tell(RestartRequested(region=region))
    driver.tick(delay_s)
    assert len(restarted(driver, region)) == before + 1
    return restarted(driver, region)[-1]


def test_abort_before_skip_a_delay_holds_back_the_new_attempt_and_no_abort() -> None:
    driver = CoreDriver(FIXED)
    driver.tick()
    driver.poll(3)
    fail(driver)
    driver.tell(RestartRequested(region="main"))
    assert [published.verdict for published in driver.seen(Publish)] == [Verdict.ABORTED]
    driver.tick(4.9)
    assert not restarted(driver)
    assert driver.core.deadline_s() == pytest.approx(driver.clock() + 0.1)
    driver.tick(0.1)
    assert restarted(driver) == [1]


def test_callback_after_commit_a_delay_that_is_over_does_not_replace_what_has_to_be_settled() -> (
    None
):
    """The old attempt's decided checkpoint is committed first, however long that takes."""
    driver = CoreDriver(REGIONAL)
    driver.auto = False
    driver.epoch(3)
    driver.answer(driver.held.pop(0))
    fail(driver)
    driver.tell(RestartRequested(region="main"))
    driver.tick(60.0)
    assert not restarted(driver)
    deadline_s = driver.core.deadline_s()
    assert deadline_s is None or deadline_s > driver.clock(), "the loop does not spin meanwhile"
    driver.auto = True
    for step in list(driver.held):
        driver.answer(step)
    assert len(restarted(driver)) == 1


def test_a_region_that_fails_after_its_acknowledgement_is_counted() -> None:
    """Its batch is decided, and its attempt has failed all the same."""
    driver = CoreDriver(replace(REGIONAL, restart_strategy=FixedDelayRestart(attempts=0)))
    driver.auto = False
    driver.epoch(3)
    fail(driver)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, RegionGivenUpError)


def test_an_epoch_that_is_too_slow_counts_for_the_slow_region_alone() -> None:
    strategy = FixedDelayRestart(attempts=1, delay_s=5.0)
    driver = CoreDriver(replace(FAST, restart_strategy=strategy), regions=TWO)
    attempts = {"main": 0, "side": 0}
    for _ in range(2):
        driver.tick(1.0)
        driver.poll(9, attempt_id=attempts["main"])
        side = driver.poll(3, region="side", attempt_id=attempts["side"])
        driver.ack(side, region="side", attempt_id=attempts["side"])
        driver.tick(10.0)
        if not driver.seen(EndJob):
            attempts["side"] = driver.restart("side")
            attempts["main"] = come_back(driver)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, RegionGivenUpError)
    assert "region=main attempts=2" in str(end.error)
    assert isinstance(end.error.__cause__, CheckpointFailedError)


def test_outages_cost_no_attempt_and_no_delay() -> None:
    driver = CoreDriver(FIXED)
    attempt_id = 0
    for _ in range(5):
        fail(driver, attempt_id=attempt_id, error=AWAY)
        attempt_id = driver.restart()
    assert not driver.seen(EndJob)


def test_an_error_that_would_come_again_ends_the_job_at_once() -> None:
    driver = CoreDriver(FIXED)
    error = DeliveryError("too large", {"topic": "t"}, "Make room.")
    driver.tell(RegionFailed(region="main", attempt_id=0, error=error, permanent=True))
    assert driver.seen(EndJob)[0].error is error


def test_an_attempt_that_never_asks_for_its_barrier_is_counted_and_does_not_wait_for_a_delay() -> (
    None
):
    """It has nothing open that could be aborted, so it continues: but not for ever."""
    driver = CoreDriver(FIXED, regions=TWO)
    main = 0
    for _ in range(2):
        driver.tick(1.0)
        driver.ack(driver.poll(3, attempt_id=main), attempt_id=main)
        driver.tick(10.0)
        assert not driver.seen(EndJob)
        assert driver.core.is_live("side", 0)
        assert driver.status().regions[1].begins_ms is None
        main = driver.restart()
    driver.tick(1.0)
    driver.ack(driver.poll(3, attempt_id=main), attempt_id=main)
    driver.tick(10.0)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, RegionGivenUpError)
    assert "region=side" in str(end.error)
