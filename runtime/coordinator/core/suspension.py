"""Applies what the failure policy decides; a job whose regions are suspended, and its end. Pure."""

from collections.abc import Iterable

from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.events import RegionSuspended
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint
from sluice.runtime.coordinator.policy.failure_policy import (
    Failure,
    FailureDecision,
    FailureOutcome,
    FailureView,
    RegionView,
    decide_failure,
)
from sluice.runtime.errors import RegionsSuspendedError
from sluice.runtime.model.splits import SplitRange

__all__ = ["apply_failure", "is_the_end", "suspended_at_the_end"]


def apply_failure(state: CoordinatorState, failure: Failure | None, now_s: float) -> None:
    """Do what a failure costs by the policy; None: it costs nothing."""
    if failure is None:
        return
    regions = {name: state.regions[name] for name in failure.regions}
    view = FailureView(
        regions={
            name: RegionView(attempts=found.history.count, restarts=found.restarts)
            for name, found in regions.items()
        },
        in_service=state.in_service().keys(),
        failures=state.failures,
        is_over=state.is_over,
    )
    decisions = decide_failure(failure, view, state.settings, now_s=now_s, draw=state.draw)
    for decision in decisions:
        _apply(state, failure, decision, now_s)


def _apply(
    state: CoordinatorState, failure: Failure, decision: FailureDecision, now_s: float
) -> None:
    if decision.outcome is FailureOutcome.COUNT:
        state.count_failure()
        return
    if decision.restarts is not None:
        for name in decision.regions:
            region = state.regions[name]
            region.restarts = decision.restarts
            if not region.is_open:
                region.begins_s = decision.restarts.due_s
        return
    if state.settings.restart_strategy is None and not failure.is_permanent:
        state.reset_failures()  # the regions that are left have none
    if decision.outcome is FailureOutcome.END:
        state.end(decision.error, now_s)
    for name in decision.regions:
        _suspend(state, name, decision.error, now_s)


def _suspend(state: CoordinatorState, name: str, error: BaseException, now_s: float) -> None:
    """End its attempt, if one is current. Its acknowledged work is still decided."""
    region = state.regions[name]
    if region.is_suspended:
        return
    state.close_region(name, error, now_s)
    state.fail_waiting(name, error)
    region.suspend(error, now_s)
    state.unsettled.setdefault(name)
    state.out.append(RegionSuspended(region=name, cause=error, positions=region.record.splits))


# --- the end of a bounded job ---------------------------------------------------------------------


def is_the_end(state: CoordinatorState, checkpoint: PendingCheckpoint) -> bool:
    """Whether only suspended regions have records left to read after a final checkpoint. A region
    that was restarted meanwhile has only begun."""
    return state.in_service().keys() <= checkpoint.finished


def suspended_at_the_end(state: CoordinatorState) -> RegionsSuspendedError | None:
    """Why a job that has read all other splits is not done; None: it is, since all splits of the
    suspended regions are decided, too."""
    suspended = {
        name: found.suspended
        for name, found in state.regions.items()
        if found.suspended is not None and not found.is_written
    }
    if not suspended:
        return None
    causes = {name: f"{type(s.cause).__name__}: {s.cause}" for name, s in suspended.items()}
    error = RegionsSuspendedError(
        "the job has read everything but the splits of suspended regions",
        {
            "regions": ",".join(suspended),
            "not_written_from": _named(
                split for name in suspended for split in state.regions[name].record.splits
            ),
            "causes": "; ".join(f"{name}: {cause}" for name, cause in causes.items()),
        },
        "Remove the causes and start the job again: it reads the missing splits. The output of the "
        "other regions is committed.",
    )
    error.__cause__ = next(iter(suspended.values())).cause
    return error


def _named(splits: Iterable[SplitRange]) -> str:
    return " ".join(f"{split.name}:{split.end_offset}" for split in splits)
