"""Pauses between tries, which double up to a limit. Pure."""

from dataclasses import dataclass

__all__ = ["Backoff"]


@dataclass(slots=True)
class Backoff:
    """The pauses of one retry loop.

    Attributes:
        pause_s: before the next try.
        longest_s: limit of a pause.
    """

    pause_s: float
    longest_s: float

    def next_s(self) -> float:
        """The pause before the next try; the one after it is twice as long, up to the limit."""
        pause_s = self.pause_s
        self.pause_s = min(2 * pause_s, self.longest_s)
        return pause_s
