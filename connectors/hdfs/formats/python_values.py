"""Values of Arrow as Python has them, and their text as Spark spells it. Pure."""

import datetime
import decimal
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from sluice.connectors.hdfs.formats.spark_types import recast, with_leaves
from sluice.runtime.errors import ConfigError

__all__ = ["python_rows", "python_values", "text_of", "valid_text"]


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as dictionaries; maps are dictionaries, too. Bytes that are not UTF-8 become U+FFFD.

    Raises:
        ConfigError: Python's calendar has no such year, or a key of a map stands in it twice.
    """
    try:
        return python_values(batch)
    except UnicodeDecodeError:
        as_bytes = recast(batch, with_leaves(batch.schema, _bytes_of_text))
        row_type = pa.struct(list(batch.schema))
        return [_decoded(row, row_type) for row in python_values(as_bytes)]


def python_values(values: pa.Array | pa.RecordBatch) -> list[Any]:
    """The values of a column, or rows; see `python_rows`.

    Raises:
        ConfigError: as `python_rows`.
        UnicodeDecodeError: a string is not UTF-8.
    """
    try:
        found: list[Any] = values.to_pylist(maps_as_pydicts="strict")
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError, KeyError) as error:
        raise ConfigError(
            "a value cannot be written in this file format",
            {"error": error},
            "Keep years from 1 to 9999 and keys of maps unique before the sink, or use Parquet.",
        ) from error
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

    A timestamp has no such function here: the callers show it in different time zones.
    """
    for is_kind, spell in _SPELLINGS:
        if is_kind(kind):
            return spell
    return None


def _bytes_of_text(field: pa.Field) -> pa.Field:
    return field.with_type(pa.binary()) if kinds.is_string(field.type) else field


def _decoded(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - any value of a row
    """The value with text for the bytes of its strings, at any depth."""
    if value is None:
        return None
    if kinds.is_string(kind):
        return value.decode("utf-8", errors="replace")
    if kinds.is_list(kind):
        return [_decoded(item, kind.value_type) for item in value]
    if kinds.is_map(kind):
        entries = value.items()
        return {_decoded(k, kind.key_type): _decoded(v, kind.item_type) for k, v in entries}
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
    (kinds.is_date, datetime.date.isoformat),
    (kinds.is_decimal, _decimal),
    (kinds.is_float32, _float32),
    (kinds.is_float64, _float64),
)
