"""What a failure costs, and which regions a checkpoint is decided for: pure policies."""

from dataclasses import replace

import pytest

from sluice.runtime.contracts import FailureReason
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, OnRegionFailure
from sluice.runtime.coordinator.policy.failure_policy import (
    Failure,
    FailureOutcome,
    FailureView,
    RegionView,
    decide_failure,
)
from sluice.runtime.coordinator.policy.handlers import (
    Alignment,
    HandlerDecision,
    RegionalCheckpointHandler,
)
from sluice.runtime.errors import (
    ConfigError,
    RegionGivenUpError,
    StorageUnreachableError,
    UnreadSplitsLostError,
)
from sluice.runtime.failover.restart_strategies import FixedDelayRestart
from sluice.runtime.model.checkpoint_record import CheckpointKind

COUNTING = CheckpointSettings(tolerable_failures=1)
RESTARTING = CheckpointSettings(restart_strategy=FixedDelayRestart(attempts=1, delay_s=2.0))
BROKEN = ValueError("broken")


def view(
    *, failures: int = 0, restarted: tuple[str, ...] = (), is_over: bool = False
) -> FailureView:
    """Two regions in service; those restarted have used up their only restart."""
    used = FixedDelayRestart(attempts=1).after_failure(RegionView().restarts, 0.0, draw=0.5)
    assert used is not None
    return FailureView(
        regions={
            name: RegionView(attempts=1, restarts=used) if name in restarted else RegionView()
            for name in ("main", "side")
        },
        in_service={"main", "side"},
        failures=failures,
        is_over=is_over,
    )


def failure(error: BaseException = BROKEN, *regions: str, is_shared: bool = False) -> Failure:
    return Failure(error=error, regions=regions or ("main",), is_shared=is_shared)


def decided(
    found: Failure, seen: FailureView, settings: CheckpointSettings
) -> list[tuple[FailureOutcome, tuple[str, ...]]]:
    decisions = decide_failure(found, seen, settings, now_s=10.0, draw=lambda: 0.5)
    return [(decision.outcome, decision.regions) for decision in decisions]


def suspending(settings: CheckpointSettings) -> CheckpointSettings:
    return replace(settings, on_region_failure=OnRegionFailure.SUSPEND)


@pytest.mark.parametrize("settings", [COUNTING, RESTARTING], ids=["count", "strategy"])
@pytest.mark.parametrize(
    ("found", "seen"),
    [
        (failure(StorageUnreachableError("away", {}, "Wait.")), view(failures=9)),
        (failure(), view(failures=9, restarted=("main",), is_over=True)),
    ],
    ids=["an outage", "a job that has ended"],
)
def test_some_failures_cost_nothing(
    settings: CheckpointSettings, found: Failure, seen: FailureView
) -> None:
    assert decided(found, seen, settings) == []


def test_failures_are_counted_until_the_job_tolerates_no_more() -> None:
    assert decided(failure(), view(), COUNTING) == [(FailureOutcome.COUNT, ())]
    (end,) = decide_failure(failure(), view(failures=1), COUNTING, now_s=0.0, draw=lambda: 0.5)
    assert end.outcome is FailureOutcome.END
    assert isinstance(end.error, RegionGivenUpError)
    assert "failures=2 tolerable_failures=1 regions=main" in str(end.error)


def test_a_region_restarts_as_its_strategy_allows() -> None:
    (restart,) = decide_failure(failure(), view(), RESTARTING, now_s=10.0, draw=lambda: 0.5)
    assert (restart.outcome, restart.regions) == (FailureOutcome.RESTART, ("main",))
    assert restart.restarts is not None
    assert restart.restarts.due_s == 12.0
    spent = view(restarted=("main",))
    assert decided(failure(), spent, RESTARTING) == [(FailureOutcome.END, ())]
    both = failure(BROKEN, "main", "side")
    assert decided(both, view(restarted=("side",)), RESTARTING) == [
        (FailureOutcome.RESTART, ("main",)),
        (FailureOutcome.END, ()),
    ]


def test_a_job_that_wants_to_continues_without_the_regions() -> None:
    for settings in (suspending(COUNTING), suspending(RESTARTING)):
        spent = view(failures=1, restarted=("main",))
        assert decided(failure(), spent, settings) == [(FailureOutcome.SUSPEND, ("main",))]


