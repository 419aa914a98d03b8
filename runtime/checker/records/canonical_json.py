"""One form for equal values, whichever file format they were read from. Pure.

Formats distinguish numbers that are equal: a decimal of Parquet keeps its scale, and JSON has only
one kind of number. Here only the value of a number counts, and no digit of it is lost.
"""

import base64
import json
from collections.abc import Mapping
from decimal import Decimal

__all__ = ["canonical_json"]

_EXPONENTS = range(-400, 4300)
"""Exponents of the first digit: from below any double, up to the longest integer that Python
reads."""


def canonical_json(value: object) -> str:
    """A value as JSON without white space, members of objects sorted by name.

    Null members are left out, as in Spark's writer of JSON: whether they were written makes no
    difference. Numbers go by value: 2, 2.0 and ``Decimal("2.00")`` are ``2``. Values without a JSON
    type are text, as Spark writes them: bytes in base64, and ``"NaN"`` or infinities.

    Raises:
        ValueError: a decimal whose exponent would write too many zeros.
    """
    if value is None:
        return "null"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float | Decimal):
        return _number(value)
    if isinstance(value, Mapping):
        members = [
            f"{json.dumps(str(name))}:{canonical_json(value[name])}"
            for name in sorted(value)
            if value[name] is not None
        ]
        return "{" + ",".join(members) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(canonical_json, value)) + "]"
    text = base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
    return json.dumps(text)


def _number(value: float | Decimal) -> str:
    # A double has the shortest decimal that is read as it: writers use this form.
    exact = value if isinstance(value, Decimal) else Decimal(repr(float(value)))
    if not exact.is_finite():
        return json.dumps(str(exact))
    if not exact:
        return "0"
    if exact.adjusted() not in _EXPONENTS:  # ten bytes of JSON would become gigabytes
        raise ValueError(f"the exponent of {exact} is too large to write out")
    if exact == exact.to_integral_value():
        return str(int(exact))
    shortest = repr(float(exact))
    return shortest if Decimal(shortest) == exact else f"{exact:f}".rstrip("0")
