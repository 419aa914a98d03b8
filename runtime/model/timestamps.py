"""Moments on a clock that may not be known. Pure."""

from collections.abc import Iterable

__all__ = ["earliest", "is_past"]


def earliest(moments: Iterable[float | None]) -> float | None:
    """Of those that are known; None: none is."""
    return min((each for each in moments if each is not None), default=None)


def is_past(moment_s: float | None, now_s: float) -> bool:
    """Whether there is such a moment, and it has come."""
    return moment_s is not None and now_s >= moment_s
