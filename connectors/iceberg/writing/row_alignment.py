"""Columns of Arrow batches by name in the schema of a table. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute
import pyarrow.types as pt

from sluice.runtime.errors import ConfigError

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
            target.get_field_index(inner.name) >= 0
            and fits(inner.type, target.field(inner.name).type)
            for inner in source
        )
    return False


def unknown_columns(source: pa.Schema, target: pa.Schema) -> list[pa.Field]:
    """Columns that the target lacks, or whose type it cannot hold."""
    return [
        column
        for column in source
        if target.get_field_index(column.name) < 0
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
            ConfigError: a column has another type, or a required column is null.
        """
        return pa.RecordBatch.from_arrays(
            [self._column(batch, field) for field in self.target], schema=self.target
        )

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            column = pa.nulls(batch.num_rows, field.type)
        else:
            try:
                column = _conformed(batch.column(index), field.type)
            except pa.ArrowException as err:
                raise ConfigError(
                    "a value does not fit into its column of an Iceberg table",
                    {"table": self.table, "column": field.name, "error": str(err)},
                    "Convert the column in a function before the sink.",
                ) from err
        if not field.nullable and column.null_count:
            raise ConfigError(
                "a required column of an Iceberg table is null",
                {"table": self.table, "column": field.name, "rows": column.null_count},
                "Fill the column in a function before the sink, or make it optional.",
            )
        return column


def require_known(columns: Sequence[pa.Field], target: pa.Schema, *, table: str) -> None:
    """ConfigError if there are columns that the table cannot take."""
    for column in columns:
        index = target.get_field_index(column.name)
        if index < 0:
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


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _conformed(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The values in another type that they fit; fields of structs by name."""
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.type == target and not pt.is_nested(target):
        return array
    if pt.is_struct(target):
        return _struct(array, target)
    if _is_list(target):
        return _list(array, target)
    if pt.is_map(target):
        return _map(array, target)
    return array.cast(target, safe=True)


def _struct(array: pa.Array, target: pa.StructType) -> pa.Array:
    if pt.is_null(array.type):
        return pa.nulls(len(array), target)
    inner = [
        _conformed(array.field(array.type.get_field_index(field.name)), field.type)
        if array.type.get_field_index(field.name) >= 0
        else pa.nulls(len(array), field.type)
        for field in target
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(inner, fields=list(target), mask=mask)


def _list(array: pa.Array, target: pa.DataType) -> pa.Array:
    if not _is_list(array.type):
        return array.cast(target, safe=True)
    if pt.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    # `flatten` leaves out what null lists hide, and what a slice leaves out.
    values = _conformed(array.flatten(), target.value_type)
    lengths = pa.compute.fill_null(array.value_lengths(), 0)
    ends = pa.compute.cumulative_sum(lengths.cast(pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    kind = pa.LargeListArray if pt.is_large_list(target) else pa.ListArray
    if kind is pa.ListArray:
        offsets = offsets.cast(pa.int32())
    mask = array.is_null() if array.null_count else None
    return kind.from_arrays(offsets, values, type=target, mask=mask)


def _map(array: pa.Array, target: pa.MapType) -> pa.Array:
    if not pt.is_map(array.type):
        return array.cast(target, safe=True)
    if not array.null_count and not array.offset:
        keys = _conformed(array.keys, target.key_type)
        items = _conformed(array.items, target.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=target)
    return array.cast(target, safe=True)
