"""Durations as options spell them: a number, with a unit or without one."""

import re

__all__ = ["seconds_of"]

_UNITS_S = {
    "us": 1e-6,
    "ms": 1e-3,
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    "d": 86400.0,
}
_NUMBER = r"\d{1,18}(?:\.\d{1,18})?"  # that many digits fit into 64 bits
_DURATION = re.compile(rf"({_NUMBER})\s*({'|'.join(_UNITS_S)})?")


def seconds_of(text: str, *, bare: str) -> float | None:
    """``text``, in any case, in seconds; None where it is no duration. Pure.

    Args:
        bare: unit of a number without one: ``ms`` where Spark reads it so.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    return None if found is None else float(found[1]) * _UNITS_S[found[2] or bare]
