"""CSV by Arrow's writer and JSON lines by Python's `json`, in forms that Spark's readers take.

Numbers, booleans and dates are spelt as Spark spells them. Timestamps are ISO 8601 with
microseconds; instants are in UTC. ADR 0020 lists the differences from Spark's own writers.
"""

import base64
import bz2
import functools
import io
import json
import math
import string
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.types as kinds

from sluice.connectors.hdfs.formats.file_format import FileFormat, FormatWriter
from sluice.connectors.hdfs.formats.format_options import Codec
from sluice.connectors.hdfs.formats.python_values import (
    numbers_for_times,
    python_rows,
    text_of,
    timestamp_text,
    valid_text,
)
from sluice.connectors.hdfs.formats.spark_types import (
    conform,
    portions,
    recast,
    refuse_columns,
    spark_schema,
    with_leaves,
)

__all__ = ["TEXT_CODECS", "Csv", "JsonLines"]

_PORTION_BYTES = 1 << 20  # of Arrow data; rows become Python values portion by portion
_LONGEST_SCALE = 6  # beyond it Arrow spells small decimals with an exponent
_LAST_BLANK = " "  # Java trims it and each character before it
_IN_NUMBERS = frozenset(f"{string.ascii_letters}{string.digits}+-.")  # and in booleans
_GZIP_WINDOW = 31  # makes zlib write a gzip header

