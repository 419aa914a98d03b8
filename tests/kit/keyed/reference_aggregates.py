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
    if isinstance(aggregate, First | Last):
        return _end_of(there if aggregate.ignore_nulls else values, aggregate)
    match aggregate:
        case Count():
            return len(there)
        case ApproxDistinct():
            return len(set(there))
        case Collect(most=most):
            return there[:most]
    return _of_numbers(aggregate, there) if there else None


def _end_of(values: Sequence[Any], aggregate: First | Last) -> Any:
    return None if not values else values[0 if isinstance(aggregate, First) else -1]


def _of_numbers(aggregate: Aggregate, there: Sequence[Any]) -> Any:
    match aggregate:
        case Sum():
            return sum(there[1:], there[0])
        case Avg():
            return _mean(there)
        case Min():
            return min(there, key=_order)
    return max(there, key=_order)


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
