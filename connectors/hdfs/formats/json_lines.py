"""JSON lines as Spark writes them: null fields left out, bytes in base64, one row per line.

Whole columns are spelt by Arrow and joined; no loop runs over rows, but for strings that need
escapes and for bytes.
"""

import base64
import functools
import json
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sluice.connectors.hdfs.formats.compression import TEXT_CODECS, TextFile
from sluice.connectors.hdfs.formats.format_options import Codec
from sluice.connectors.hdfs.formats.spark_types import (
    conform,
    portions,
    refuse_columns,
    spark_schema,
)
from sluice.connectors.hdfs.formats.temporal import SPARKS_OWN, TemporalFormat
from sluice.connectors.hdfs.formats.text_values import PORTION_BYTES, lines_of, plain_text

__all__ = ["JsonLines"]

_NEEDS_ESCAPE = r'["\\\x00-\x1f]'


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLines:
    """`FileFormat` for JSON, one object per line.

    Attributes:
        codec: one of `TEXT_CODECS`.
        temporal: how dates and timestamps are spelt.
        ignore_null_fields: leave them out; else they are written as null.
        line_end: between rows, and after the last one.
    """

    codec: Codec = TEXT_CODECS["none"]
    temporal: TemporalFormat = SPARKS_OWN
    ignore_null_fields: bool = True
    line_end: str = "\n"

    @property
    def extension(self) -> str:
        """See `FileFormat.extension`."""
        return f".json{self.codec.extension}"

    def check(self, schema: pa.Schema) -> None:
        """See `FileFormat.check`."""
        _json_schema(schema)

    def open(self, stream: BinaryIO, schema: pa.Schema) -> "_JsonFile":
        """See `FileFormat.open`."""
        return _JsonFile(stream, _json_schema(schema), self)


def _json_schema(schema: pa.Schema) -> pa.Schema:
    target = spark_schema(schema)
    refuse_columns(
        target,
        lambda kind: kinds.is_map(kind) and not kinds.is_string(kind.key_type),
        of="JSON",
        remedy="Make the map's keys strings: JSON has no others.",
    )
    return target


class _JsonFile:
    """Writes each batch as it comes."""

    def __init__(self, stream: BinaryIO, schema: pa.Schema, form: JsonLines) -> None:
        self._schema = schema
        self._form = form
        self._file = TextFile(stream, form.codec)
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """See `FormatWriter.write`."""
        for portion in portions(conform(batch, self._schema), limit_bytes=PORTION_BYTES):
            fields = list(zip(portion.schema.names, portion.columns, strict=True))
            rows = _object(fields, self._form)
            self._file.write(lines_of(rows, self._form.line_end))
            self._rows += portion.num_rows

    def close(self) -> int:
        """See `FormatWriter.close`."""
        self._file.close()
        return self._rows

    def abandon(self) -> None:
        """See `FormatWriter.abandon`."""


def _value(column: pa.Array, form: JsonLines) -> pa.Array:
    """Each value as JSON; null stays null."""
    kind = column.type
    if kinds.is_struct(kind):
        return _struct(column, form)
    if kinds.is_map(kind):
        return _map(column, form)
    if kinds.is_list(kind):
        items = pc.fill_null(_value(_used(column, column.values), form), "null")
        return _within("[", _joined(column, items), "]")
    if kinds.is_binary(kind):
        return _base64(column)
    spelt = plain_text(column, form.temporal)
    if kinds.is_string(kind):
        return _quoted(spelt)
    if kinds.is_temporal(kind):
        return _within('"', spelt, '"')
    if kinds.is_floating(kind):
        return _numbers(column, spelt)
    return spelt


def _object(fields: list[tuple[str, pa.Array]], form: JsonLines) -> pa.Array:
    """One object for each row; never null."""
    members = []
    for name, column in fields:
        value = _value(column, form)
        if not form.ignore_null_fields:
            value = pc.fill_null(value, "null")
        members.append(pc.binary_join_element_wise(f"{_string(name)}:", value, ""))
    return _within("{", _joined_members(members), "}")


def _joined_members(members: list[pa.Array]) -> pa.Array:
    """With commas between those that are not null; Arrow would drop a row of nulls alone."""
    if all(member.null_count for member in members):
        nothing = functools.reduce(pc.and_, [member.is_null() for member in members])
        members = [pc.if_else(nothing, "", members[0]), *members[1:]]
    return pc.binary_join_element_wise(*members, ",", null_handling="skip")


def _struct(column: pa.StructArray, form: JsonLines) -> pa.Array:
    fields = [(column.type.field(i).name, column.field(i)) for i in range(column.type.num_fields)]
    return pc.if_else(column.is_valid(), _object(fields, form), pa.scalar(None, pa.string()))


def _map(column: pa.MapArray, form: JsonLines) -> pa.Array:
    keys, items = _used(column, column.keys), _used(column, column.items)
    entries = pc.binary_join_element_wise(
        _quoted(plain_text(keys, form.temporal)), pc.fill_null(_value(items, form), "null"), ":"
    )
    return _within("{", _joined(column, entries), "}")


def _used(column: pa.ListArray | pa.MapArray, children: pa.Array) -> pa.Array:
    """The children of these rows: a slice of a column still holds those of all rows."""
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return children.slice(first, last - first)


def _joined(column: pa.ListArray | pa.MapArray, items: pa.Array) -> pa.Array:
    """The items of each list, from `_used`, with commas between; a null list stays null."""
    offsets = pc.subtract(column.offsets, column.offsets[0])
    texts = pc.binary_join(pa.ListArray.from_arrays(offsets, items), ",")
    return pc.if_else(column.is_valid(), texts, None) if column.null_count else texts


def _within(left: str, column: pa.Array, right: str) -> pa.Array:
    return pc.binary_join_element_wise(left, column, right, "")


def _string(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _quoted(column: pa.StringArray) -> pa.Array:
    """Strings with quotes; only those with a character that needs it go through Python."""
    plain = _within('"', column, '"')
    escaped = pc.fill_null(pc.match_substring_regex(column, _NEEDS_ESCAPE), False)
    if not pc.any(escaped).as_py():
        return plain
    spelt = [_string(value) for value in column.filter(escaped).to_pylist()]
    return pc.replace_with_mask(plain, escaped, pa.array(spelt, pa.string()))


def _base64(column: pa.BinaryArray) -> pa.Array:
    spelt = [
        None if value is None else f'"{base64.b64encode(value).decode("ascii")}"'
        for value in column.to_pylist()
    ]
    return pa.array(spelt, pa.string())


def _numbers(column: pa.Array, spelt: pa.Array) -> pa.Array:
    """JSON has no word for what is not a number; Spark writes and reads it as a string."""
    odd = pc.fill_null(pc.invert(pc.is_finite(column)), False)
    return pc.if_else(odd, _within('"', spelt, '"'), spelt) if pc.any(odd).as_py() else spelt
