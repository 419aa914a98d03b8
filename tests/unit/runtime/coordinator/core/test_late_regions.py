"""Regions that are late, or that fail at the same time: what a regional checkpoint skips, and when it waits."""

from dataclasses import replace

import pytest

from sluice.runtime.coordinator.core.events import (
    AbortWork,
    Acknowledged,
    EndJob,
    Publish,
    RegionFailed,
    RegionRestarted,
    RegionSuspended,
    RestartRequested,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    OnRegionFailure,
    RegionPlan,
)
from sluice.runtime.coordinator.policy.handlers import (
    CheckpointHandler,
    GlobalCheckpointHandler,
    RegionalCheckpointHandler,
)
from sluice.runtime.errors import StreamError
from sluice.runtime.failover.restart_strategies import FailureRateRestart
from sluice.runtime.model.checkpoint_record import RegionStatus, Verdict
from sluice.runtime.model.splits import Barrier, BatchKey
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver, committable

_CARRIES = 3
_LATE = replace(
    FAST, handler=RegionalCheckpointHandler(region_timeout_s=2.0, max_skipped_in_a_row=_CARRIES)
)
_BOUND_S = 40  # of carries, an interval and a time limit each, and of the last one's time-out


def _hanging(
    settings: CheckpointSettings = _LATE,
    *,
    regions: tuple[RegionPlan, ...] = TWO,
    finished: bool = False,
) -> tuple[CoreDriver, Barrier]:
    """Both have a barrier; main has acknowledged, and side, which hangs, is skipped."""
    driver = CoreDriver(settings, regions=regions)
    driver.tick()
    barrier = driver.poll(3, finished=finished)
    late = driver.poll(3, region="side", finished=finished)
    assert late is not None
    driver.ack(barrier)
    driver.tick(2.0)
    assert driver.core.last_committed == 1
    return driver, late


def _quiet(driver: CoreDriver, seconds: int, *, finished: bool = False) -> None:
    for _ in range(seconds):
        driver.tick(1.0)
        driver.poll(3, finished=finished)


@pytest.mark.parametrize("follows", [False, True], ids=["micro-batch", "continuous"])
def test_abort_before_skip_a_late_region_that_hangs_ends_though_the_others_are_quiet(
    *, follows: bool
) -> None:
    """Its open transaction holds back readers of partitions that it shares with them."""
    two = tuple(replace(plan, follows=follows) for plan in TWO)
    driver, _ = _hanging(regions=two)
    _quiet(driver, _BOUND_S)
    assert not driver.core.is_live("side", 0)
    assert driver.core.is_live("main", 0)
    skipped = [
        published
        for published in driver.seen(Publish)
        for region in published.regions
        if region.region == "side" and region.status is RegionStatus.SKIPPED
    ]
    assert len(skipped) == _CARRIES


def test_abort_before_skip_a_barrier_that_nobody_cut_before_a_region_was_late_counts_too() -> None:
    """It was begun while the late region's own checkpoint was open, and would stay idle."""
    driver, _ = _hanging(replace(_LATE, max_concurrent=2))
    _quiet(driver, _BOUND_S)
    assert not driver.core.is_live("side", 0)
    assert driver.core.is_live("main", 0)


def test_checkpoints_that_wait_for_their_decision_count_as_skips_of_a_region() -> None:
    """Several are complete before the first of them is decided: a slow store answers no sooner."""
    two = tuple(replace(plan, follows=True) for plan in TWO)
    driver = CoreDriver(replace(_LATE, max_concurrent=_CARRIES + 2), regions=two)
    driver.tick()
    driver.poll(3, region="side")
    driver.auto = False
    for number in range(1, _CARRIES + 3):
        driver.ack(driver.poll(3 * number))
        driver.tick(2.0)
    driver.auto = True
    for action in driver.held:
        driver.answer(action)
    skipped = [
        publish.checkpoint_id
        for publish in driver.seen(Publish)
        for region in publish.regions
        if publish.verdict is Verdict.DECIDED and region.status is RegionStatus.SKIPPED
    ]
    assert skipped == list(range(1, _CARRIES + 1))


def test_restore_by_attempt_a_late_region_that_asks_again_gets_the_barrier_that_it_has() -> None:
    """Spark may not have logged it: another one would leave its range out for ever."""
    driver, late = _hanging()
    driver.tick(1.0)
    assert driver.poll(9) != late
    assert driver.poll(9, region="side") == late


