"""Times that may be unknown, and durations as Spark writes them. Pure."""

import re
from collections.abc import Iterable
from datetime import timedelta

from sluice.runtime.errors import ConfigError

__all__ = ["Duration", "duration_ms", "earliest", "is_past", "later"]

Duration = str | float | timedelta
"""Spark's text (``10 seconds``, ``5 m``, ``1 hour 30 minutes``), seconds, or a `timedelta`."""

_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000),
}
_PART = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]+)\s*")
_LONGEST_MS = 1 << 52


def duration_ms(given: Duration, *, setting: str, may_be_zero: bool = True) -> int:
    """``given`` in whole milliseconds.

    Args:
        setting: its name, for the message.
    Raises:
        ConfigError: it is no duration, negative, too large, or zero where that is not allowed.
    """
    found = _milliseconds(given)
    if found is None or not (0 if may_be_zero else 1) <= found <= _LONGEST_MS:
        raise ConfigError(
            "a duration cannot be used",
            {"setting": setting, "value": repr(given)},
            f"Give {'zero or more' if may_be_zero else 'more than zero'}: text such as "
            '"10 s" (units: ms, s, m for minutes, h, d, w), or a number of seconds.',
        )
    return found


def _milliseconds(given: Duration) -> int | None:
    if isinstance(given, timedelta):
        return given // timedelta(milliseconds=1)
    if isinstance(given, bool):
        return None
    if isinstance(given, int | float):
        return round(given * 1_000) if abs(given) <= _LONGEST_MS else None
    text = str(given).strip().lower().removeprefix("interval ").strip()
    parts = [(m[1], _UNITS_MS.get(m[2])) for m in _PART.finditer(text)]
    if not parts or _PART.sub("", text) or any(unit is None for _, unit in parts):
        return None
    return round(sum(float(number) * (unit or 0) for number, unit in parts))


def earliest(moments: Iterable[float | None]) -> float | None:
    """The least of the known ones; None: none is known."""
    return min((each for each in moments if each is not None), default=None)


def later(first: int | None, second: int | None) -> int | None:
    """The greater one of those that are known; None: none is known."""
    return max((each for each in (first, second) if each is not None), default=None)


def is_past(moment_s: float | None, now_s: float) -> bool:
    """Whether the time is known, and has come."""
    return moment_s is not None and now_s >= moment_s