def test_the_last_region_ends_the_job() -> None:
    """Counted for both at once, or for each by its strategy."""
    both = failure(BROKEN, "main", "side")
    spent = view(failures=1, restarted=("main", "side"))
    assert decided(both, spent, suspending(COUNTING)) == [(FailureOutcome.END, ())]
    assert decided(both, spent, suspending(RESTARTING)) == [
        (FailureOutcome.SUSPEND, ("main",)),
        (FailureOutcome.END, ()),
    ]


def test_no_region_is_suspended_for_a_failure_that_all_share() -> None:
    shared = failure(BROKEN, "main", is_shared=True)
    spent = view(restarted=("main",))
    assert decided(shared, spent, suspending(RESTARTING)) == [(FailureOutcome.END, ())]


def test_an_error_that_would_come_again_is_not_tried_again() -> None:
    for settings in (COUNTING, RESTARTING):
        once = replace(failure(), is_permanent=True)
        assert decided(once, view(), settings) == [(FailureOutcome.END, ())]
        assert decided(once, view(), suspending(settings)) == [(FailureOutcome.SUSPEND, ("main",))]


def test_lost_records_that_no_region_reads_yet_suspend_none() -> None:
    lost = UnreadSplitsLostError("gone", {}, "Accept the loss.")
    once = replace(failure(lost), is_permanent=True)
    assert decided(once, view(), suspending(COUNTING)) == [(FailureOutcome.END, ())]


TIMEOUT_S = 100.0
REGIONAL = RegionalCheckpointHandler(
    max_failed_ratio=0.5, max_skipped_in_a_row=3, region_timeout_s=10.0
)


def alignment(
    acknowledged: int,
    *,
    failed: int = 0,
    waiting: int = 0,
    elapsed_s: float = 0.0,
    skipped: int = 0,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
) -> Alignment:
    """So many regions of each sort; those without an acknowledgement were ``skipped`` before."""

    def names(sort: str, count: int) -> frozenset[str]:
        return frozenset(f"{sort}{number}" for number in range(count))

    missing = names("failed", failed) | names("waiting", waiting)
    return Alignment(
        kind=kind,
        acknowledged=names("acknowledged", acknowledged),
        failed=names("failed", failed),
        waiting=names("waiting", waiting),
        skipped=dict.fromkeys(missing, skipped),
        elapsed_s=elapsed_s,
    )


@pytest.mark.parametrize(
    ("given", "ruling"),
    [
        (alignment(2), HandlerDecision.DECIDE),
        (alignment(1, failed=1), HandlerDecision.DECIDE),
        (alignment(1, failed=1, waiting=1), HandlerDecision.WAIT),
        (alignment(1, waiting=1, elapsed_s=9.0), HandlerDecision.WAIT),
        (alignment(1, waiting=1, elapsed_s=10.0), HandlerDecision.DECIDE),
        (alignment(1, failed=2), HandlerDecision.GIVE_UP),
        (alignment(1, waiting=2, elapsed_s=10.0), HandlerDecision.WAIT),
        (alignment(1, waiting=2, elapsed_s=100.0), HandlerDecision.GIVE_UP),
        (alignment(1, failed=1, skipped=2), HandlerDecision.DECIDE),
        (alignment(1, failed=1, skipped=3), HandlerDecision.GIVE_UP),
        (alignment(1, failed=1, kind=CheckpointKind.SAVEPOINT), HandlerDecision.GIVE_UP),
        (alignment(0, failed=1), HandlerDecision.GIVE_UP),
    ],
)
def test_the_regional_handler_continues_within_its_limits(
    given: Alignment, ruling: HandlerDecision
) -> None:
    """Beyond them, and for checkpoints that were asked for, it is the global one."""
    assert REGIONAL.rule(given, timeout_s=TIMEOUT_S) is ruling


def test_why_a_region_is_left_out() -> None:
    """A failed one reads its range again, a late one's batch may still join."""
    found = alignment(1, failed=1, waiting=1).left_out()
    assert found == {"failed0": FailureReason.ERROR, "waiting0": FailureReason.EXPIRED}


@pytest.mark.parametrize(
    "settings", [{"max_failed_ratio": 1.0}, {"max_skipped_in_a_row": 0}, {"region_timeout_s": 0.0}]
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="out of range"):
        RegionalCheckpointHandler(**settings)  # type: ignore[arg-type]
