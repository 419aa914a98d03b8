"""Regions that failed for good: suspended, skipped in every checkpoint, restarted by command."""

from dataclasses import replace

import pytest

from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.coordinator.core.events import (
    AbortWork,
    Acknowledged,
    BarrierPolled,
    CheckpointRequested,
    EndJob,
    Publish,
    Published,
    RegionFailed,
    RegionRestarted,
    RegionSuspended,
    RestartCommanded,
    RestartRequested,
    SplitsDiscovered,
    SweepOrphans,
)
from sluice.runtime.coordinator.core.failures import apply_failure
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, OnRegionFailure
from sluice.runtime.coordinator.policy.failure_policy import Failure
from sluice.runtime.coordinator.policy.handlers import (
    GlobalCheckpointHandler,
    RegionalCheckpointHandler,
)
from sluice.runtime.errors import (
    ConfigError,
    DeliveryError,
    FencedError,
    RegionGivenUpError,
    StorageUnreachableError,
    WrongJobError,
)
from sluice.runtime.failover.restart_strategies import FixedDelayRestart
from sluice.runtime.model.checkpoint_record import CheckpointKind, RegionRecord, Verdict
from sluice.runtime.model.splits import BatchKey
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver, split

SUSPEND = replace(FAST, on_region_failure=OnRegionFailure.SUSPEND)
REGIONAL = replace(SUSPEND, handler=RegionalCheckpointHandler(max_failed_ratio=0.5))
BOTH = pytest.mark.parametrize("settings", [SUSPEND, REGIONAL], ids=["global", "regional"])
NO_USE = DeliveryError("too large", {"topic": "t"}, "Make room.")


def break_for_good(driver: CoreDriver, region: str = "main", attempt_id: int = 0) -> None:
    driver.tell(RegionFailed(region=region, attempt_id=attempt_id, error=NO_USE, permanent=True))


def suspended(settings: CheckpointSettings = SUSPEND) -> CoreDriver:
    """``main`` has failed in the middle of its first epoch, for good; ``side`` has acknowledged."""
    driver = CoreDriver(settings, regions=TWO)
    driver.tick()
    driver.poll(3)
    driver.ack(driver.poll(3, region="side"), region="side")
    break_for_good(driver)
    return driver


def side_epoch(driver: CoreDriver, end: int) -> None:
    driver.tick(1.0)
    driver.ack(driver.poll(end, region="side"), region="side")


def decided(driver: CoreDriver) -> list[Publish]:
    return [found for found in driver.seen(Publish) if found.verdict is Verdict.DECIDED]


def record_of(driver: CoreDriver, region: str) -> RegionRecord:
    return next(r for r in decided(driver)[-1].regions if r.region == region)


# --------------------------------------------------------------------------------------------------


@BOTH
def test_the_last_region_that_is_left_ends_the_job(settings: CheckpointSettings) -> None:
    driver = suspended(settings)
    break_for_good(driver, "side")
    assert driver.seen(EndJob)[0].error is NO_USE


@BOTH
def test_one_failure_more_than_the_job_tolerates_suspends_who_failed(
    settings: CheckpointSettings,
) -> None:
    driver = CoreDriver(replace(settings, tolerable_failures=1), regions=TWO)
    attempt_id = 0
    for _ in range(2):
        driver.tell(RegionFailed(region="main", attempt_id=attempt_id, error=ValueError("again")))
        if not driver.core.is_suspended("main"):
            attempt_id = driver.restart()
    assert driver.core.is_suspended("main")
    driver.tell(RegionFailed(region="side", attempt_id=0, error=ValueError("once")))
    assert not driver.core.is_suspended("side")
    assert not driver.seen(EndJob)


def test_a_region_that_is_suspended_while_it_waits_to_begin_again_waits_no_more() -> None:
    """It has failed after its acknowledgement, and what it acknowledged grew old."""
    strategy = FixedDelayRestart(attempts=1, delay_s=60.0)
    plans = (*TWO, replace(TWO[0], name="third"))
    driver = CoreDriver(replace(REGIONAL, restart_strategy=strategy), regions=plans)
    driver.tick()
    batch = BatchKey(region="main", attempt_id=0, batch_id=1)
    ack = driver.acknowledgement(batch, driver.poll(3))
    driver.tell(Acknowledged(ack=replace(ack, decide_by_s=driver.clock() + 4.0)))
    driver.ack(driver.poll(3, region="side"), region="side")
    driver.tell(RegionFailed(region="main", attempt_id=0, error=RuntimeError("bug")))
    assert driver.status().regions[0].begins_ms is not None
    driver.tick(4.0)
    main = driver.status().regions[0]
    assert main.suspended is not None
    assert main.begins_ms is None


def test_the_record_that_ends_a_suspended_regions_attempt_says_so() -> None:
    driver = suspended()
    side_epoch(driver, 6)
    reasons = [found.reason for found in driver.seen(Publish) if found.verdict is Verdict.ABORTED]
    assert "region main is suspended" in reasons


