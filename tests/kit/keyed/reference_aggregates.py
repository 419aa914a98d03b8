"""What an aggregate of some rows is, from all of them at once and in plain Python."""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from sluice.runtime.keyed.declarations import (
    Aggregate,
    ApproxDistinct,
    Avg,
    Collect,
    Count,
    First,
    Last,
    Max,
    Min,
    Sum,
)

__all__ = ["aggregated", "is_near"]

Row = Mapping[str, Any]


def aggregated(aggregate: Aggregate, rows: Sequence[Row]) -> Any:
    """The result over ``rows``, in the order in which they came.

    Of `ApproxDistinct` the exact number; see `is_near`.
    """
    if isinstance(aggregate, Count) and aggregate.column is None:
        return len(rows)
    assert aggregate.column is not None
    values = [row[aggregate.column] for row in rows]
    there = [value for value in values if value is not None]
    match aggregate:
        case Count():
            return len(there)
        case Sum():
            return sum(there[1:], there[0]) if there else None
        case Min():
            return min(there, key=_order) if there else None
        case Max():
            return max(there, key=_order) if there else None
        case Avg():
            return _mean(there) if there else None
        case First(ignore_nulls=ignores):
            return next(iter(there if ignores else values), None)
        case Last(ignore_nulls=ignores):
            return next(iter(reversed(there if ignores else values)), None)
        case Collect(most=most):
            return there[:most]
        case ApproxDistinct():
            return len(set(there))


def _order(value: Any) -> tuple[bool, Any]:
    """NaN is the greatest number."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return is_nan, 0 if is_nan else value


def _mean(values: Sequence[Any]) -> Any:
    total = sum(values[1:], values[0])
    return total / len(values) if isinstance(total, Decimal) else float(total) / len(values)


def is_near(aggregate: Aggregate, found: Any, expected: Any) -> bool:
    """Whether a result is right: exact, or as near as floats and an approximate count can be."""
    if expected is None or found is None:
        return found is expected
    if isinstance(aggregate, ApproxDistinct):
        return bool(abs(found - expected) <= max(1.0, 6 * aggregate.error * expected))
    if isinstance(expected, float) and isinstance(found, float):
        both_nan = math.isnan(found) and math.isnan(expected)
        return both_nan or math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
    return bool(found == expected)
