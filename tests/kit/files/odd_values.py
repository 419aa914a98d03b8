"""Odd but legal values of every type, and how a reader's are compared with them."""

from collections.abc import Mapping
from decimal import Decimal
from typing import cast

import pyarrow as pa

from sluice.connectors.hdfs.formats.python_values import numbers_for_times
from sluice.connectors.hdfs.formats.spark_types import recast, spark_schema, with_leaves

__all__ = ["FAR", "INSTANT", "LOCAL", "NESTED", "cells", "odd"]

INSTANT, LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])
DEEP, DEEPEST = pa.int32(), cast(object, 7)
for _ in range(20):
    DEEP, DEEPEST = pa.list_(DEEP), [DEEPEST]

# Years 1 to 9999, which every reader has, beyond those of nanoseconds.
DAYS = [-719_162, -141_427, 2_932_896]
MICROS = [-62_135_596_800_000_000, 253_402_300_799_999_999, 9_300_000_000_000_000, -(10**16)]
FAR_DAYS, FAR_MICROS = [4_000_000, -800_000], [345_600_000_000_000_001, -69_120_000_000_000_001]

ODD: Mapping[str, tuple[pa.DataType, list[object]]] = {
    "text": (pa.string(), ["", " ", "null", "\ufeff\u2028é", "\U0001f600", "\r\n", '",\\']),
    "nul": (pa.string(), ["\0", "a\0b"]),
    "long": (pa.string(), ["x" * 300_000]),
    "blob": (pa.binary(), [b"", b"\0", b"\xff\xfe", bytes(range(256))]),
    "tiny": (pa.int8(), [-128, 127]),
    "big": (pa.int64(), [-(2**63), 2**63 - 1]),
    "unsigned": (pa.uint64(), [0, 2**64 - 1]),
    "flag": (pa.bool_(), [True, False]),
    "float": (pa.float32(), [float("nan"), float("-inf"), -0.0, 1e-45, 3.4028234663852886e38]),
    "double": (pa.float64(), [float("nan"), float("inf"), -0.0, 5e-324, 1.7976931348623157e308]),
    "whole": (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(1 - 10**38)]),
    "fraction": (pa.decimal128(38, 38), [Decimal(1).scaleb(-38), Decimal(-1).scaleb(-38)]),
    "digit": (pa.decimal128(1, 0), [Decimal(9), Decimal(-9)]),
    "day": (pa.date32(), DAYS),
    "instant": (INSTANT, MICROS),
    "local": (LOCAL, MICROS),
    "gap": (pa.date32(), [-141_428]),  # no day of the calendar that ORC writes dates in
    "eve": (INSTANT, [-1]),
    "far_day": (pa.date32(), FAR_DAYS),
    "far_instant": (INSTANT, FAR_MICROS),
    "far_local": (LOCAL, FAR_MICROS),
    "list": (pa.list_(pa.int32()), [[], [None], [1, None]]),
    "lists": (pa.list_(pa.list_(pa.string())), [[], [None], [[]], [[""], [None]]]),
    "deep": (DEEP, [DEEPEST, [], [[]]]),
    "pair": (PAIR, [{"a": None, "b": None}, {"a": 1, "b": ""}]),
    "pairs": (pa.list_(PAIR), [[], [None], [{"a": None, "b": None}]]),
    "inner": (pa.struct([("in", PAIR)]), [{"in": None}, {"in": {"a": None, "b": None}}]),
    "map": (pa.map_(pa.string(), pa.int32()), [[], [("", None)], [("k", 1), ("\U0001f600", 2)]]),
    "twice": (pa.map_(pa.string(), pa.int32()), [[("k", 1), ("j", 2), ("k", 3)]]),
    "maps": (pa.map_(pa.string(), pa.map_(pa.string(), PAIR)), [[("a", []), ("b", None)]]),
}
NESTED = [name for name, (kind, _) in ODD.items() if pa.types.is_nested(kind)]
FAR = [name for name in ODD if name.startswith("far_")]


def odd(*without: str) -> pa.RecordBatch:
    """A column of each, with nulls around the values."""
    rows = max(len(values) for _, values in ODD.values()) + 2
    columns = {}
    for name, (kind, values) in ODD.items():
        if name not in without:
            padded = [None, *values, *[None] * (rows - 1 - len(values))]
            stored = numbers_for_times(pa.field("", kind)).type
            columns[name] = pa.array(padded, stored).cast(kind)
    return pa.record_batch({"id": pa.array(range(rows), pa.int64()), **columns})


def cells(found: pa.Table | pa.RecordBatch, like: pa.RecordBatch) -> dict[str, list[str]]:
    """Values by column, in order of ``id``; dates and timestamps as numbers, NaN as its text."""
    schema = spark_schema(like.schema)
    table = found if isinstance(found, pa.Table) else pa.Table.from_batches([found])
    table = table.select(schema.names).sort_by("id").cast(schema)
    (batch,) = table.combine_chunks().to_batches()
    numbers = recast(batch, with_leaves(schema, numbers_for_times))
    return {name: [repr(v) for v in numbers[name].to_pylist()] for name in schema.names}