def test_an_epoch_that_never_comes_suspends_the_slow_region() -> None:
    """The one that acknowledged is not the cause."""
    driver = CoreDriver(replace(SUSPEND, tolerable_failures=0), regions=TWO)
    driver.tick()
    driver.poll(3)
    driver.ack(driver.poll(3, region="side"), region="side")
    driver.tick(10.0)
    assert driver.core.is_suspended("main")
    assert not driver.core.is_suspended("side")
    assert not driver.seen(EndJob)


def test_a_decision_that_nobody_made_late_suspends_nobody() -> None:
    """Its store did not answer until all of it had grown old: where a strategy gives a region up
    for that, the job ends. It would continue for ever and decide nothing."""
    driver = CoreDriver(
        replace(SUSPEND, restart_strategy=FixedDelayRestart(attempts=0)), regions=TWO
    )
    driver.auto = False
    driver.tick()
    for region in ("main", "side"):
        batch = BatchKey(region=region, attempt_id=0, batch_id=1)
        ack = driver.acknowledgement(batch, driver.poll(3, region=region))
        driver.tell(Acknowledged(ack=replace(ack, decide_by_s=driver.clock() + 4.0)))
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.UNKNOWN))
    driver.tick(5.0)
    assert driver.seen(Publish)[-1].verdict is Verdict.ABORTED
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.OURS))
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, RegionGivenUpError)
    assert not driver.seen(RegionSuspended)


def test_an_outage_suspends_nobody() -> None:
    away = StorageUnreachableError("a file system is away", {}, "Wait.")
    driver = CoreDriver(
        replace(SUSPEND, restart_strategy=FixedDelayRestart(attempts=0)), regions=TWO
    )
    driver.tell(RegionFailed(region="main", attempt_id=0, error=away))
    assert not driver.core.is_suspended("main")


# --- its old attempt ------------------------------------------------------------------------------


@BOTH
def test_abort_before_skip_what_a_suspended_region_left_open_is_swept_before_the_first_decision_without_it(
    settings: CheckpointSettings,
) -> None:
    driver = suspended(settings)
    for end in (6, 9):
        side_epoch(driver, end)
    order = [type(found) for found in driver.log if isinstance(found, SweepOrphans | Publish)]
    first = next(
        at
        for at, found in enumerate(f for f in driver.log if isinstance(f, SweepOrphans | Publish))
        if isinstance(found, Publish) and found.verdict is Verdict.DECIDED
    )
    assert SweepOrphans in order[:first]
    assert order.count(SweepOrphans) == 1


@BOTH
def test_callback_after_commit_a_suspended_regions_old_attempt_is_over(
    settings: CheckpointSettings,
) -> None:
    """Its messages are refused, its callbacks woken, and a durable record stands after it, so that
    a sweep takes everything that this attempt ever opened, also what it opens later."""
    driver = suspended(settings)
    side_epoch(driver, 6)
    with pytest.raises(FencedError):
        driver.tell(BarrierPolled(region="main", attempt_id=0))
    with pytest.raises(FencedError):
        driver.ack(region="main")
    fence = driver.core.sweep_view("uid").attempt_ids["main"]
    assert fence > 0
    verdicts = {found.checkpoint_id: found.verdict for found in driver.seen(Publish)}
    assert verdicts[fence] is Verdict.ABORTED
    assert not driver.core.is_live("main", 0)
    assert not driver.core.is_live("main", fence)


def test_what_it_held_for_the_next_checkpoint_is_aborted() -> None:
    """A batch that no barrier asked for, acknowledged, and never decided."""
    driver = CoreDriver(SUSPEND, regions=TWO)
    driver.tick()
    driver.ack(driver.poll(3))
    driver.ack(region="main")
    break_for_good(driver)
    driver.ack(driver.poll(3, region="side"), region="side")
    aborted = [entry.payload for found in driver.seen(AbortWork) for entry in found.committables]
    assert aborted == [b"main.0.2"]


def test_its_splits_stay_and_new_ones_go_to_others() -> None:
    """A partition that was discovered shall be read."""
    driver = suspended(REGIONAL)
    driver.tell(SplitsDiscovered(source_id="source", splits=(split(7, 5, 5), split(8, 5, 5))))
    side_epoch(driver, 6)
    assert {found.partition for found in record_of(driver, "main").splits} == {0}
    assert {found.partition for found in record_of(driver, "side").splits} == {1, 7, 8}


# --- by command -----------------------------------------------------------------------------------


@BOTH
def test_an_epoch_under_way_does_not_wait_for_a_region_that_is_restarted(
    settings: CheckpointSettings,
) -> None:
    """It began without it; it is not given up either."""
    driver = suspended(replace(settings, tolerable_failures=0))
    driver.tick(1.0)
    barrier = driver.poll(6, region="side")
    driver.tell(RestartCommanded(regions=("main",)))
    driver.tell(RestartRequested(region="main"))
    driver.ack(barrier, region="side")
    assert not driver.seen(EndJob)
    assert decided(driver)[-1].checkpoint_id == (barrier.checkpoint_id if barrier else None)
    assert driver.seen(RegionRestarted)


