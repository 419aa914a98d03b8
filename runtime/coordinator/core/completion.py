"""The end of an alignment: complete, complete without some regions, or given up. Pure."""

from sluice.runtime.contracts import FailureReason
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.failure_attribution import (
    delaying_regions,
    of_ended_regions,
    of_expiry,
    of_withdrawal,
)
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint
from sluice.runtime.coordinator.core.suspension import apply_failure
from sluice.runtime.coordinator.policy.failure_errors import (
    checkpoint_expired,
    checkpoint_too_old,
    regions_ended,
)
from sluice.runtime.coordinator.policy.handlers import HandlerDecision
from sluice.runtime.coordinator.policy.state_tables import (
    FOR_REGION,
    Event,
    RegionEvent,
    RegionPhase,
    State,
)
from sluice.runtime.model.checkpoint_record import CheckpointKind

__all__ = ["complete_if_due", "withdrawn"]


def complete_if_due(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """Complete a checkpoint if all regions acknowledged, or if its handler skips the missing ones;
    give it up if it is too late."""
    checkpoint.evaluated_s = now_s
    if checkpoint.state is State.ALIGNING and _may_change(state, checkpoint, now_s):
        alignment = state.alignment(checkpoint, now_s)
        decision = state.settings.handler.rule(alignment, timeout_s=state.settings.timeout_s)
        if decision is HandlerDecision.DECIDE:
            suspended = [n for n in state.regions if n not in checkpoint.acks]
            reasons = dict.fromkeys(suspended, FailureReason.SUSPENDED) | alignment.left_out()
            _complete(state, checkpoint, reasons, now_s)
        elif decision is HandlerDecision.GIVE_UP:
            expired = alignment.waiting and _is_late(state, checkpoint, now_s)
            if alignment.failed and not expired:
                _give_up(state, checkpoint, sorted(alignment.failed), now_s)
            else:
                _expire(state, checkpoint, now_s)
        elif _is_late(state, checkpoint, now_s):
            _expire(state, checkpoint, now_s)
        elif not alignment.starting:  # each of those may change the decision when it has begun
            until_s = _next_deadline_s(state, checkpoint)
            state.cached_views.wait_for(checkpoint.checkpoint_id, alignment.waiting, until_s)
    if checkpoint.state is State.PRE_COMMITTED and _is_late(state, checkpoint, now_s):
        _expire(state, checkpoint, now_s)


def _may_change(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> bool:
    """Whether the handler may decide differently than the last time."""
    is_waiting = state.cached_views.is_waiting(checkpoint.checkpoint_id, checkpoint.acks, now_s)
    return not is_waiting or _is_late(state, checkpoint, now_s)


def _next_deadline_s(state: CoordinatorState, checkpoint: PendingCheckpoint) -> float:
    """Until then only the last acknowledgement changes the handler's decision. After the first of
    its deadlines each one may, for the handler counts the missing ones."""
    after_s = state.settings.handler.deadlines_s(timeout_s=state.settings.timeout_s)
    return (checkpoint.barrier_s or 0.0) + min(after_s, default=0.0)


def _is_late(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> bool:
    started_s = now_s if checkpoint.barrier_s is None else checkpoint.barrier_s
    is_overdue = now_s - started_s >= state.settings.timeout_s
    return is_overdue or state.is_too_old(checkpoint.decide_by_s, now_s)


def _complete(
    state: CoordinatorState,
    checkpoint: PendingCheckpoint,
    skipped: dict[str, FailureReason],
    now_s: float,
) -> None:
    checkpoint.skipped = skipped
    # Only an acknowledged range that ends with the input ends the region.
    checkpoint.finished.intersection_update(checkpoint.acks)
    # The work of the attempt before one that is starting was settled before that may start.
    checkpoint.must_sweep = any(
        reason is FailureReason.ERROR and state.regions[name].phase is not RegionPhase.STARTING
        for name, reason in skipped.items()
    )
    for name in [name for name in skipped if name in checkpoint.barriers]:
        region = state.regions[name]
        if FOR_REGION.get((Event.REST_SKIPPED, region.phase)) is RegionEvent.BATCH_SKIPPED:
            region.advance(RegionEvent.BATCH_SKIPPED)
            region.pace.timed_out()
    state.move(checkpoint, Event.REST_SKIPPED if skipped else Event.ALL_ACKED, now_s)
    idle = next((p for p in state.pending.values() if p.state is State.ARMED), None)
    if idle is not None and state.has_timed_out():
        state.force(idle, now_s)  # it was begun before that, and would wait for records to read
    in_service = state.in_service().keys()
    is_last = checkpoint.finished >= in_service and in_service <= checkpoint.acks.keys()
    if is_last and checkpoint.kind is CheckpointKind.CHECKPOINT:
        checkpoint.kind, checkpoint.requested_by = CheckpointKind.FINAL, "end"


def _give_up(
    state: CoordinatorState, checkpoint: PendingCheckpoint, failed: list[str], now_s: float
) -> None:
    """Abort: a region has failed, and the handler does not decide without it."""
    causes = [cause for name in failed if (cause := state.regions[name].ended_by) is not None]
    error = regions_ended(checkpoint.checkpoint_id, failed, causes)
    failure = of_ended_regions(state, failed, error)
    state.abort(checkpoint, Event.REGION_FAILED, error, now_s)
    apply_failure(state, failure, now_s)


def _expire(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """Abort: the time of the checkpoint is up, or work in it is too old."""
    grew_old = state.is_too_old(checkpoint.decide_by_s, now_s)
    delaying = delaying_regions(state, checkpoint, now_s, grew_old=grew_old)
    missing = delaying or [
        name
        for name, region in state.regions.items()
        if name not in checkpoint.acks and region.is_open
    ]
    error = (
        checkpoint_too_old(checkpoint.checkpoint_id, missing)
        if grew_old
        else checkpoint_expired(
            checkpoint.checkpoint_id, missing, timeout_s=state.settings.timeout_s
        )
    )
    # The abort ends the attempts with a barrier or a batch in it. A region that timed out has its
    # barrier from an older checkpoint, and one that hangs between two batches has none. The next
    # checkpoint would wait for them, too.
    timed_out = {name for name in delaying if state.regions[name].phase is RegionPhase.TIMED_OUT}
    hanging = set(state.stopped_polling(state.settings.timeout_s / 2))
    for name in delaying:
        if name in checkpoint.barriers or name in timed_out:
            state.regions[name].pace.expired()
    failure = of_expiry(state, checkpoint, error, delaying, now_s)
    state.abort(checkpoint, Event.EXPIRED, error, now_s)
    for name in delaying:
        if name in timed_out or name in hanging:
            state.close_region(name, error, now_s)
            state.regions[name].fence_at(checkpoint.checkpoint_id)
    apply_failure(state, failure, now_s)


def withdrawn(state: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float) -> None:
    """Abort: work grew old before it was known whether it was decided, and the aborted record is
    durable in the checkpoint's slot."""
    error = checkpoint_too_old(checkpoint.checkpoint_id, ())
    state.abort(checkpoint, Event.ABORT_RECORD_DURABLE, error, now_s)
    state.discard(checkpoint)
    apply_failure(state, of_withdrawal(checkpoint, error), now_s)