def test_abort_before_skip_a_bounded_job_ends_though_a_late_region_hangs() -> None:
    bounded = tuple(replace(plan, follows=True, bounded=True) for plan in TWO)
    driver, _ = _hanging(regions=bounded, finished=True)
    _quiet(driver, _BOUND_S, finished=True)
    assert not driver.core.is_live("side", 0)
    attempt_id = driver.restart("side")
    for _ in range(4):
        driver.tick(1.0)
        driver.poll(3, finished=True)
        if driver.core.is_over:
            break
        barrier = driver.poll(3, region="side", attempt_id=attempt_id, finished=True)
        if barrier is not None:
            driver.ack(barrier, region="side", attempt_id=attempt_id)
    (ended,) = driver.seen(EndJob)
    assert ended.finished


def test_a_late_region_that_comes_through_keeps_its_attempt_while_the_others_are_quiet() -> None:
    """Within its skips it is only slow; after it, a quiet job decides nothing again."""
    driver, late = _hanging()
    _quiet(driver, 4)
    driver.ack(late, region="side")
    _quiet(driver, 1)
    decided = len(driver.seen(Publish))
    for _ in range(20):
        _quiet(driver, 1)
        driver.poll(3, region="side")
    assert driver.core.is_live("side", 0)
    assert len(driver.seen(Publish)) == decided
    assert all(p.verdict is Verdict.DECIDED for p in driver.seen(Publish))


# --- too old to be decided ------------------------------------------------------------------------


def _ack_old(driver: CoreDriver, late: Barrier) -> None:
    """Side's batch comes when its broker may soon end a transaction of it."""
    batch = BatchKey(region="side", attempt_id=0, batch_id=1)
    ack = replace(driver.acknowledgement(batch, late), decide_by_s=driver.clock() - 1.0)
    driver.tell(Acknowledged(ack=ack))


def test_transaction_timeout_a_late_region_that_is_too_old_takes_no_other_along() -> None:
    driver, late = _hanging()
    driver.tick(1.0)
    barrier = driver.poll(6)
    _ack_old(driver, late)
    assert driver.core.is_live("main", 0)
    assert not driver.core.is_live("side", 0)
    driver.ack(barrier)
    assert driver.core.last_committed == 2
    attempt_id = driver.restart("side")
    (aborted,) = (each for each in driver.seen(AbortWork) if each.committables)
    assert aborted.committables == (committable("side.0.1"),)
    driver.tick(1.0)
    again = driver.poll(3, region="side", attempt_id=attempt_id)
    assert again.splits == late.splits


@pytest.mark.parametrize("is_open", [False, True], ids=["between two", "for the next one"])
def test_transaction_timeout_a_late_region_that_is_too_old_ends_no_job(*, is_open: bool) -> None:
    """Whatever is done without a region that has failed: no other one is named as the cause."""
    suspend = replace(_LATE, on_region_failure=OnRegionFailure.SUSPEND, tolerable_failures=0)
    driver, late = _hanging(suspend)
    driver.tick(1.0)
    barrier = driver.poll(6) if is_open else None
    _ack_old(driver, late)
    if is_open:
        driver.ack(barrier)
    driver.tick(1.0)
    assert not driver.seen(EndJob)
    assert driver.core.is_live("main", 0)
    assert not driver.core.is_live("side", 0)
    assert not driver.core.is_suspended("main")


def test_transaction_timeout_in_a_checkpoint_that_all_share_the_one_that_is_too_old_is_named_as_cause() -> (
    None
):
    settings = replace(FAST, on_region_failure=OnRegionFailure.SUSPEND, tolerable_failures=0)
    driver = CoreDriver(settings, regions=TWO)
    driver.tick()
    driver.ack(driver.poll(3))
    late = driver.poll(3, region="side")
    assert late is not None
    _ack_old(driver, late)
    assert [told.region for told in driver.seen(RegionSuspended)] == ["side"]
    assert not driver.seen(EndJob)


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
    driver.tick(1.0)
    for name, attempt_id in attempts.items():
        barrier = driver.poll(end, region=name, attempt_id=attempt_id)
        driver.ack(barrier, region=name, attempt_id=attempt_id)


def fail(driver: CoreDriver, name: str, attempt_id: int) -> None:
    driver.tell(RegionFailed(region=name, attempt_id=attempt_id, error=_LOST))


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


def many(count: int, handler: RegionalCheckpointHandler) -> CoreDriver:
    plans = [RegionPlan(name=f"r{number}", source_ids=("source",)) for number in range(count)]
    return CoreDriver(replace(FAST, handler=handler), regions=plans)


def _fail(driver: CoreDriver, name: str) -> None:
    driver.tell(RegionFailed(region=name, attempt_id=0, error=RuntimeError("killed")))
