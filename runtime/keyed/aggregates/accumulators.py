"""Accumulators of aggregates, vectorised: rows are folded into numbered groups.

A group's accumulator is a few columns of one row: that row is its state. Rows of a group are folded
in their order, so the result does not depend on where batches are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.aggregates.approx_distinct import Sketches
from sluice.runtime.keyed.aggregates.kept_values import Firsts, Lasts, Lists, extremes_of
from sluice.runtime.keyed.aggregates.sums import Counts, means_of, sums_of
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

__all__ = ["Accumulators", "Groups", "columns_of"]

_Ids = npt.NDArray[np.int64]


class Groups:
    """Numbers from 0 for the pairs of a place and a key; a place is a split, or a window in one."""

    def __init__(self) -> None:
        self.count = 0
        self.of: dict[tuple[int, ...], dict[bytes, int]] = {}

    def ids(
        self,
        places: Sequence[tuple[int, ...]],
        place_of: npt.NDArray[np.integer],
        keys: pa.LargeBinaryArray,
    ) -> _Ids:
        """The number of each row's group.

        Args:
            place_of: of shape (rows,): index in ``places``.
        """
        encoded = keys.dictionary_encode()
        codes: npt.NDArray[np.int32] = encoded.indices.to_numpy()
        distinct = encoded.dictionary
        if len(places) == 1:
            return self._numbers(places[0], distinct.to_pylist())[codes]
        pairs = pa.array(place_of.astype(np.int64) * len(distinct) + codes).dictionary_encode()
        found = pairs.dictionary.to_numpy()
        numbers = np.empty(len(found), np.int64)
        for at, place in enumerate(places):
            mine = np.flatnonzero(found // len(distinct) == at)
            of_place = distinct.take(pa.array(found[mine] % len(distinct))).to_pylist()
            numbers[mine] = self._numbers(place, of_place)
        pair_of: npt.NDArray[np.int32] = pairs.indices.to_numpy()
        return numbers[pair_of]

    def _numbers(self, place: tuple[int, ...], keys: list[bytes]) -> _Ids:
        index = self.of.setdefault(place, {})
        numbers = np.fromiter(map(index.get, keys, repeat(-1)), np.int64, len(keys))
        new = np.flatnonzero(numbers < 0)
        ids = range(self.count, self.count + len(new))
        index.update(zip(map(keys.__getitem__, new.tolist()), ids, strict=True))
        numbers[new] = ids
        self.count += len(new)
        return numbers


def columns_of(aggregates: Mapping[str, Aggregate]) -> tuple[str, ...]:
    """The columns that they read, each once."""
    named = (aggregate.column for aggregate in aggregates.values())
    return tuple(dict.fromkeys(column for column in named if column is not None))


class Accumulators:
    """The accumulators of all aggregates, for groups 0 to n - 1. Executor, one thread.

    Args:
        aggregates: by the name of their result.
        rows: schema of the rows' `columns_of` them.
    Raises:
        ConfigError: an aggregate cannot be of a column's type.
    """

    def __init__(self, aggregates: Mapping[str, Aggregate], rows: pa.Schema) -> None:
        self._names = tuple(aggregates)
        self._columns = tuple(aggregate.column for aggregate in aggregates.values())
        self._of = [_opened(name, each, rows) for name, each in aggregates.items()]
        self.schema = pa.schema(
            [
                pa.field(f"{name}_{at}", kind)
                for name, one in zip(self._names, self._of, strict=True)
                for at, kind in enumerate(one.types)
            ]
        )

    def resize(self, groups: int) -> None:
        """Have so many groups; new ones are empty."""
        for one in self._of:
            one.resize(groups)

    def add(self, ids: _Ids, rows: pa.RecordBatch) -> None:
        """Fold rows into their groups, in order.

        Raises:
            ConfigError: a sum left its type.
        """
        for name, column, one in zip(self._names, self._columns, self._of, strict=True):
            values = None if column is None else rows.column(column)
            try:
                one.add(ids, values)
            except (OverflowError, pa.ArrowInvalid) as err:
                raise _overflow(name, column) from err

    def combine(self, ids: _Ids, state: pa.RecordBatch) -> None:
        """Fold accumulators of later rows into groups; each group once."""
        start = 0
        for name, column, one in zip(self._names, self._columns, self._of, strict=True):
            mine = state.columns[start : start + len(one.types)]
            start += len(mine)
            try:
                one.combine(ids, mine)
            except (OverflowError, pa.ArrowInvalid) as err:
                raise _overflow(name, column) from err

    def state(self) -> pa.RecordBatch:
        """The accumulators, one row for each group."""
        columns = [column for one in self._of for column in one.state()]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def results(self) -> dict[str, pa.Array]:
        """The results by name.

        Raises:
            ConfigError: one leaves its type.
        """
        found = {}
        for name, column, one in zip(self._names, self._columns, self._of, strict=True):
            try:
                found[name] = one.results()
            except pa.ArrowInvalid as err:
                raise _overflow(name, column) from err
        return found


class _Accumulator(Protocol):
    """The accumulators of one aggregate."""

    @property
    def types(self) -> Sequence[pa.DataType]: ...

    def resize(self, groups: int) -> None: ...

    def add(self, ids: _Ids, values: pa.Array | None) -> None: ...

    def combine(self, ids: _Ids, state: Sequence[pa.Array]) -> None: ...

    def state(self) -> list[pa.Array]: ...

    def results(self) -> pa.Array: ...


_OF: Mapping[type, Callable[[Any, pa.DataType], _Accumulator]] = {
    Count: lambda _, __: Counts(),
    Sum: lambda _, kind: sums_of(kind),
    Avg: lambda _, kind: means_of(kind),
    Min: lambda _, kind: extremes_of(kind, greatest=False),
    Max: lambda _, kind: extremes_of(kind, greatest=True),
    First: lambda of, kind: Firsts(kind, ignore_nulls=of.ignore_nulls),
    Last: lambda of, kind: Lasts(kind, ignore_nulls=of.ignore_nulls),
    Collect: lambda of, kind: Lists(kind, most=of.most),
    ApproxDistinct: lambda of, _: Sketches(error=of.error),
}


def _opened(name: str, aggregate: Aggregate, rows: pa.Schema) -> _Accumulator:
    column = aggregate.column
    try:
        return _OF[type(aggregate)](aggregate, None if column is None else rows.field(column).type)
    except ConfigError as err:
        what, where, remedy = err.args
        shown = f"{name}={type(aggregate).__name__}({column!r})"
        raise ConfigError(what, {"aggregate": shown, **where}, remedy) from None


def _overflow(name: str, column: str | None) -> ConfigError:
    return ConfigError(
        "a sum or a mean is too large for the type of its result",
        {"aggregate": name, "column": column},
        "Cast the column to decimal128 or float64 in a map_batches before key_by.",
    )
