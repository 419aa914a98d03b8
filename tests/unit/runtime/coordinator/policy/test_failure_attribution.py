"""Only who holds up an epoch is named as the cause: not who waits for it, and not for somebody who is idle."""

from dataclasses import replace

import pytest

from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.coordinator.core.events import (
    Acknowledged,
    EndJob,
    Publish,
    RegionFailed,
    RegionSuspended,
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
from sluice.runtime.failover.restart_strategies import FixedDelayRestart
from sluice.runtime.model.checkpoint_record import Verdict
from sluice.runtime.model.splits import Barrier, BatchKey
from tests.kit.coordinator.core_driver import FAST, CoreDriver

_HANDLERS = (GlobalCheckpointHandler(), RegionalCheckpointHandler(max_failed_ratio=0.3))
_EACH_HANDLER = pytest.mark.parametrize("handler", _HANDLERS, ids=lambda h: type(h).__name__)
_STRATEGY = FixedDelayRestart(attempts=3, delay_s=5.0)


def _regions(*names: str, follows: bool = True) -> tuple[RegionPlan, ...]:
    return tuple(RegionPlan(name=n, source_ids=("source",), follows=follows) for n in names)


def _old(
    driver: CoreDriver, region: str, barrier: Barrier | None, batch_id: int, *, decide_by_s: float
) -> None:
    """It acknowledges what may be lost from that moment on."""
    ack = driver.acknowledgement(BatchKey(region=region, attempt_id=0, batch_id=batch_id), barrier)
    driver.tell(Acknowledged(ack=replace(ack, decide_by_s=decide_by_s)))


def _restarts(driver: CoreDriver) -> dict[str, int]:
    regions = driver.core._state.regions  # noqa: SLF001
    return {name: region.restarts.count for name, region in regions.items()}


def _at_work(settings: CheckpointSettings, plans: tuple[RegionPlan, ...]) -> CoreDriver:
    driver = CoreDriver(settings, regions=plans)
    driver.tick(1.0)
    given = {p.name: driver.poll(0 if p.name == "idle" else 3, region=p.name) for p in plans}
    for name, barrier in given.items():
        if barrier is not None:
            driver.ack(barrier, region=name)
        else:
            driver.poll(0, region=name)  # its first look was before anybody had a barrier
    assert driver.core.last_committed == 1
    return driver


@_EACH_HANDLER
def test_a_region_that_is_idle_excuses_no_other(handler: CheckpointHandler) -> None:
    """It was never away: nothing but the region itself lets its work grow old."""
    settings = replace(FAST, handler=handler, restart_strategy=_STRATEGY)
    driver = _at_work(settings, _regions("main", "idle"))
    driver.tick(1.0)
    now_s = driver.clock()
    _old(driver, "main", driver.poll(6), 2, decide_by_s=now_s - 0.5)
    driver.poll(0, region="idle")
    driver.tick()
    assert _restarts(driver) == {"main": 1, "idle": 0}


@_EACH_HANDLER
def test_whoever_never_asks_is_named_as_cause_for_work_that_grew_old_meanwhile(
    handler: CheckpointHandler,
) -> None:
    settings = replace(FAST, handler=handler, restart_strategy=_STRATEGY)
    driver = _at_work(settings, _regions("main", "stuck", "idle"))
    driver.tick(1.0)
    barrier = driver.poll(6)
    _old(driver, "main", barrier, 2, decide_by_s=driver.clock() + 6.0)
    driver.poll(0, region="idle")
    driver.tick(6.0)
    assert driver.seen(Publish)[-1].verdict is Verdict.ABORTED
    assert _restarts(driver) == {"main": 0, "stuck": 1, "idle": 0}
    assert "missing=stuck" in str(driver.core.why_ended("main"))


def test_only_who_never_asks_is_suspended_for_work_that_grew_old_meanwhile() -> None:
    settings = replace(FAST, on_region_failure=OnRegionFailure.SUSPEND, tolerable_failures=0)
    driver = _at_work(settings, _regions("main", "stuck", "idle"))
    driver.tick(1.0)
    _old(driver, "main", driver.poll(6), 2, decide_by_s=driver.clock() + 6.0)
    driver.poll(0, region="idle")
    driver.tick(6.0)
    assert [told.region for told in driver.seen(RegionSuspended)] == ["stuck"]
    assert not driver.seen(EndJob)


def test_whose_work_was_short_is_named_as_cause_though_an_idle_region_acknowledged() -> None:
    settings = replace(FAST, restart_strategy=_STRATEGY)
    driver = _at_work(settings, _regions("main", "other", "idle"))
    driver.tick(1.0)
    _old(driver, "main", driver.poll(6), 2, decide_by_s=driver.clock() + 1.0)
    barrier = driver.poll(6, region="other")
    assert barrier is not None
    driver.poll(0, region="idle")
    driver.tick(1.0)
    assert _restarts(driver) == {"main": 0, "other": 1, "idle": 0}, "it has its barrier for 1 s"
    driver = _at_work(settings, _regions("main", "other", "idle"))
    driver.tick(1.0)
    _old(driver, "main", driver.poll(6), 2, decide_by_s=driver.clock() + 1.0)
    driver.poll(0, region="idle")
    driver.tick(1.0)
    assert _restarts(driver) == {"main": 1, "other": 0, "idle": 0}, "it had no time to ask"


def _decided_without_late(handler: RegionalCheckpointHandler, *, late_s: float) -> CoreDriver:
    """The region ``late`` has a barrier, and the decision was taken once its time was over."""
    settings = replace(FAST, handler=handler, restart_strategy=_STRATEGY)
    driver = _at_work(settings, _regions("main", "late"))
    driver.tick(1.0)
    assert driver.poll(6, region="late") is not None
    driver.ack(driver.poll(6))
    driver.tick(late_s)
    assert driver.core.last_committed == 2, "decided without it, once"
    return driver


def test_a_late_region_beyond_its_carries_is_named_as_cause_for_what_grows_old_after_it() -> None:
    """Its barrier is of an older checkpoint, and it holds this one up all the same."""
    handler = RegionalCheckpointHandler(max_skipped_in_a_row=1, region_timeout_s=1.0)
    driver = _decided_without_late(handler, late_s=1.0)
    barrier = driver.poll(9)
    _old(driver, "main", barrier, 3, decide_by_s=driver.clock() + 3.0)
    driver.tick(3.0)
    assert not driver.core.is_live("late", 0)
    assert _restarts(driver) == {"main": 0, "late": 1}


def test_a_region_that_a_checkpoint_carries_does_not_hold_it_up() -> None:
    handler = RegionalCheckpointHandler(region_timeout_s=1.0)
    settings = replace(FAST, handler=handler, restart_strategy=_STRATEGY, max_concurrent=2)
    driver = _at_work(settings, _regions("main", "late"))
    driver.auto = False
    driver.tick(1.0)
    driver.ack(driver.poll(6))
    driver.ack(driver.poll(6, region="late"), region="late")
    (first,) = driver.held
    driver.tick(1.0)
    assert driver.poll(9, region="late") is not None
    _old(driver, "main", driver.poll(9), 3, decide_by_s=driver.clock() + 3.0)
    driver.tick(1.0)
    assert [each.state for each in driver.status().pending] == ["deciding", "pre-committed"]
    driver.tick(2.0)
    assert driver.held == [first]
    assert _restarts(driver) == {"main": 1, "late": 0}


def test_a_late_region_that_has_failed_since_excuses_no_other() -> None:
    driver = _decided_without_late(RegionalCheckpointHandler(region_timeout_s=1.0), late_s=1.0)
    driver.tell(RegionFailed(region="late", attempt_id=0, error=RuntimeError("a task failed")))
    driver.tick(1.0)
    _old(driver, "main", driver.poll(9), 3, decide_by_s=driver.clock() - 0.5)
    assert not driver.core.is_live("main", 0)
    assert _restarts(driver) == {"main": 1, "late": 1}


def test_what_grew_old_after_a_late_region_costs_its_own_no_restart() -> None:
    driver = _decided_without_late(RegionalCheckpointHandler(region_timeout_s=4.0), late_s=4.0)
    began_s = driver.clock() - 4.0
    driver.tick(1.0)
    _old(driver, "main", driver.poll(9), 3, decide_by_s=began_s + 3.0)
    assert not driver.core.is_live("main", 0)
    assert _restarts(driver) == {"main": 0, "late": 0}


@pytest.mark.parametrize("strategy", [None, _STRATEGY], ids=["tolerable failures", "strategy"])
def test_a_region_that_waits_for_its_commit_holds_nothing_up(
    strategy: FixedDelayRestart | None,
) -> None:
    """Its next batch begins after that; the one that has had its barrier all the time is slow."""
    settings = replace(
        FAST,
        handler=RegionalCheckpointHandler(region_timeout_s=2.0, max_skipped_in_a_row=1),
        restart_strategy=strategy,
        on_region_failure=OnRegionFailure.SUSPEND,
        tolerable_failures=0,
        max_concurrent=2,
    )
    driver = _at_work(settings, _regions("main", "late", "idle", follows=False))
    driver.outcomes[b"main.0.2"] = CommitOutcome.PENDING
    driver.tick(1.0)
    assert driver.poll(6, region="late") is not None
    driver.ack(driver.poll(6))
    driver.poll(0, region="idle")
    driver.tick(2.0)
    for _ in range(12):
        driver.tick(1.0)
        driver.poll(0, region="idle")
    assert driver.core.is_live("main", 0)
    assert not driver.core.is_live("late", 0)
    if strategy is None:
        assert [told.region for told in driver.seen(RegionSuspended)] == ["late"]
    else:
        assert _restarts(driver) == {"main": 0, "late": 1, "idle": 0}


def test_a_checkpoint_that_waited_for_a_commit_alone_is_nobodys_failure() -> None:
    """How long a commit may take has a limit of its own."""
    settings = replace(FAST, max_concurrent=2, tolerable_failures=0, unknown_timeout_s=600.0)
    driver = _at_work(settings, _regions("main", "idle", follows=False))
    driver.outcomes[b"main.0.2"] = CommitOutcome.PENDING
    driver.tick(1.0)
    driver.ack(driver.poll(6))
    driver.poll(0, region="idle")
    driver.tick(1.0)
    assert driver.poll(3, region="idle") is not None
    driver.ack(region="idle")
    driver.tick(10.0)
    assert not driver.seen(EndJob)
    assert driver.core.is_live("main", 0)


# --- batches that wait for the next checkpoint ----------------------------------------------------


def _held(driver: CoreDriver, *, left_s: float) -> None:
    """``late`` acknowledges after the decision that was taken without it."""
    driver.tick(1.0)
    barrier = driver.poll(6, region="late")
    driver.ack(driver.poll(6))
    driver.tick(2.0)
    assert driver.core.last_committed == 2
    _old(driver, "late", barrier, 2, decide_by_s=driver.clock() + left_s)
    assert driver.core.is_live("late", 0)


_LATE = replace(
    FAST,
    handler=RegionalCheckpointHandler(region_timeout_s=2.0),
    interval_s=5.0,
    restart_strategy=_STRATEGY,
)


def test_a_late_batch_that_grows_old_before_the_next_barrier_is_its_regions_failure() -> None:
    """The barrier comes when it is due: the batch itself came too late for it."""
    driver = _at_work(_LATE, _regions("main", "late"))
    driver.tick(4.0)
    _held(driver, left_s=1.0)
    driver.tick(5.0)
    assert not driver.core.is_live("late", 0)
    assert _restarts(driver) == {"main": 0, "late": 1}
    assert driver.core.is_live("main", 0)


def test_a_late_batch_that_is_reported_too_late_is_no_excuse_for_itself() -> None:
    """It was old before the barrier of the checkpoint that it might have joined."""
    driver = _at_work(replace(_LATE, timeout_s=60.0), _regions("main", "late"))
    driver.tick(5.0)
    barrier = driver.poll(6, region="late")
    driver.ack(driver.poll(6))
    driver.tick(2.0)
    assert driver.core.last_committed == 2, "decided without it"
    driver.tick(5.0)
    assert driver.poll(9) is not None
    driver.tick(1.0)
    _old(driver, "late", barrier, 2, decide_by_s=driver.clock() - 3.0)
    assert not driver.core.is_live("late", 0)
    assert _restarts(driver) == {"main": 0, "late": 1}
