"""Failures: which regions one is attributed to, and what the failure policy does to them. Pure.

A failure is attributed to the regions that delay an epoch. A region that waits for those, for its
next attempt or for a commit has done nothing. A region that has nothing to read delays no other.
"""

from collections.abc import Iterable, Sequence

from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.events import RegionFailed, RegionSuspended
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint
from sluice.runtime.coordinator.policy.failure_policy import (
    Failure,
    FailureDecision,
    FailureOutcome,
    FailureView,
    RegionView,
    decide_failure,
)
from sluice.runtime.coordinator.policy.state_tables import RegionPhase, State
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.errors import (
    RegionsSuspendedError,
    RestartCommandedError,
    StorageUnreachableError,
)
from sluice.runtime.model.acknowledgement import Acknowledgement
from sluice.runtime.model.splits import SplitRange

__all__ = [
    "apply_failure",
    "delaying_regions",
    "has_waited",
    "is_the_end",
    "of_batch",
    "of_checkpoint",
    "of_ended_regions",
    "of_expiry",
    "suspended_at_the_end",
]

_NOT_ATTRIBUTED = (StorageUnreachableError, RestartCommandedError)


def of_batch(state: CoordinatorState, event: RegionFailed) -> Failure | None:
    """For a batch that failed; None: a checkpoint counts that failure, or another failure did."""
    failure = Failure(error=event.error, regions=(event.region,), is_permanent=event.permanent)
    if event.permanent or state.settings.restart_strategy is not None:
        return failure
    is_counted = _is_counted_by_a_checkpoint(state, event.region)
    if is_counted or state.ran_at_last_failure(event.region, event.attempt_id):
        return None
    return failure


def _is_counted_by_a_checkpoint(state: CoordinatorState, name: str) -> bool:
    """Whether a checkpoint contains the region, skips it, or is given up and counted for it."""
    return state.settings.handler.is_regional and (
        state.regions[name].phase is RegionPhase.TIMED_OUT
        or any(
            p.touches(name) or (p.state is State.ALIGNING and name not in p.acks)
            for p in state.pending.values()
        )
    )


def of_ended_regions(
    state: CoordinatorState, failed: Sequence[str], error: BaseException
) -> Failure | None:
    """For a checkpoint that is given up since regions of it have failed; None: it costs nothing."""
    if state.settings.restart_strategy is not None:
        return None  # each of them was counted when it failed
    causes = [cause for name in failed if (cause := state.regions[name].ended_by) is not None]
    counted = [cause for cause in causes if not isinstance(cause, RestartCommandedError)]
    if causes and not counted:
        return None
    # An outage is not counted; beside another failure it says nothing about that one.
    counted.sort(key=lambda cause: isinstance(cause, StorageUnreachableError))
    attributed = [
        name for name in failed if not isinstance(state.regions[name].ended_by, _NOT_ATTRIBUTED)
    ]
    return Failure(error=counted[0] if counted else error, regions=tuple(attributed or failed))


def of_expiry(
    state: CoordinatorState,
    checkpoint: PendingCheckpoint,
    error: BaseException,
    delaying: Sequence[str],
    now_s: float,
) -> Failure | None:
    """For a checkpoint that expired or grew old; None: it costs nothing.

    Args:
        delaying: see `delaying_regions`.
    """
    waited = any(has_waited(state, checkpoint, ack) for ack in checkpoint.acks.values())
    if not delaying:
        waited = waited or any(
            _waits_for_a_commit(state, checkpoint, name)
            for name, region in state.regions.items()
            if name not in checkpoint.acks and region.is_open
        )
    if waited or state.excuse_replays(delaying):
        return None
    slow = delaying or _too_old(state, checkpoint, now_s)
    return of_checkpoint(checkpoint, error, slow)


def of_checkpoint(
    checkpoint: PendingCheckpoint, error: BaseException, slow: Sequence[str]
) -> Failure:
    """For a checkpoint that expired or grew old; ``slow``: the regions that delayed it."""
    # All acknowledged, and it was still too late: all regions with a batch share the failure. A
    # region with nothing to read was not too late.
    attributed = slow or [batch.region for batch in checkpoint.batches()]
    return Failure(error=error, regions=tuple(attributed), is_shared=not slow)


def has_waited(
    state: CoordinatorState, checkpoint: PendingCheckpoint | None, ack: Acknowledgement | None
) -> bool:
    """Whether a region's work grew old before its barrier came, since another delayed the barrier.

    It costs nothing. The region that was away has been counted for it, or
    is skipped. A region that waits as long for its own next attempt would delay the next epoch.
    """
    if checkpoint is None or checkpoint.barrier_s is None or ack is None:
        return False
    name = ack.batch.region
    return (
        state.regions[name].has_decided
        and state.is_too_old(ack.decide_by_s, checkpoint.barrier_s)
        and any(
            _is_back(found) or _was_awaited(found)
            for other, found in state.regions.items()
            if other != name
        )
    )


def _is_back(region: RegionState) -> bool:
    """Whether the region was away and has only come back: its attempt is not its first one, and it
    has completed no checkpoint, with a batch or without.

    A region that never had anything to read was never away.
    """
    return region.is_open and region.history.count > 0 and region.completed_in <= region.attempt_id


def _was_awaited(region: RegionState) -> bool:
    """Whether the last decision was taken without the region, after its time limit. No checkpoint
    waits for a region whose attempt has ended."""
    return region.is_open and region.skipped > 0


def delaying_regions(
    state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float, *, grew_old: bool
) -> list[str]:
    """Open regions for which a checkpoint has waited in vain.

    Args:
        grew_old: it ends since work in it would be lost, maybe long before its timeout. Then a
            region without a barrier delays it only if it had the time to poll for one.
    """
    waited_s = 0.0 if checkpoint.barrier_s is None else now_s - checkpoint.barrier_s
    could_poll = not grew_old or waited_s >= state.settings.timeout_s / 2
    return [
        name
        for name, region in state.regions.items()
        if region.is_open
        and name not in checkpoint.acks
        and name not in checkpoint.skipped
        and (could_poll or region.phase is RegionPhase.TIMED_OUT or name in checkpoint.barriers)
        and not _waits_for_a_commit(state, checkpoint, name)
    ]


def _waits_for_a_commit(state: CoordinatorState, checkpoint: PendingCheckpoint, name: str) -> bool:
    """Whether the region cannot cut yet: its batch is in an older checkpoint, whose end it awaits.
    A streaming region continues meanwhile."""
    if state.regions[name].plan.follows or name in checkpoint.barriers:
        return False
    return any(
        found.checkpoint_id < checkpoint.checkpoint_id and found.acks.get(name) is not None
        for found in state.pending.values()
    )


def _too_old(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> list[str]:
    """Regions whose own work grew old, if that of others did not: only these took them along. One
    that had nothing to cut has no work."""
    acks = checkpoint.acknowledged()
    old = [ack.batch.region for ack in acks if state.is_too_old(ack.decide_by_s, now_s)]
    return old if len(old) < len(acks) else []


# --- the cost of a failure ------------------------------------------------------------------------


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
