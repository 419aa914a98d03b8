"""One spelling for what means the same, whichever file format it was read from. Pure.

Formats tell numbers apart that are equal: a decimal of Parquet keeps its scale, and JSON has but
one kind of number. Only the value of a number is spelt here, and none of its digits is lost.
"""

import base64
import json
from collections.abc import Mapping
from decimal import Decimal

__all__ = ["canonical_json"]

_EXPONENTS = range(-400, 4300)
"""Of the first digit: down to less than any double, up to the longest integer that Python reads."""


def canonical_json(value: object) -> str:
    """A value as JSON without blanks, members of objects sorted by name.

    Null members are left out, as Spark's writer of JSON does: it makes no difference whether they
    were written. Numbers go by value: 2, 2.0 and ``Decimal("2.00")`` are ``2``. What JSON has no
    word for is text, as Spark writes it: bytes in base64, and numbers that are none (``"NaN"``).

    Raises:
        ValueError: a decimal whose exponent would make more zeros than anybody has use for.
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
    # A double stands for the shortest decimal that is read as it: that is what writers spell.
    exact = value if isinstance(value, Decimal) else Decimal(repr(float(value)))
    if not exact.is_finite():
        return json.dumps(str(exact))
    if not exact:
        return "0"
    if exact.adjusted() not in _EXPONENTS:  # ten bytes of JSON would be spelt in gigabytes
        raise ValueError(f"{exact} has an exponent that is not spelt out")
    if exact == exact.to_integral_value():
        return str(int(exact))
    shortest = repr(float(exact))
    return shortest if Decimal(shortest) == exact else f"{exact:f}".rstrip("0")
