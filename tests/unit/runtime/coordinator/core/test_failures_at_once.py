"""What ends many regions at one moment is one failure, and waiting for another one is none."""

from dataclasses import replace

import pytest

from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    Publish,
    RegionFailed,
    RegionRestarted,
    RestartRequested,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, RegionPlan
from sluice.runtime.coordinator.policy.handlers import (
    CheckpointHandler,
    GlobalCheckpointHandler,
    RegionalCheckpointHandler,
)
from sluice.runtime.errors import StreamError
from sluice.runtime.failover.restart_strategies import FailureRateRestart
from sluice.runtime.model.checkpoint_record import Verdict
from sluice.runtime.model.splits import Barrier, BatchKey
from tests.kit.coordinator.core_driver import CoreDriver

_HANDLERS = (GlobalCheckpointHandler(), RegionalCheckpointHandler())
_LOST = StreamError("its executor is lost", {}, "See Spark's log.")
_DELAY_S, _KEPT_S = 30.0, 22.5


def regions(count: int) -> tuple[RegionPlan, ...]:
    """Continuous ones: each runs all the time, also between two barriers."""
    return tuple(
        RegionPlan(name=f"r{number}", source_ids=("source",), follows=True)
        for number in range(count)
    )


def epoch(driver: CoreDriver, end: int, attempts: dict[str, int]) -> None:
    """One whole checkpoint of these lives."""
    driver.tick(1.0)
    for name, attempt_id in attempts.items():
        barrier = driver.poll(end, region=name, attempt_id=attempt_id)
        driver.ack(barrier, region=name, attempt_id=attempt_id)


def fail(driver: CoreDriver, name: str, attempt_id: int) -> None:
    driver.tell(RegionFailed(region=name, attempt_id=attempt_id, error=_LOST))


@pytest.mark.parametrize("handler", _HANDLERS, ids=lambda handler: type(handler).__name__)
def test_a_lost_executor_is_one_failure_however_many_tasks_it_had(
    handler: CheckpointHandler,
) -> None:
    """Each of them ends by itself between two barriers, where there is no checkpoint to abort."""
    driver = CoreDriver(CheckpointSettings(handler=handler), regions=regions(8))
    attempts = {f"r{number}": 0 for number in range(8)}
    epoch(driver, 3, attempts)
    for name in attempts:
        fail(driver, name, 0)
    assert not driver.core.is_over
    attempts = {name: driver.restart(name) for name in attempts}
    epoch(driver, 6, attempts)
    assert driver.seen(Publish)[-1].verdict is Verdict.DECIDED


@pytest.mark.parametrize("handler", _HANDLERS, ids=lambda handler: type(handler).__name__)
def test_a_region_that_fails_in_each_of_its_attempts_ends_the_job(
    handler: CheckpointHandler,
) -> None:
    """Whatever else ran when it was counted."""
    settings = CheckpointSettings(handler=handler, tolerable_failures=3)
    driver = CoreDriver(settings, regions=regions(2))
    epoch(driver, 3, {"r0": 0, "r1": 0})
    attempt_id = 0
    for _ in range(3):
        fail(driver, "r0", attempt_id)
        assert not driver.core.is_over
        attempt_id = driver.restart("r0")
    fail(driver, "r0", attempt_id)
    assert driver.core.is_over


@pytest.mark.parametrize("handler", _HANDLERS, ids=lambda handler: type(handler).__name__)
def test_who_grew_old_while_another_region_was_away_begins_again_at_once(
    handler: CheckpointHandler,
) -> None:
    """With a delay of its own it would let the other's next epoch grow old, and so on for ever."""
    strategy = FailureRateRestart(
        max_failures_per_interval=2, failure_rate_interval_s=60.0, delay_s=_DELAY_S
    )
    settings = CheckpointSettings(handler=handler, restart_strategy=strategy, timeout_s=600.0)
    driver = CoreDriver(settings, regions=regions(2))
    epoch(driver, 3, {"r0": 0, "r1": 0})
    began_s = driver.clock()
    fail(driver, "r0", 0)
    driver.tell(RestartRequested(region="r0"))
    assert not driver.seen(RegionRestarted)
    driver.tick(_DELAY_S)
    (back,) = driver.seen(RegionRestarted)
    driver.tick(1.0)
    driver.poll(6, region="r0", attempt_id=back.attempt_id)
    old(driver, driver.poll(6, region="r1"), decide_by_s=began_s + _KEPT_S)
    driver.tick()
    assert not driver.core.is_live("r1", 0)
    for name in ("r0", "r1"):
        driver.tell(RestartRequested(region=name))
    driver.tick()  # no delay, for either
    attempts = {begun.region: begun.attempt_id for begun in driver.seen(RegionRestarted)}
    assert attempts.keys() == {"r0", "r1"}
    epoch(driver, 9, attempts)
    assert driver.seen(Publish)[-1].verdict is Verdict.DECIDED


def old(driver: CoreDriver, barrier: Barrier | None, *, decide_by_s: float) -> None:
    """``r1`` acknowledges what it has had open for too long."""
    ack = driver.acknowledgement(BatchKey(region="r1", attempt_id=0, batch_id=2), barrier)
    driver.tell(Acknowledged(ack=replace(ack, decide_by_s=decide_by_s)))
