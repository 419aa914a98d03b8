"""JSON of other processes, of files that anybody may edit, and of users. Pure."""

import json
from decimal import Decimal, InvalidOperation

__all__ = ["parsed_json"]


def parsed_json(text: str | bytes, *, exact: bool = False) -> object:
    """What ``text`` says.

    Python's own reader takes more than JSON, and fails in more ways than one.

    Args:
        exact: fractions are `Decimal`, with every digit; else floats.
    Raises:
        ValueError: it is not JSON, has a number that is not finite, or is nested too deeply.
    """
    fraction = _exact if exact else _finite
    try:
        return json.loads(text, parse_constant=_refused, parse_float=fraction)
    except RecursionError as err:
        raise ValueError("nested too deeply") from err


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
        raise ValueError(f"{text} has no exponent that can be computed with") from err
    # Only doubles are spelt so, and by Java before 19 with more digits than they have
    # (https://bugs.openjdk.org/browse/JDK-4511638): 1.9999999999999998E23 is 2e23.
    is_double = "e" in text.lower() and exact == exact.to_integral_value()
    return number if is_double else exact
