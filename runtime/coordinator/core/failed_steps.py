"""Remote steps without a good answer: retried, hung, or their work is lost. Pure.

Lost work is repaired, or named in an error (`two-phase-repair`).
"""

from collections.abc import Iterable
from dataclasses import replace

from sluice.runtime.checkpoint.lost_work import (
    LostCommittables,
    lost_by_region,
    unknown_error,
    unsettled_works,
    why_lost,
)
from sluice.runtime.checkpoint.succession import taken_over
from sluice.runtime.contracts import CommitOutcome, PublishOutcome, UnsettledWork
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.events import CommitReported, NoteUnsettled, Repaired
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint, RemoteStep
from sluice.runtime.coordinator.policy.checkpoint_plan import OnLost
from sluice.runtime.coordinator.policy.state_tables import ABORTABLE, Event, State
from sluice.runtime.errors import CheckpointFailedError, WaitedTooLongError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.timestamps import is_past

__all__ = ["end_if_hung", "end_if_unknown", "lose", "repair_failed", "repaired", "retry"]


def _settled_by_s(state: CoordinatorState, checkpoint: PendingCheckpoint) -> float | None:
    """When a decision, or a step without an answer, must be settled; None: no limit yet."""
    # Not since its abort began: its slot may have waited for another region's epoch.
    since_s = checkpoint.retry_since_s if checkpoint.decided_s is None else checkpoint.decided_s
    return None if since_s is None else since_s + state.settings.settle_timeout_s


def retry(
    state: CoordinatorState,
    checkpoint: PendingCheckpoint,
    now_s: float,
    details: Iterable[str] = (),
) -> None:
    """Retry later; if a decision, an abort or a commit takes too long, the job stops with it
    open."""
    settings = state.settings
    # The end of a job does not wait for a remote that has not answered several times in a row.
    is_last = state.is_over and checkpoint.retry_pause_s >= settings.max_retry_s
    checkpoint.retry_later(now_s, first_s=settings.retry_s, longest_s=settings.max_retry_s)
    if is_last:
        checkpoint.remote = RemoteStep.HALTED
    if is_past(_settled_by_s(state, checkpoint), now_s):
        state.end(
            WaitedTooLongError(
                "a checkpoint could not be settled in time",
                {
                    "checkpoint_id": checkpoint.checkpoint_id,
                    "state": checkpoint.state.value,
                    "waited_s": round(settings.settle_timeout_s),
                    "details": "; ".join(sorted(details)),
                },
                "Check the store and the brokers, or raise outage_timeout_s. If the checkpoint is "
                "decided, nothing is lost: the next start commits it.",
            ),
            now_s,
        )


def end_if_hung(state: CoordinatorState, now_s: float) -> None:
    """End the job if a step never returns, as on a file system that hangs. The step is not retried,
    and its result stays unknown.

    A repair may take any time, and so may steps that wait for it.
    """
    waiting = [p for p in state.pending.values() if p.remote is RemoteStep.IN_FLIGHT]
    if not waiting or any(checkpoint.state is State.REPAIRING for checkpoint in waiting):
        state.steps_since_s.clear()
        return
    watched_s, before = state.liveness.watched_s, state.steps_since_s
    steps = [(checkpoint.checkpoint_id, checkpoint.state) for checkpoint in waiting]
    state.steps_since_s = {step: before.get(step, watched_s) for step in steps}
    for (checkpoint_id, stage), since_s in state.steps_since_s.items():
        if watched_s - since_s >= state.settings.hung_after_s:
            state.end(_hung(checkpoint_id, stage, watched_s - since_s), now_s)


def _hung(checkpoint_id: int, stage: State, waited_s: float) -> WaitedTooLongError:
    return WaitedTooLongError(
        "a remote step of a checkpoint has not returned",
        {"checkpoint_id": checkpoint_id, "state": stage.value, "waited_s": round(waited_s)},
        "Check whether a broker or the file system of the checkpoint directory hangs. If the "
        "checkpoint is decided, nothing is lost: the next start commits it.",
    )


# --- lost work -----------------------------------------------------------------------------------


def lose(
    state: CoordinatorState,
    checkpoint: PendingCheckpoint,
    lost: list[StateEntry],
    event: CommitReported,
    now_s: float,
) -> None:
    """A decided transaction is certainly lost: repair it where that is exact, one region after
    another. If that is not all, the job stops once the rest is settled (`two-phase-repair`)."""
    by_region = lost_by_region(checkpoint.regions, lost)
    again = [found for found in by_region if _can_repair(state, checkpoint, found)]
    checkpoint.is_doomed = len(again) < len(by_region)
    if again:
        checkpoint.lost = again[0].committables
        state.move(checkpoint, Event.COMMITTABLE_LOST, now_s)
        _abort_later(state, checkpoint, again, now_s)
        return
    if _has_open_rest(state, checkpoint, event, now_s):
        retry(state, checkpoint, now_s, details={r.detail for r in event.reports if r.detail})
        return
    error = why_lost(checkpoint.checkpoint_id, by_region, event.reports, checkpoint.unrepaired)
    answers = zip(event.committables, event.reports, strict=True)
    works = unsettled_works(checkpoint.regions, answers)
    _end_unsettled(state, checkpoint, works, error, now_s)


