"""Strict JSON reader for texts of other processes, of files that people edit, and of users.
Pure."""

import json
from decimal import Decimal, InvalidOperation

__all__ = ["RepeatedNameError", "parsed_json", "well_formed"]


class RepeatedNameError(ValueError):
    """An object has two members of this name."""


def parsed_json(text: str | bytes, *, exact: bool = False, once: bool = False) -> object:
    """The value of ``text``.

    Python's own reader accepts more than JSON, and fails in several ways.

    Args:
        exact: fractions are `Decimal`, with every digit; else floats.
        once: each name may occur only once in its object; else the last one counts.
    Raises:
        RepeatedNameError: a name occurs twice.
        ValueError: the text is not JSON, has a number that is not finite, or is nested too deeply.
    """
    fraction = _exact if exact else _finite
    try:
        return json.loads(
            text,
            parse_constant=_refused,
            parse_float=fraction,
            object_pairs_hook=_each_once if once else None,
        )
    except RecursionError as err:
        raise ValueError("nested too deeply") from err


def _each_once(members: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in members:
        if name in found:
            raise RepeatedNameError(name)
        found[name] = value
    return found


def _refused(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large")
    return number


def _exact(text: str) -> float | Decimal:
    number = _finite(text)
    try:
        exact = Decimal(text)
    except InvalidOperation as err:
        raise ValueError(f"the exponent of {text} is out of range") from err
    # Only doubles have this form, and Java before 19 writes more digits than necessary
    # (https://bugs.openjdk.org/browse/JDK-4511638): 1.9999999999999998E23 is 2e23.
    is_double = "e" in text.lower() and exact == exact.to_integral_value()
    return number if is_double else exact


def well_formed(text: str) -> str:
    """``text`` with a question mark for each half of a surrogate pair, which has no UTF-8.

    JSON may contain such a half, and an error that quotes a record then has it. The encoding of an
    error report would raise for it.
    """
    return text.encode(errors="replace").decode()
