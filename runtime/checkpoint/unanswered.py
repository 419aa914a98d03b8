"""Remote steps that were not answered for certain: tried again, and for how long. Pure."""

from collections.abc import Iterable

from runtime.checkpoint.book import Book
from runtime.checkpoint.pending import PendingCheckpoint
from runtime.errors import UnreachableError
from runtime.moments import is_past

__all__ = ["retry", "settled_by_s"]


def settled_by_s(book: Book, checkpoint: PendingCheckpoint) -> float | None:
    """The limit of a decision, or of a step that is not answered; None: nothing is late yet."""
    # Not since its abort began: its place may have waited for another region's epoch.
    since_s = checkpoint.retry_since_s if checkpoint.decided_s is None else checkpoint.decided_s
    return None if since_s is None else since_s + book.settings.settle_timeout_s


def retry(
    book: Book, checkpoint: PendingCheckpoint, now_s: float, details: Iterable[str] = ()
) -> None:
    """Try again later; when a decision, an abort or a commit takes too long, the job stops with it
    open."""
    settings = book.settings
    # The end of a job does not wait for what has not answered several times in a row.
    checkpoint.halted = book.is_over and checkpoint.retry_pause_s >= settings.max_retry_s
    checkpoint.retry_later(now_s, first_s=settings.retry_s, longest_s=settings.max_retry_s)
    if is_past(settled_by_s(book, checkpoint), now_s):
        book.end(
            UnreachableError(
                "a checkpoint could not be settled in time",
                {
                    "checkpoint_id": checkpoint.checkpoint_id,
                    "state": checkpoint.state.value,
                    "details": "; ".join(sorted(details)),
                },
                "If it is decided nothing is lost: the next start commits it. Check store, broker.",
            ),
            now_s,
        )
