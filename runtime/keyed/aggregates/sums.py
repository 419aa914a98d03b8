"""Accumulators of counts, sums and means, for numbered groups."""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.runtime.errors import ConfigError

__all__ = ["Counts", "grown", "means_of", "sums_of"]

_LARGEST = (1 << 63) - 1
_Ids = npt.NDArray[np.int64]


def sums_of(kind: pa.DataType) -> _Sums | _DecimalSums:
    """Sums of a column of this type.

    Raises:
        ConfigError: it has no numbers.
    """
    if _require_number(kind):
        return _DecimalSums(kind)
    return _Sums(pa.float64() if pa.types.is_floating(kind) else pa.int64())


def means_of(kind: pa.DataType) -> _Means:
    """Means of a column of this type.

    Raises:
        ConfigError: it has no numbers.
    """
    return _DecimalMeans(kind) if _require_number(kind) else _Means(_Sums(pa.float64()))


class Counts:
    """Numbers of rows, or of values that are not null."""

    types = (pa.int64(),)

    def __init__(self) -> None:
        self._counts = np.zeros(0, np.int64)

    def resize(self, groups: int) -> None:
        self._counts = grown(self._counts, groups)

    def add(self, ids: _Ids, values: pa.Array | None) -> None:
        if values is not None and values.null_count:
            ids = ids[values.is_valid().to_numpy(zero_copy_only=False)]
        self._counts += np.bincount(ids, minlength=len(self._counts))

    def combine(self, ids: _Ids, state: Sequence[pa.Array]) -> None:
        self._counts[ids] += state[0].to_numpy()

    def state(self) -> list[pa.Array]:
        return [self.results()]

    def results(self) -> pa.Array:
        return pa.array(self._counts)


class _Sums:
    """Sums of int64 or float64; null until a value comes."""

    def __init__(self, kind: pa.DataType) -> None:
        self.types = (kind,)
        self._sums = np.zeros(0, kind.to_pandas_dtype())
        self._has = np.zeros(0, bool)

    def resize(self, groups: int) -> None:
        self._sums, self._has = grown(self._sums, groups), grown(self._has, groups)

    def add(self, ids: _Ids, values: pa.Array | None) -> None:
        assert values is not None
        if values.null_count:
            ids = ids[values.is_valid().to_numpy(zero_copy_only=False)]
            values = values.drop_null()
        is_exact = self.types[0] == pa.int64()  # a mean of integers is of rounded ones
        numbers = values.cast(self.types[0], safe=is_exact).to_numpy(zero_copy_only=False)
        if self.types[0] == pa.int64() and _may_overflow(self._sums, numbers):
            exact = self._sums.astype(object)
            np.add.at(exact, ids, numbers.astype(object))
            self._sums = exact.astype(np.int64)  # raises OverflowError
        else:
            np.add.at(self._sums, ids, numbers)
        self._has[ids] = True

    def combine(self, ids: _Ids, state: Sequence[pa.Array]) -> None:
        self.add(ids, state[0])

    def state(self) -> list[pa.Array]:
        return [self.results()]

    def results(self) -> pa.Array:
        return pa.array(self._sums, mask=~self._has)


class _DecimalSums:
    """Exact: groups are summed with 76 digits, and must fit into the type of the result."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = pa.decimal128(min(38, kind.precision + 10), kind.scale)
        self.types = (self._kind,)
        self._sums = pa.array([], self._kind)

    def resize(self, groups: int) -> None:
        self._sums = pa.concat_arrays([self._sums, pa.nulls(groups - len(self._sums), self._kind)])

    def add(self, ids: _Ids, values: pa.Array | None) -> None:
        wide = pa.decimal256(76, self._kind.scale)
        assert values is not None
        table = pa.table(
            {
                "id": pa.concat_arrays([pa.array(np.arange(len(self._sums))), pa.array(ids)]),
                "value": pa.concat_arrays([self._sums.cast(wide), values.cast(wide)]),
            }
        )
        found = table.group_by("id", use_threads=False).aggregate([("value", "sum")])
        sums = found.sort_by("id").column("value_sum").combine_chunks()
        self._sums = sums.cast(self._kind)

    def combine(self, ids: _Ids, state: Sequence[pa.Array]) -> None:
        self.add(ids, state[0])

    def state(self) -> list[pa.Array]:
        return [self._sums]

    def results(self) -> pa.Array:
        return self._sums


class _Means:
    def __init__(self, sums: _Sums | _DecimalSums) -> None:
        self._sums = sums
        self._counts = Counts()
        self.types = (*sums.types, pa.int64())

    def resize(self, groups: int) -> None:
        self._sums.resize(groups)
        self._counts.resize(groups)

    def add(self, ids: _Ids, values: pa.Array | None) -> None:
        self._sums.add(ids, values)
        self._counts.add(ids, values)

    def combine(self, ids: _Ids, state: Sequence[pa.Array]) -> None:
        self._sums.combine(ids, state[:1])
        self._counts.combine(ids, state[1:])

    def state(self) -> list[pa.Array]:
        return [*self._sums.state(), *self._counts.state()]

    def results(self) -> pa.Array:
        return pc.divide(self._sums.results(), self._counts.results().cast(pa.float64()))


class _DecimalMeans(_Means):
    """Rounded half up, as Spark's."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(_DecimalSums(kind))
        self._kind = pa.decimal128(min(38, kind.precision + 4), min(38, kind.scale + 4))

    def results(self) -> pa.Array:
        sums, counts = self._sums.results().to_pylist(), self._counts.results().to_pylist()
        unit = decimal.Decimal(1).scaleb(-self._kind.scale)
        with decimal.localcontext(prec=76, rounding=decimal.ROUND_HALF_UP):
            means = [
                None if total is None else (total / count).quantize(unit)
                for total, count in zip(sums, counts, strict=True)
            ]
        return pa.array(means, self._kind)


def _may_overflow(sums: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> bool:
    if not len(numbers) or not len(sums):
        return False
    most = max(-int(numbers.min()), int(numbers.max()))
    return max(-int(sums.min()), int(sums.max())) + most * len(numbers) > _LARGEST


def grown(values: Any, groups: int, start: int = 0) -> Any:  # noqa: ANN401 - arrays of one type
    """``values``, as long as there are groups; new ones are ``start``."""
    if groups <= len(values):
        return values
    grown = np.full(groups, start, values.dtype)
    grown[: len(values)] = values
    return grown


def _require_number(kind: pa.DataType) -> bool:
    """Whether it is a decimal; an error if it is no number."""
    is_decimal = pa.types.is_decimal128(kind)
    if is_decimal or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return bool(is_decimal)
    raise ConfigError(
        "a sum or mean needs a column of numbers",
        {"type": kind},
        "Cast the column to a number in a map_batches before key_by.",
    )
