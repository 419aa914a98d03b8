"""What follows a commit and nobody waits for: positions for lag tools, and retention. Pure."""

from runtime.checkpoint.book import Book
from runtime.checkpoint.messages import Retire, TellPositions
from runtime.checkpoint.pending import PendingCheckpoint

__all__ = ["aftercare_due", "committed_on_record", "next_aftercare_s", "take_care"]

_PAUSE_S = 1.0
"""Short epochs share it: a group's offsets take the brokers longer than a commit does."""


def committed_on_record(book: Book, checkpoint: PendingCheckpoint) -> None:
    """The newest positions are those of this checkpoint."""
    positions = tuple(split for region in checkpoint.regions for split in region.splits)
    book.untold = TellPositions(checkpoint_id=checkpoint.checkpoint_id, positions=positions)


def aftercare_due(book: Book, now_s: float) -> None:
    """Tell the newest positions, if there are any, and a while after the last ones."""
    due_s = next_aftercare_s(book)
    if due_s is None or now_s >= due_s or book.is_over:
        take_care(book, now_s)


def take_care(book: Book, now_s: float) -> None:
    """Tell the newest positions now, if there are any."""
    if book.untold is not None:
        book.out += [book.untold, Retire(retained=book.settings.retained)]
        book.untold, book.told_s = None, now_s


def next_aftercare_s(book: Book) -> float | None:
    """When time alone makes it due."""
    return None if book.untold is None or book.told_s is None else book.told_s + _PAUSE_S
