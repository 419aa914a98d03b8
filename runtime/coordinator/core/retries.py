"""Remote steps without an answer: the retry policy, and steps that never return. Pure."""

from collections.abc import Iterable

from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint, RemoteStep
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.errors import WaitedTooLongError
from sluice.runtime.model.timestamps import is_past

__all__ = ["end_if_hung", "retry", "settled_by_s"]


def settled_by_s(state: CoordinatorState, checkpoint: PendingCheckpoint) -> float | None:
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
    if is_past(settled_by_s(state, checkpoint), now_s):
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
