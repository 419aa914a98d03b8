"""Values of Arrow as Python has them, and their text as Spark spells it. Pure."""

import datetime
import decimal
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from sluice.connectors.hdfs.formats.spark_types import recast, with_leaves

__all__ = ["Entries", "numbers_for_times", "python_rows", "text_of", "timestamp_text", "valid_text"]

_FIRST_DAY = datetime.date.min.toordinal() - datetime.date(1970, 1, 1).toordinal()
_CYCLE_DAYS, _CYCLE_YEARS = 146_097, 400  # after which the calendar repeats itself
_DAY_MICROS = 86_400_000_000


class Entries(Mapping[str, Any]):
    """A map with a repeated key, which a dictionary cannot hold; `items` has every entry."""

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        self._pairs = pairs

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - any value of a row
        return dict(self._pairs)[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def items(self) -> Any:  # noqa: ANN401 - a view in Mapping
        """Each entry, in order."""
        return self._pairs


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as dictionaries, maps as dictionaries or `Entries`. Bytes that are not UTF-8 become
    U+FFFD.

    Args:
        batch: as `numbers_for_times` stores it: Python has years 1 to 9999 only.
    """
    try:
        found: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    except (UnicodeDecodeError, KeyError):  # KeyError: a key twice
        as_bytes = recast(batch, with_leaves(batch.schema, _bytes_of_text))
        row_type = pa.struct(list(batch.schema))
        found = [_decoded(row, row_type) for row in as_bytes.to_pylist()]
    return found


def valid_text(column: pa.Array) -> pa.Array:
    """Strings with U+FFFD for bytes that are not UTF-8, as Spark's text writers put it."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        values = column.view(pa.binary()).to_pylist()
        return pa.array([_decoded(value, pa.string()) for value in values], pa.string())
    return column


def text_of(kind: pa.DataType) -> Callable[[Any], str] | None:
    """The function that spells a value of this type as Spark does; None for other types.

    A date is a number of days, see `numbers_for_times`. A timestamp has no such function here: the
    callers show it in different time zones.
    """
    for is_kind, spell in _SPELLINGS:
        if is_kind(kind):
            return spell
    return None


def numbers_for_times(field: pa.Field) -> pa.Field:
    """For `with_leaves`: dates are days and timestamps are microseconds since 1970."""
    if kinds.is_timestamp(field.type):
        return field.with_type(pa.int64())
    return field.with_type(pa.int32()) if kinds.is_date32(field.type) else field


def timestamp_text(micros: int) -> str:
    """``2026-01-01T12:00:00.000000``, of any year."""
    days, rest = divmod(micros, _DAY_MICROS)
    minutes, rest = divmod(rest, 60_000_000)
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}.{fraction:06}"
    return f"{_date(days)}T{clock}"


def _date(days: int) -> str:
    cycles, rest = divmod(days - _FIRST_DAY, _CYCLE_DAYS)
    day = datetime.date.fromordinal(rest + 1)
    year = day.year + cycles * _CYCLE_YEARS
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04}-{day.month:02}-{day.day:02}"


def _bytes_of_text(field: pa.Field) -> pa.Field:
    return field.with_type(pa.binary()) if kinds.is_string(field.type) else field


def _decoded(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - any value of a row
    """The value with text for the bytes of its strings, and `Entries` for maps, at any depth."""
    if value is None:
        return None
    if kinds.is_string(kind):
        return value.decode("utf-8", errors="replace")
    if kinds.is_list(kind):
        return [_decoded(item, kind.value_type) for item in value]
    if kinds.is_map(kind):
        return Entries(
            [(_decoded(k, kind.key_type), _decoded(v, kind.item_type)) for k, v in value]
        )
    if kinds.is_struct(kind):
        parts = [kind.field(at) for at in range(kind.num_fields)]
        return {part.name: _decoded(value[part.name], part.type) for part in parts}
    return value


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _decimal(value: decimal.Decimal) -> str:
    return f"{value:f}"


def _float32(value: float) -> str:
    return _java(value, str(np.float32(value)))


def _float64(value: float) -> str:
    return _java(value, repr(value))


def _java(value: float, shortest: str) -> str:
    """Java's spelling of a float: a point always, an exponent from 10**7 and below 10**-3."""
    if 1e-3 <= abs(value) < 1e7:
        return shortest
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = decimal.Decimal(shortest).as_tuple()
    number = "".join(map(str, digits)).rstrip("0") or "0"
    power = len(digits) + int(exponent) - 1
    minus = "-" if sign else ""
    if value == 0:
        return f"{minus}0.0"
    if -3 <= power < 7:
        point = max(power + 1, 0)
        padded = number.rjust(len(number) - min(power + 1, 0), "0").ljust(point, "0")
        return f"{minus}{padded[:point] or '0'}.{padded[point:] or '0'}"
    return f"{minus}{number[0]}.{number[1:] or '0'}E{power}"


_SPELLINGS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[..., str]]] = (
    (kinds.is_string, str),
    (kinds.is_large_string, str),
    (kinds.is_boolean, _boolean),
    (kinds.is_integer, str),
    (kinds.is_date, _date),
    (kinds.is_decimal, _decimal),
    (kinds.is_float32, _float32),
    (kinds.is_float64, _float64),
)