def _end_unsettled(
    state: CoordinatorState,
    checkpoint: PendingCheckpoint,
    works: tuple[UnsettledWork, ...],
    error: BaseException,
    now_s: float,
) -> None:
    """Record the work that the error names: an operator may accept that loss, and no other."""
    checkpoint.remote = RemoteStep.HALTED
    state.out.append(NoteUnsettled(checkpoint_id=checkpoint.checkpoint_id, works=works))
    state.end(error, now_s)


def _can_repair(
    state: CoordinatorState, checkpoint: PendingCheckpoint, found: LostCommittables
) -> bool:
    name = found.region.region
    is_exact = state.regions[name].plan.can_repair and name not in checkpoint.unrepaired
    return state.settings.on_lost is OnLost.REPAIR and is_exact


def _has_open_rest(
    state: CoordinatorState, checkpoint: PendingCheckpoint, event: CommitReported, now_s: float
) -> bool:
    """Whether more of it may be committed in time. Once the job has ended, only the next start
    commits, and the work may be lost by then."""
    if is_past(_settled_by_s(state, checkpoint), now_s):
        return False
    return any(report.outcome is CommitOutcome.PENDING for report in event.reports)


def end_if_unknown(
    state: CoordinatorState, checkpoint: PendingCheckpoint, event: CommitReported, now_s: float
) -> None:
    """Stop the job if it is unknown for too long whether some of the checkpoint is visible."""
    if checkpoint.unknown_since_s is None:
        checkpoint.unknown_since_s = now_s
    if now_s - checkpoint.unknown_since_s < state.settings.unknown_timeout_s:
        return
    if _has_open_rest(state, checkpoint, event, now_s):
        return
    answers = zip(event.committables, event.reports, strict=True)
    works = unsettled_works(checkpoint.regions, answers)
    error = unknown_error(checkpoint.checkpoint_id, (r.detail for r in event.reports), works)
    _end_unsettled(state, checkpoint, works, error, now_s)


def _abort_later(
    state: CoordinatorState,
    checkpoint: PendingCheckpoint,
    lost: Iterable[LostCommittables],
    now_s: float,
) -> None:
    """Abort later pre-commits of the region first, since its records would come out of order."""
    names = {found.region.region for found in lost}
    for name in names:
        if state.regions[name].plan.follows:
            # Its later records lie before the ones that a repair writes, decided or not.
            state.close_region(name, _being_repaired(checkpoint, None), now_s)
    for later in list(state.pending.values()):
        behind = later.checkpoint_id > checkpoint.checkpoint_id and later.state in ABORTABLE
        if behind and any(later.touches(name) for name in names):
            error = _being_repaired(checkpoint, later)
            state.abort(later, Event.OVERTAKEN, error, now_s)
            return


def _being_repaired(
    checkpoint: PendingCheckpoint, later: PendingCheckpoint | None
) -> CheckpointFailedError:
    return CheckpointFailedError(
        "an earlier checkpoint of the region is being repaired",
        {
            "checkpoint_id": "none" if later is None else later.checkpoint_id,
            "repaired": checkpoint.checkpoint_id,
        },
        "Wait for the repair; the range is read again after it.",
    )


def repaired(state: CoordinatorState, event: Repaired, now_s: float) -> None:
    """The replacement of the lost work is durable; commit it like any other."""
    checkpoint = state.pending[event.checkpoint_id]
    if event.outcome is PublishOutcome.UNKNOWN:
        retry(state, checkpoint, now_s)
        return
    checkpoint.remote = RemoteStep.IDLE
    if event.outcome is PublishOutcome.TAKEN:  # only a newer run repairs our work
        state.move(checkpoint, Event.SLOT_TAKEN, now_s)
        state.fence(taken_over(event.checkpoint_id))
        return

    def follow(entries: Iterable[StateEntry]) -> tuple[StateEntry, ...]:
        return tuple(event.replaced.get(entry.payload, entry) for entry in entries)

    checkpoint.remaining = follow(checkpoint.remaining)
    checkpoint.lost = ()
    checkpoint.regions = tuple(
        replace(region, committables=follow(region.committables)) for region in checkpoint.regions
    )
    state.move(checkpoint, Event.REPAIR_DURABLE, now_s)


def repair_failed(
    state: CoordinatorState, checkpoint: PendingCheckpoint, error: BaseException, now_s: float
) -> None:
    """Do not repeat a failed repair in this run. The rest of the decision is committed, and then
    the job ends with the error."""
    checkpoint.remote = RemoteStep.IDLE
    unrepaired = lost_by_region(checkpoint.regions, checkpoint.lost)
    checkpoint.unrepaired |= {found.region.region: error for found in unrepaired}
    checkpoint.lost = ()
    checkpoint.is_doomed = True
    state.move(checkpoint, Event.REPAIR_FAILED, now_s)
