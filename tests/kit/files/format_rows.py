"""Rows of every type that files hold, and which of them a format does not keep."""

import datetime
from decimal import Decimal

import pyarrow as pa

from sluice.connectors.hdfs.formats.choice import file_format
from sluice.connectors.hdfs.formats.file_format import FileFormat

_AT = datetime.datetime(2020, 7, 1, 12, 0, 0, 123456, datetime.UTC)
_ADA = {"name": "Ada", "seen": [_AT, None]}
_LONG_AGO = datetime.datetime(1890, 1, 1, 0, 0, 0, 999999, datetime.UTC)  # local mean times
_SUMMER_NIGHT = datetime.datetime(2021, 10, 31, 0, 30, tzinfo=datetime.UTC)  # clocks go back

TEXT_COLUMNS = (
    *("id", "byte", "short", "int", "float", "double", "flag", "text"),
    *("day", "instant", "local", "price", "tiny"),
)
"""What CSV has a spelling for."""

RFC_4180 = {"escape": '"'}
"""The option without which tasks write no CSV, and by which Spark reads it."""


def task_format(name: str, **options: str) -> FileFormat:
    """The format that tasks write, with the options that it needs."""
    return file_format(name, {**(RFC_4180 if name == "csv" else {}), **options})


def rows(
    *, long_ago: datetime.datetime = _LONG_AGO, first_day: datetime.date = datetime.date.min
) -> pa.RecordBatch:
    """Five rows: plain values, edges, nulls, emptiness, characters that need escapes.

    Args:
        long_ago: an instant before 1970, by default with a fraction of a second.
        first_day: an early day.
    """
    instant = pa.timestamp("us", tz="UTC")
    local = pa.timestamp("us")
    person = pa.struct(
        [pa.field("name", pa.string()), pa.field("seen", pa.list_(pa.field("element", instant)))]
    )
    columns: dict[str, tuple[pa.DataType, list[object]]] = {
        "id": (pa.int64(), [1, 2, 3, 4, -(2**63)]),
        "byte": (pa.int8(), [1, None, -128, 127, 0]),
        "short": (pa.int16(), [1, None, -(2**15), 2**15 - 1, 0]),
        "int": (pa.int32(), [1, None, -(2**31), 2**31 - 1, 0]),
        "float": (pa.float32(), [0.1, None, float("nan"), float("-inf"), 1e20]),
        "double": (pa.float64(), [1.0, None, float("inf"), 1e-300, 12345678.9]),
        "flag": (pa.bool_(), [True, None, False, True, False]),
        "text": (pa.string(), ["plain", None, 'a "quoted", \\ value', "日本語 è 🙂", " x\t#'"]),
        "blob": (pa.binary(), [b"\x00\xff", None, b"", b"abc", "è".encode()]),
        "day": (
            pa.date32(),
            [_AT.date(), None, first_day, datetime.date(9999, 12, 31), _LONG_AGO.date()],
        ),
        "instant": (instant, [_AT, None, long_ago, _SUMMER_NIGHT, _AT.replace(microsecond=0)]),
        "local": (
            local,
            [_naive(_AT), None, _naive(_LONG_AGO), _naive(_SUMMER_NIGHT), _naive(_AT)],
        ),
        "price": (
            pa.decimal128(9, 2),
            [Decimal("1.50"), None, Decimal("-0.01"), Decimal("9999999.99"), Decimal(0)],
        ),
        "tiny": (
            pa.decimal128(38, 18),
            [Decimal("1e-18"), None, Decimal("-1"), Decimal("99999999999999999999"), Decimal(0)],
        ),
        "numbers": (pa.list_(pa.field("element", pa.int64())), [[1, None], None, [], [3], [4, 5]]),
        "nested": (
            pa.list_(pa.field("element", pa.list_(pa.field("element", pa.string())))),
            [[["a", None], None, []], None, [], [["b"]], [["è"]]],
        ),
        "person": (
            person,
            [
                {"name": "Ada", "seen": [_AT, None]},
                None,
                {"name": None, "seen": None},
                {"name": "ü", "seen": []},
                {"name": "", "seen": [long_ago]},
            ],
        ),
        "persons": (
            pa.list_(pa.field("element", person)),
            [[_ADA, None], None, [], [_ADA], [None]],
        ),
        "deep": (
            pa.struct([pa.field("inner", pa.struct([pa.field("price", pa.decimal128(12, 3))]))]),
            [
                {"inner": {"price": Decimal("1.250")}},
                None,
                {"inner": None},
                {"inner": {"price": None}},
                {"inner": {"price": Decimal("-7.000")}},
            ],
        ),
        "counts": (
            pa.map_(pa.string(), pa.int64()),
            [[("a", 1), ("b", None)], None, [], [("日本", 2)], [('"', 3)]],
        ),
    }
    return pa.record_batch(
        {name: pa.array(values, kind) for name, (kind, values) in columns.items()}
    )


def _naive(at: datetime.datetime) -> datetime.datetime:
    return at.replace(tzinfo=None)
