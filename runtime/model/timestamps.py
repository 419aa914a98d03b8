"""Times that may be unknown. Pure."""

from collections.abc import Iterable

__all__ = ["earliest", "is_past"]


def earliest(moments: Iterable[float | None]) -> float | None:
    """The least of the known ones; None: none is known."""
    return min((each for each in moments if each is not None), default=None)


def is_past(moment_s: float | None, now_s: float) -> bool:
    """Whether the time is known, and has come."""
    return moment_s is not None and now_s >= moment_s
