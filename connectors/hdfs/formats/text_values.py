"""What text formats share: values as strings and rows as lines, a whole column at once. Pure."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sluice.connectors.hdfs.formats.temporal import TemporalFormat
from sluice.connectors.hdfs.formats.valid_text import valid_text

__all__ = ["PORTION_BYTES", "lines_of", "plain_text"]

PORTION_BYTES = 16 << 20
"""Of a batch at once: a string column of Arrow holds 2 GiB, and text is longer than values."""


def plain_text(column: pa.Array, temporal: TemporalFormat) -> pa.Array:
    """Numbers, booleans, dates, timestamps and strings as Spark spells them; null stays null."""
    kind = column.type
    if kinds.is_string(kind):
        return valid_text(column)
    if kinds.is_date(kind):
        return temporal.of_dates(column)
    if kinds.is_timestamp(kind):
        return temporal.of_timestamps(column)
    if kinds.is_floating(kind):
        return _floats(column)
    return column.cast(pa.string())


def lines_of(rows: pa.Array, end: str) -> memoryview:
    """The bytes of all lines; ``rows`` has no nulls."""
    ended = pc.binary_join_element_wise(rows, pa.scalar(end), "")
    _, offsets, values = ended.buffers()
    if values is None:
        return memoryview(b"")
    bounds = memoryview(offsets).cast("i")
    first, last = bounds[ended.offset], bounds[ended.offset + len(ended)]
    return memoryview(values)[first:last]


def _floats(column: pa.Array) -> pa.Array:
    """As Java spells them, but for the exponent: 1.0, 1e+20, NaN, -Infinity."""
    spelt = column.cast(pa.string())
    whole = pc.match_substring_regex(spelt, r"^-?\d+$")
    if pc.any(whole).as_py():
        spelt = pc.if_else(whole, pc.binary_join_element_wise(spelt, ".0", ""), spelt)
    if pc.any(pc.invert(pc.is_finite(column))).as_py():
        spelt = pc.replace_substring(spelt, "nan", "NaN")
        spelt = pc.replace_substring(spelt, "inf", "Infinity")
        spelt = pc.replace_substring(spelt, "-NaN", "NaN")
    return spelt
