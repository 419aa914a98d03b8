"""Columns of Arrow batches by name in the schema of a table. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.types as pt

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.arrow_leaves import column_index

__all__ = ["RowAlignment", "fits", "require_known", "unknown_columns"]

_INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64} | {
    pa.uint8(): 9,
    pa.uint16(): 17,
    pa.uint32(): 33,
}
_FLOATS = {pa.float16(): 16, pa.float32(): 32, pa.float64(): 64}
_TEXTS = frozenset({pa.string(), pa.large_string(), pa.string_view()})
_BYTES = frozenset({pa.binary(), pa.large_binary(), pa.binary_view()})


def fits(source: pa.DataType, target: pa.DataType) -> bool:  # noqa: C901 - one case for each kind
    """Whether every value of a type has the same value in another.

    Nanoseconds fit into microseconds as long as no digit is lost: the conversion checks that.

    Raises:
        ConfigError: several fields of a struct have one name.
    """
    if pt.is_dictionary(source):
        source = source.value_type
    if source == target or pt.is_null(source):
        return True
    for kinds in (_INTEGERS, _FLOATS):
        if source in kinds and target in kinds:
            return bool(kinds[source] <= kinds[target])
    for names in (_TEXTS, _BYTES):
        if source in names and target in names:
            return True
    if pt.is_fixed_size_binary(source) and target in _BYTES:
        return True
    if pt.is_timestamp(source) and pt.is_timestamp(target):
        return bool((source.tz is None) == (target.tz is None))
    if pt.is_decimal(source) and pt.is_decimal(target):
        return bool(source.scale == target.scale and source.precision <= target.precision)
    if _is_list(source) and _is_list(target):
        return fits(source.value_type, target.value_type)
    if pt.is_map(source) and pt.is_map(target):
        return fits(source.key_type, target.key_type) and fits(source.item_type, target.item_type)
    if pt.is_struct(source) and pt.is_struct(target):
        return all(
            _has(target, source, inner.name) and fits(inner.type, target.field(inner.name).type)
            for inner in source
        )
    return False


def unknown_columns(source: pa.Schema, target: pa.Schema) -> list[pa.Field]:
    """Columns that the target lacks, or whose type it cannot hold.

    Raises:
        ConfigError: several columns, or fields of a struct, have one name.
    """
    return [
        column
        for column in source
        if not _has(target, source, column.name)
        or not fits(column.type, target.field(column.name).type)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAlignment:
    """Brings batches into the columns of a table.

    Attributes:
        target: the table's columns, with their field ids.
        table: its name, for messages.
    """

    target: pa.Schema
    table: str

    def align(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows in the table's columns; a column that they lack is null.

        Raises:
            ConfigError: a column has another type, or a required field is null.
        """
        return pa.RecordBatch.from_arrays(
            [self._column(batch, field) for field in self.target], schema=self.target
        )

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        index = column_index(batch.schema, field.name)
        column = pa.nulls(batch.num_rows) if index is None else batch.column(index)
        try:
            column = _conformed(column, field.type, field.name)
            _require_values(column, field, field.name)
        except pa.ArrowException as err:
            raise ConfigError(
                "a value does not fit into its column of an Iceberg table",
                {"table": self.table, "column": field.name, "error": str(err)},
                "Convert the column in a function before the sink.",
            ) from err
        except _NullInRequiredFieldError as err:
            raise ConfigError(
                "a required column of an Iceberg table is null",
                {"table": self.table, "column": err.path, "nulls": err.count},
                "Fill the column in a function before the sink, or make it optional.",
            ) from err
        return column


def require_known(columns: Sequence[pa.Field], target: pa.Schema, *, table: str) -> None:
    """ConfigError if there are columns that the table cannot take."""
    for column in columns:
        index = column_index(target, column.name)
        if index is None:
            raise ConfigError(
                "rows have a column that the Iceberg table lacks",
                {"table": table, "column": column.name, "type": column.type},
                "Pass evolve=True, add the column to the table, or leave it out before the sink.",
            )
        raise ConfigError(
            "rows have another type than their column of the Iceberg table",
            {
                "table": table,
                "column": column.name,
                "type": column.type,
                "needed": target.field(index).type,
            },
            "Convert the column in a function before the sink; evolve=True widens a type where "
            "Iceberg allows it.",
        )