TEXT_CODECS = {
    "none": Codec(name="none", extension=""),
    "uncompressed": Codec(name="none", extension=""),
    "gzip": Codec(name="gzip", extension=".gz"),
    "bzip2": Codec(name="bzip2", extension=".bz2"),
    "deflate": Codec(name="deflate", extension=".deflate"),
}
"""By the names of Spark's option ``compression``; its lz4, snappy and zstd need Hadoop's frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Csv(FileFormat):
    """`FileFormat` for CSV as RFC 4180 has it: text in quotes, and a quote in it doubled.

    Attributes:
        codec: one of `TEXT_CODECS`.
        header: begin each file with the columns' names.
        separator: between values.
    """

    codec: Codec = TEXT_CODECS["none"]
    header: bool = False
    separator: str = ","

    @property
    def extension(self) -> str:
        return f".csv{self.codec.extension}"

    def check(self, schema: pa.Schema) -> None:
        _csv_schema(schema)

    def open(self, stream: BinaryIO, schema: pa.Schema) -> "_TextFile":
        target = _csv_schema(schema)
        file = _TextFile(stream, target, self.codec, self._encode)
        if self.header:
            file.append(_csv_bytes(target.empty_table(), self.separator, has_header=True))
        return file

    def _encode(self, portion: pa.RecordBatch) -> bytes:
        columns = [_csv_text(column) for column in portion.columns]
        if self.separator in _IN_NUMBERS:
            columns = [column.cast(pa.string()) for column in columns]  # Arrow quotes strings
        if len(columns) == 1 or self.separator <= _LAST_BLANK:
            columns[0] = _first_without_blank_lines(columns)
        table = pa.Table.from_arrays(columns, names=portion.schema.names)
        return _csv_bytes(table, self.separator, has_header=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLines(FileFormat):
    """`FileFormat` for JSON, one object per line; bytes are in base64.

    Attributes:
        codec: one of `TEXT_CODECS`.
        ignore_null_fields: leave them out; else they are written as null.
    """

    codec: Codec = TEXT_CODECS["none"]
    ignore_null_fields: bool = True

    @property
    def extension(self) -> str:
        return f".json{self.codec.extension}"

    def check(self, schema: pa.Schema) -> None:
        _json_schema(schema)

    def open(self, stream: BinaryIO, schema: pa.Schema) -> "_TextFile":
        target = _json_schema(schema)
        spell_row = _object(list(target), ignores_nulls=self.ignore_null_fields)
        stored = with_leaves(target, numbers_for_times)

        def encode(portion: pa.RecordBatch) -> bytes:
            rows = python_rows(recast(portion, stored))
            return "".join(f"{spell_row(row)}\n" for row in rows).encode()

        return _TextFile(stream, target, self.codec, encode)


def _csv_schema(schema: pa.Schema) -> pa.Schema:
    target = _in_utc(schema)
    refuse_columns(
        target,
        lambda kind: kinds.is_nested(kind) or kinds.is_binary(kind),
        of="CSV",
        remedy="Make it text in the function before the sink, or use another format.",
    )
    return target


def _json_schema(schema: pa.Schema) -> pa.Schema:
    target = _in_utc(schema)
    refuse_columns(
        target,
        lambda kind: kinds.is_map(kind) and not kinds.is_string(kind.key_type),
        of="JSON",
        remedy="Make the map's keys strings: JSON has no others.",
    )
    return target


def _in_utc(schema: pa.Schema) -> pa.Schema:
    def moved(field: pa.Field) -> pa.Field:
        has_zone = kinds.is_timestamp(field.type) and field.type.tz is not None
        return field.with_type(pa.timestamp("us", tz="UTC")) if has_zone else field

    return with_leaves(spark_schema(schema), moved)


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _Plain:
    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


_COMPRESSORS: dict[str, Callable[[], _Compressor]] = {
    "none": _Plain,
    "gzip": lambda: zlib.compressobj(wbits=_GZIP_WINDOW),
    "deflate": zlib.compressobj,
    "bzip2": bz2.BZ2Compressor,
}


class _TextFile(FormatWriter):
    """`FormatWriter` that compresses what ``encode`` makes of each portion of a batch."""

    def __init__(
        self,
        stream: BinaryIO,
        schema: pa.Schema,
        codec: Codec,
        encode: Callable[[pa.RecordBatch], bytes],
    ) -> None:
        self._stream = stream
        self._schema = schema
        self._compressor = _COMPRESSORS[codec.name]()
        self._encode = encode
        self._rows = 0

    def append(self, data: bytes) -> None:
        """Write bytes that are no row."""
        self._stream.write(self._compressor.compress(data))

    def write(self, batch: pa.RecordBatch) -> None:
        for portion in portions(conform(batch, self._schema), limit_bytes=_PORTION_BYTES):
            self.append(self._encode(portion))
            self._rows += portion.num_rows

    def close(self) -> int:
        self._stream.write(self._compressor.flush())
        return self._rows

    def abandon(self) -> None:
        """See `FormatWriter.abandon`."""


def _csv_bytes(table: pa.Table, separator: str, *, has_header: bool) -> bytes:
    options = pyarrow.csv.WriteOptions(include_header=has_header, delimiter=separator)
    stream = io.BytesIO()
    pyarrow.csv.write_csv(table, stream, options)
    return stream.getvalue()


def _first_without_blank_lines(columns: list[pa.Array]) -> pa.Array:
    """The first column, with an empty string in rows of nulls alone: Spark skips a blank line, but
    reads two quotes as null."""
    is_blank = functools.reduce(pc.and_, (column.is_null() for column in columns))
    if not pc.any(is_blank).as_py():
        return columns[0]
    return pc.if_else(is_blank, "", columns[0].cast(pa.string()))


def _csv_text(column: pa.Array) -> pa.Array:
    """The column with text for what Arrow would not spell as Spark reads it."""
    if kinds.is_string(column.type):
        return valid_text(column)
    has_exponent = kinds.is_decimal(column.type) and column.type.scale > _LONGEST_SCALE
    if not (has_exponent or kinds.is_temporal(column.type) or kinds.is_floating(column.type)):
        return column
    spell = _text_of(column.type)
    stored = column.cast(numbers_for_times(pa.field("", column.type)).type)
    values = (None if value is None else spell(value) for value in stored.to_pylist())
    return pa.array(values, pa.string())


def _text_of(kind: pa.DataType) -> Callable[[Any], str]:
    found = text_of(kind)
    if found is not None:
        return found
    return _instant if kind.tz else timestamp_text  # the schema has no other types


def _instant(micros: int) -> str:
    return f"{timestamp_text(micros)}+00:00"


def _object(fields: list[pa.Field], *, ignores_nulls: bool) -> Callable[[dict[str, Any]], str]:
    """The function that spells a struct, or a row, as a JSON object."""
    spellings = [
        (
            field.name,
            _quoted(field.name),
            _json_of(field.type, ignores_nulls),
        )
        for field in fields
    ]

    def spell(row: dict[str, Any]) -> str:
        members = [
            f"{key}:{spell_value(row[name])}"
            for name, key, spell_value in spellings
            if not (ignores_nulls and row[name] is None)
        ]
        return f"{{{','.join(members)}}}"

    return spell


def _json_of(kind: pa.DataType, ignores_nulls: bool) -> Callable[[Any], str]:
    """The function that spells a value of this type, or None, as JSON."""
    spell = _json_value(kind, ignores_nulls)
    return lambda value: "null" if value is None else spell(value)


def _json_value(kind: pa.DataType, ignores_nulls: bool) -> Callable[[Any], str]:
    if kinds.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return _object(fields, ignores_nulls=ignores_nulls)
    if kinds.is_map(kind):
        spell_item = _json_of(kind.item_type, ignores_nulls)
        return lambda value: _joined(
            "{", [f"{_quoted(k)}:{spell_item(v)}" for k, v in value.items()], "}"
        )
    if kinds.is_list(kind):
        spell_element = _json_of(kind.value_type, ignores_nulls)
        return lambda value: _joined("[", map(spell_element, value), "]")
    if kinds.is_binary(kind):
        return lambda value: _quoted(base64.b64encode(value).decode("ascii"))
    spell = _text_of(kind)
    if kinds.is_string(kind) or kinds.is_temporal(kind):
        return lambda value: _quoted(spell(value))
    if kinds.is_floating(kind):  # JSON has no NaN and no infinity: Spark reads them from strings
        return lambda value: spell(value) if math.isfinite(value) else _quoted(spell(value))
    return spell


def _joined(left: str, parts: Iterable[str], right: str) -> str:
    return f"{left}{','.join(parts)}{right}"


_quoted: Callable[[str], str] = json.JSONEncoder(ensure_ascii=False).encode
