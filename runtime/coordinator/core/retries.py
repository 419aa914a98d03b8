"""Remote steps that were not answered: tried again, and for how long; or not returned. Pure."""

from collections.abc import Iterable

from sluice.runtime.coordinator.core.checkpoint_states import State
from sluice.runtime.coordinator.core.coordinator_state import CoordinatorState
from sluice.runtime.coordinator.core.pending_checkpoint import PendingCheckpoint
from sluice.runtime.errors import WaitedTooLongError
from sluice.runtime.model.timestamps import is_past

__all__ = ["end_if_hung", "retry", "settled_by_s"]


def settled_by_s(book: CoordinatorState, checkpoint: PendingCheckpoint) -> float | None:
    """The limit of a decision, or of a step that is not answered; None: nothing is late yet."""
    # Not since its abort began: its place may have waited for another region's epoch.
    since_s = checkpoint.retry_since_s if checkpoint.decided_s is None else checkpoint.decided_s
    return None if since_s is None else since_s + book.settings.settle_timeout_s


def retry(
    book: CoordinatorState, checkpoint: PendingCheckpoint, now_s: float, details: Iterable[str] = ()
) -> None:
    """Try again later; when a decision, an abort or a commit takes too long, the job stops with it
    open."""
    settings = book.settings
    # The end of a job does not wait for what has not answered several times in a row.
    checkpoint.halted = book.is_over and checkpoint.retry_pause_s >= settings.max_retry_s
    checkpoint.retry_later(now_s, first_s=settings.retry_s, longest_s=settings.max_retry_s)
    if is_past(settled_by_s(book, checkpoint), now_s):
        book.end(
            WaitedTooLongError(
                "a checkpoint could not be settled in time",
                {
                    "checkpoint_id": checkpoint.checkpoint_id,
                    "state": checkpoint.state.value,
                    "waited_s": round(settings.settle_timeout_s),
                    "details": "; ".join(sorted(details)),
                },
                "If it is decided nothing is lost: the next start commits it. Check store and "
                "brokers; outage_timeout_s says for how long they are waited for.",
            ),
            now_s,
        )


def end_if_hung(book: CoordinatorState, now_s: float) -> None:
    """A step that never returns, as on a file system that hangs, is never tried again: the job ends
    with it open. It is no answer: whatever the step may have decided stays as it is.

    A repair may take as long as it likes, and so may what waits behind it.
    """
    asked = [p for p in book.pending.values() if p.in_flight]
    if not asked or any(checkpoint.state is State.REPAIRING for checkpoint in asked):
        book.awaited.clear()
        return
    watched_s, before = book.silence.watched_s, book.awaited
    steps = [(checkpoint.checkpoint_id, checkpoint.state) for checkpoint in asked]
    book.awaited = {step: before.get(step, watched_s) for step in steps}
    for (checkpoint_id, state), since_s in book.awaited.items():
        if watched_s - since_s >= book.settings.hung_after_s:
            book.end(_hung(checkpoint_id, state, watched_s - since_s), now_s)


def _hung(checkpoint_id: int, state: State, waited_s: float) -> WaitedTooLongError:
    return WaitedTooLongError(
        "a remote step of a checkpoint has not returned",
        {"checkpoint_id": checkpoint_id, "state": state.value, "waited_s": round(waited_s)},
        "If it is decided nothing is lost: the next start commits it. Does the file system of the "
        "checkpoint directory hang, or a broker?",
    )