def _has(target: pa.Schema | pa.StructType, source: pa.Schema | pa.StructType, name: str) -> bool:
    """Whether the target has a column of the source; ConfigError if the source has several."""
    column_index(source, name)
    return column_index(target, name) is not None


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


class _NullInRequiredFieldError(Exception):
    def __init__(self, path: str, count: int) -> None:
        super().__init__(path, count)
        self.path = path
        self.count = count


def _require_values(array: pa.Array, field: pa.Field, path: str, hidden: int = 0) -> None:
    """Refuse nulls, but for those that nulls of the parent hide."""
    if not field.nullable and array.null_count > hidden:
        raise _NullInRequiredFieldError(path, array.null_count - hidden)


def _conformed(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    """The values in another type that they fit; fields of structs by name.

    Raises:
        _NullInRequiredFieldError: a required field inside it is null.
    """
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.type == target and not pt.is_nested(target):
        return array
    if pt.is_struct(target):
        return _struct(array, target, path)
    if pt.is_null(array.type):
        return pa.nulls(len(array), target)
    if _is_list(target):
        return _list(array, target, path)
    if pt.is_map(target):
        return _map(array, target, path)
    return array.cast(target, safe=True)


def _struct(array: pa.Array, target: pa.StructType, path: str) -> pa.Array:
    # `flatten` gives the fields of a null struct as null: no value below it is seen or refused.
    given = (
        {} if pt.is_null(array.type) else dict(zip(array.type.names, array.flatten(), strict=True))
    )
    inner = []
    for field in target:
        place = f"{path}.{field.name}"
        values = given.get(field.name)
        if values is None:
            values = pa.nulls(len(array))
        values = _conformed(values, field.type, place)
        _require_values(values, field, place, array.null_count)
        inner.append(values if field.nullable else _without_nulls(values))
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(inner, fields=list(target), mask=mask)


def _without_nulls(array: pa.Array) -> pa.Array:
    """The same with any value in place of nulls that a null struct hides.

    Arrow's writer refuses nulls of a required field, also hidden ones, and does not write hidden
    values.
    """
    if not array.null_count:
        return array
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return kind.wrap_array(_without_nulls(array.storage))
    if pt.is_struct(kind):
        inner = [array.field(number) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(inner, fields=list(kind))
    if pt.is_map(kind):
        return pa.MapArray.from_arrays(array.offsets, array.keys, array.items, type=kind)
    if pt.is_nested(kind):
        return type(array).from_arrays(array.offsets, array.values, type=kind)
    _, *values = array.buffers()
    return pa.Array.from_buffers(kind, len(array), [None, *values], 0, array.offset)


def _list(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    if pt.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    # `flatten` leaves out what null lists hide, and what a slice leaves out.
    values = _conformed(array.flatten(), target.value_type, f"{path}.element")
    _require_values(values, target.value_field, f"{path}.element")
    lengths = pa.compute.fill_null(array.value_lengths(), 0)
    ends = pa.compute.cumulative_sum(lengths.cast(pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    kind = pa.LargeListArray if pt.is_large_list(target) else pa.ListArray
    if kind is pa.ListArray:
        offsets = offsets.cast(pa.int32())
    mask = array.is_null() if array.null_count else None
    return kind.from_arrays(offsets, values, type=target, mask=mask)


def _map(array: pa.Array, target: pa.MapType, path: str) -> pa.Array:
    if not len(array):  # it may be without offsets
        return pa.nulls(0, target)
    mask, offsets = None, array.offsets
    if array.null_count:  # leave out what null maps hide
        mask = array.is_null()
        is_there = array.is_valid()
        lengths = np.where(is_there.to_numpy(zero_copy_only=False), np.diff(offsets.to_numpy()), 0)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        array = array.take(pa.compute.indices_nonzero(is_there))
    # A slice has the keys and items of the whole array.
    first, count = array.offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()
    offsets = pa.compute.subtract(offsets, offsets[0])
    keys = _conformed(array.keys.slice(first, count), target.key_type, f"{path}.key")
    items = _conformed(array.items.slice(first, count), target.item_type, f"{path}.value")
    _require_values(items, target.item_field, f"{path}.value")
    return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=mask)
