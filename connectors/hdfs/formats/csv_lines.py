"""CSV as Spark reads it: nothing for null, ``""`` for an empty string, a backslash escapes.

Spark's own writer cuts white space from both ends of values; here it is kept, as Spark's reader
keeps it.
"""

import re
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

__all__ = ["CsvLines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvLines:
    """`FileFormat` for CSV.

    Attributes:
        codec: one of `TEXT_CODECS`.
        temporal: how dates and timestamps are spelt.
        header: begin each file with the columns' names.
        separator: between values.
        quote: around values that hold a separator, a quote or an end of line.
        escape: before a quote, or itself, inside quotes.
        quote_all: quotes around every value.
        escape_quotes: whether a quote inside is a reason for quotes around.
        null_value: for null.
        empty_value: for an empty string.
        line_end: after each row.
    """

    codec: Codec = TEXT_CODECS["none"]
    temporal: TemporalFormat = SPARKS_OWN
    header: bool = False
    separator: str = ","
    quote: str = '"'
    escape: str = "\\"
    quote_all: bool = False
    escape_quotes: bool = True
    null_value: str = ""
    empty_value: str = '""'
    line_end: str = "\n"

    @property
    def extension(self) -> str:
        """See `FileFormat.extension`."""
        return f".csv{self.codec.extension}"

    def check(self, schema: pa.Schema) -> None:
        """See `FileFormat.check`."""
        _csv_schema(schema)

    def open(self, stream: BinaryIO, schema: pa.Schema) -> "_CsvFile":
        """See `FileFormat.open`."""
        return _CsvFile(stream, _csv_schema(schema), self)


def _csv_schema(schema: pa.Schema) -> pa.Schema:
    target = spark_schema(schema)
    refuse_columns(
        target,
        lambda kind: kinds.is_nested(kind) or kinds.is_binary(kind),
        of="CSV",
        remedy="Make it text in the function before the sink, or use another format.",
    )
    return target


class _CsvFile:
    """Writes each batch as it comes."""

    def __init__(self, stream: BinaryIO, schema: pa.Schema, form: CsvLines) -> None:
        self._schema = schema
        self._form = form
        self._file = TextFile(stream, form.codec)
        self._rows = 0
        if form.header:
            names = [_spelt(pa.array([name]), form) for name in schema.names]
            self._file.write(lines_of(_line(names, form), form.line_end))

    def write(self, batch: pa.RecordBatch) -> None:
        """See `FormatWriter.write`."""
        for portion in portions(conform(batch, self._schema), limit_bytes=PORTION_BYTES):
            columns = [
                _spelt(plain_text(column, self._form.temporal), self._form)
                for column in portion.columns
            ]
            self._file.write(lines_of(_line(columns, self._form), self._form.line_end))
            self._rows += portion.num_rows

    def close(self) -> int:
        """See `FormatWriter.close`."""
        self._file.close()
        return self._rows

    def abandon(self) -> None:
        """See `FormatWriter.abandon`."""


def _line(columns: list[pa.Array], form: CsvLines) -> pa.Array:
    if len(columns) == 1:
        # A line without a character is no row for any reader.
        (only,) = columns
        return pc.if_else(pc.equal(only, ""), form.quote * 2, only)
    return pc.binary_join_element_wise(*columns, form.separator)


def _spelt(column: pa.Array, form: CsvLines) -> pa.Array:
    """Values as they stand in the file; none is null."""
    is_empty = pc.equal(column, "")
    is_null = column.is_null()
    quoted = _quoted(column, form)
    if pc.any(is_empty).as_py():
        quoted = pc.if_else(pc.fill_null(is_empty, False), form.empty_value, quoted)
    return pc.if_else(is_null, form.null_value, quoted) if column.null_count else quoted


def _quoted(column: pa.Array, form: CsvLines) -> pa.Array:
    reasons = {"\r", "\n", form.line_end[0], form.separator[0]}
    reasons |= {form.quote} if form.escape_quotes else set()
    pattern = "[" + "".join(re.escape(each) for each in sorted(reasons)) + "]"
    needs = pc.match_substring_regex(column, pattern)
    if not form.quote_all and not pc.any(needs).as_py():
        return column
    escaped = column
    if form.escape != form.quote:
        escaped = pc.replace_substring(escaped, form.escape, form.escape * 2)
    escaped = pc.replace_substring(escaped, form.quote, form.escape + form.quote)
    escaped = pc.binary_join_element_wise(form.quote, escaped, form.quote, "")
    return escaped if form.quote_all else pc.if_else(needs, escaped, column)
