"""JSON of other processes, of files that anybody may edit, and of users. Pure."""

import json

__all__ = ["parsed_json"]


def parsed_json(text: str | bytes) -> object:
    """What ``text`` says.

    Python's own reader takes more than JSON, and fails in more ways than one.

    Raises:
        ValueError: it is not JSON, has a number that is not finite, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_refused, parse_float=_finite)
    except RecursionError as err:
        raise ValueError("nested too deeply") from err


def _refused(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large")
    return number