def test_a_command_that_comes_before_the_old_attempt_is_settled_waits_for_it() -> None:
    """Rule `callback-after-commit` holds for a person, too."""
    driver = CoreDriver(REGIONAL, regions=TWO)
    driver.tick()
    driver.ack(driver.poll(3))
    driver.auto = False
    driver.ack(driver.poll(3, region="side"), region="side")
    break_for_good(driver)
    driver.tell(RestartCommanded())
    driver.tell(RestartRequested(region="main"))
    assert not driver.seen(RegionRestarted), "the decision that contains it is under way"
    driver.auto = True
    for step in list(driver.held):
        driver.answer(step)
    (restarted,) = driver.seen(RegionRestarted)
    assert restarted.restored.splits[0].end_offset == 3


@pytest.mark.parametrize("handler", [GlobalCheckpointHandler(), RegionalCheckpointHandler()])
def test_a_region_that_runs_is_restarted_without_a_failure_counted(
    handler: GlobalCheckpointHandler | RegionalCheckpointHandler,
) -> None:
    driver = CoreDriver(replace(FAST, handler=handler, tolerable_failures=0), regions=TWO)
    driver.tick()
    driver.poll(3)
    driver.ack(driver.poll(3, region="side"), region="side")
    driver.tell(RestartCommanded(regions=("main",)))
    attempt_id = driver.restart()
    assert not driver.seen(EndJob)
    assert driver.core.is_live("main", attempt_id)
    (attempt,) = driver.status().regions[0].attempts
    assert attempt.why.startswith("RestartCommandedError: the region is restarted by command")


def test_a_region_that_waits_for_its_strategy_is_restarted_at_once() -> None:
    strategy = FixedDelayRestart(attempts=1, delay_s=3600.0)
    driver = CoreDriver(replace(REGIONAL, restart_strategy=strategy), regions=TWO)
    driver.tell(RegionFailed(region="main", attempt_id=0, error=ValueError("one")))
    driver.tell(RestartRequested(region="main"))
    assert not driver.seen(RegionRestarted)
    driver.tell(RestartCommanded(regions=("main",)))
    attempt_id = driver.seen(RegionRestarted)[-1].attempt_id
    driver.tell(RegionFailed(region="main", attempt_id=attempt_id, error=ValueError("two")))
    assert not driver.core.is_suspended("main")


def test_commands_that_make_no_sense_are_refused_and_change_nothing() -> None:
    driver = CoreDriver(REGIONAL, regions=TWO)
    with pytest.raises(ConfigError, match="no region of the job is suspended"):
        driver.tell(RestartCommanded())
    with pytest.raises(WrongJobError, match="known=main,side"):
        driver.tell(RestartCommanded(regions=("main", "other")))
    assert driver.core.is_live("main", 0)
    driver.stop()
    with pytest.raises(FencedError):
        driver.tell(RestartCommanded(regions=("main",)))


def test_a_job_that_stops_takes_no_suspended_region_back() -> None:
    """Its last checkpoint would hold the region's last snapshot, however far a drain reads."""
    driver = suspended(REGIONAL)
    driver.tell(CheckpointRequested(kind=CheckpointKind.FINAL, is_copied=False, limit_s=60.0))
    for regions in ((), ("main", "side")):
        with pytest.raises(ConfigError, match=r"the job is stopping.*regions=main"):
            driver.tell(RestartCommanded(regions=regions))
    assert driver.core.is_suspended("main")
    assert driver.core.is_live("side", 0)
    driver.tell(RestartCommanded(regions=("side",)))
    assert not driver.core.is_live("side", 0)


def test_only_the_region_whose_failure_counts_is_suspended() -> None:
    """One beside it that waits for its file system has done nothing."""
    three = (*TWO, replace(TWO[0], name="third"))
    handler = RegionalCheckpointHandler(max_failed_ratio=0.4)
    settings = replace(SUSPEND, handler=handler, tolerable_failures=0)
    driver = CoreDriver(settings, regions=three)
    driver.tick()
    for name in ("main", "side", "third"):
        driver.poll(3, region=name)
    away = StorageUnreachableError("away", {}, "Wait.")
    driver.tell(RegionFailed(region="side", attempt_id=0, error=away))
    driver.tell(RegionFailed(region="main", attempt_id=0, error=ValueError("a bug")))
    assert driver.core.is_suspended("main")
    assert not driver.core.is_suspended("side")


def test_a_region_that_is_suspended_already_is_not_suspended_again() -> None:
    """It is named as the cause once more, with others: its first cause stays, and is reported once."""
    driver = suspended()
    state = driver.core._state  # noqa: SLF001
    failure = Failure(error=ValueError("later"), regions=("main",), is_permanent=True)
    apply_failure(state, failure, driver.clock())
    assert state.regions["main"].suspended is not None
    assert state.regions["main"].suspended.cause is NO_USE
    assert len(driver.seen(RegionSuspended)) == 1
