"""Accumulators that keep values of each group: the first, last, least or greatest, or a list."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.runtime.errors import ConfigError
from sluice.runtime.keyed.aggregates.sums import grown

__all__ = ["Firsts", "Lasts", "Lists", "extremes_of"]

_Ids = npt.NDArray[np.int64]
_NONE = np.int64(-1)
_LARGEST = (1 << 63) - 1


def extremes_of(kind: pa.DataType, *, greatest: bool) -> _Extremes | _Sorted:
    """The least or greatest values of a column of this type.

    Raises:
        ConfigError: its values have no order.
    """
    types = pa.types
    is_time = types.is_temporal(kind) and not types.is_interval(kind)
    is_integer = types.is_integer(kind) and not types.is_uint64(kind)
    if is_integer or is_time or types.is_boolean(kind) or types.is_floating(kind):
        return _Extremes(kind, greatest=greatest)
    if kind.num_fields or types.is_null(kind) or types.is_interval(kind):
        raise ConfigError(
            "values of this type have no order",
            {"type": kind},
            "Use a column of numbers, times, text or bytes.",
        )
    return _Sorted(kind, greatest=greatest)


class _Picks:
    """The value that each group keeps. ``has``: one was seen; it may be null."""

    def __init__(self, kind: pa.DataType, *, ignore_nulls: bool) -> None:
        self.types = (kind,)
        self._ignore_nulls = ignore_nulls
        self._values = pa.array([], kind)
        self._has = np.zeros(0, bool)

    def resize(self, groups: int) -> None:
        """Have so many groups."""
        more = groups - len(self._values)
        self._values = pa.concat_arrays([self._values, pa.nulls(more, self.types[0])])
        self._has = np.concatenate([self._has, np.zeros(more, bool)])

    def add(self, ids: _Ids, values: pa.Array | None) -> None:
        """Fold rows into their groups, in order."""
        assert values is not None
        places = np.arange(len(ids))
        if self._ignore_nulls and values.null_count:
            places = places[values.is_valid().to_numpy(zero_copy_only=False)]
        if not len(places):
            return
        groups = len(self._values)
        kept = np.where(self._has, np.arange(groups), _NONE)
        both = pa.concat_arrays([self._values, values.cast(self.types[0])])
        chosen = self._chosen(kept, ids[places], places + groups, both)
        self._values = both.take(pa.array(chosen, mask=chosen == _NONE))
        self._has[ids[places]] = True

    def combine(self, ids: _Ids, state: Sequence[pa.Array]) -> None:
        """Fold accumulators of later rows into groups."""
        self.add(ids, state[0])

    def state(self) -> list[pa.Array]:
        """One row for each group."""
        return [self._values]

    def results(self) -> pa.Array:
        """The values."""
        return self._values

    def _chosen(self, kept: _Ids, ids: _Ids, places: _Ids, both: pa.Array) -> _Ids:
        """The place in ``both`` of each group's value; `_NONE`: it has none.

        Args:
            kept: the place of the value that each group has now.
            ids, places: groups and places of the rows.
        """
        raise NotImplementedError


class Firsts(_Picks):
    """The first value of each group."""

    def _chosen(self, kept: _Ids, ids: _Ids, places: _Ids, both: pa.Array) -> _Ids:
        chosen = np.where(kept == _NONE, len(both), kept)
        np.minimum.at(chosen, ids, places)
        return np.where(chosen == len(both), _NONE, chosen)


class Lasts(_Picks):
    """The last value of each group."""

    def _chosen(self, kept: _Ids, ids: _Ids, places: _Ids, both: pa.Array) -> _Ids:
        chosen = kept.copy()
        np.maximum.at(chosen, ids, places)
        return chosen


class _Sorted(_Picks):
    """The least or greatest value of each group, of a type that Arrow sorts."""

    def __init__(self, kind: pa.DataType, *, greatest: bool) -> None:
        super().__init__(kind, ignore_nulls=True)
        self._order = "descending" if greatest else "ascending"

    def _chosen(self, kept: _Ids, ids: _Ids, places: _Ids, both: pa.Array) -> _Ids:
        indices = pc.sort_indices(both, sort_keys=[("", self._order)])
        order = indices.to_numpy().astype(np.int64)
        rank = np.empty(len(both), np.int64)
        rank[order] = np.arange(len(both))
        best = np.where(kept == _NONE, len(both), rank[kept])
        np.minimum.at(best, ids, rank[places])
        return np.where(best == len(both), _NONE, order[np.minimum(best, len(both) - 1)])


class _Extremes:
    """Least or greatest values of types whose order is that of 64-bit integers."""

    def __init__(self, kind: pa.DataType, *, greatest: bool) -> None:
        self.types = (kind,)
        self._kind, self._pick = kind, np.maximum if greatest else np.minimum
        self._start = -_LARGEST - 1 if greatest else _LARGEST
        self._found = np.zeros(0, np.int64)
        self._has = np.zeros(0, bool)

    def resize(self, groups: int) -> None:
        self._found = grown(self._found, groups, self._start)
        self._has = grown(self._has, groups)

    def add(self, ids: _Ids, values: pa.Array | None) -> None:
        assert values is not None
        if values.null_count:
            ids = ids[values.is_valid().to_numpy(zero_copy_only=False)]
            values = values.drop_null()
        self._pick.at(self._found, ids, _image(values))
        self._has[ids] = True

    def combine(self, ids: _Ids, state: Sequence[pa.Array]) -> None:
        self.add(ids, state[0])

    def state(self) -> list[pa.Array]:
        return [self.results()]

    def results(self) -> pa.Array:
        numbers = np.where(self._has, self._found, 0)
        if pa.types.is_floating(self._kind):
            bits = np.where(numbers < 0, numbers ^ _LARGEST, numbers)
            return pa.array(bits.view(np.float64), mask=~self._has).cast(self._kind)
        return _from_integers(pa.array(numbers, mask=~self._has), self._kind)


class Lists:
    """The values of each group that are not null, in order.

    Args:
        kind: of a value.
        most: values to keep of each group.
    """

    def __init__(self, kind: pa.DataType, *, most: int) -> None:
        self.types = (pa.list_(kind),)
        self._most = most
        self._ids = np.zeros(0, np.int64)
        self._values = pa.array([], kind)
        self._groups = 0

    def resize(self, groups: int) -> None:
        """Have so many groups."""
        self._groups = groups

    def add(self, ids: _Ids, values: pa.Array | None) -> None:
        """Fold rows into their groups, in order."""
        assert values is not None
        if values.null_count:
            ids = ids[values.is_valid().to_numpy(zero_copy_only=False)]
            values = values.drop_null()
        self._keep(np.concatenate([self._ids, ids]), pa.concat_arrays([self._values, values]))

    def combine(self, ids: _Ids, state: Sequence[pa.Array]) -> None:
        """Fold accumulators of later rows into groups."""
        lengths = state[0].value_lengths().fill_null(0).to_numpy()
        self.add(np.repeat(ids, lengths), state[0].flatten())

    def state(self) -> list[pa.Array]:
        """One row for each group."""
        offsets = np.zeros(self._groups + 1, np.int32)
        np.cumsum(np.bincount(self._ids, minlength=self._groups), out=offsets[1:])
        return [pa.ListArray.from_arrays(pa.array(offsets), self._values)]

    def results(self) -> pa.Array:
        """The lists."""
        return self.state()[0]

    def _keep(self, ids: _Ids, values: pa.Array) -> None:
        """Sort by group, and leave out values that are too many."""
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        places = np.arange(len(ids)) - np.searchsorted(ids, ids)
        order = order[places < self._most]
        self._ids, self._values = ids[places < self._most], values.take(pa.array(order))


def _image(values: pa.Array) -> npt.NDArray[np.int64]:
    """Integers in the order of the values; NaN is the greatest."""
    kind = values.type
    if pa.types.is_floating(kind):
        numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
        image: _Ids = np.where(bits < 0, bits ^ _LARGEST, bits)
        return image
    if pa.types.is_temporal(kind):
        values = values.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    integers: _Ids = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return integers


def _from_integers(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(kind) and kind.bit_width == 32:
        values = values.cast(pa.int32())
    return values.cast(kind)
