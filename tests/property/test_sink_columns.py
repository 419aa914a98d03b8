"""Rows of any Arrow types for a Kafka sink: arguments of ``produce``, or an error of ours."""

import datetime
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.connectors.kafka.records.rows import RecordColumns
from sluice.runtime.errors import ConfigError, StreamError
from tests.kit.effort import examples

_WHOLE = [pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()]
_NAMES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
_CONTENTS = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)]
_ODD = [pa.bool_(), pa.float64(), pa.date32(), pa.decimal128(5, 2), pa.null()]


def _lists(item: pa.DataType) -> list[pa.DataType]:
    return [pa.list_(item), pa.large_list(item), pa.list_(item, 2), pa.list_view(item)]


_HEADERS = [
    made
    for key, value in [
        *((name, content) for name in _NAMES for content in _CONTENTS),
        (pa.binary(), pa.binary()),
        (pa.string(), pa.string()),
    ]
    for made in _lists(pa.struct([("key", key), ("value", value)]))
] + _lists(pa.struct([("value", pa.binary()), ("key", pa.string())]))
_STAMPS = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")]
_COLUMNS = {
    "topic": [*_NAMES, *_CONTENTS, *_ODD],
    "key": [*_NAMES, *_CONTENTS, *_ODD],
    "value": [*_NAMES, *_CONTENTS, *_ODD],
    "partition": [*_WHOLE, *_ODD, pa.dictionary(pa.int8(), pa.uint32())],
    "timestamp": [*_STAMPS, *_ODD, pa.int64()],
    "headers": [*_HEADERS, *_ODD, pa.map_(pa.string(), pa.binary())],
}


def _of(kind: pa.DataType) -> st.SearchStrategy[Any]:  # noqa: C901 - one line a type
    """Values of a type, or None."""
    types = pa.types
    if types.is_dictionary(kind):
        return _of(kind.value_type)
    if types.is_integer(kind):
        bits = kind.bit_width - types.is_signed_integer(kind)
        least = -(2**bits) if types.is_signed_integer(kind) else 0
        return st.none() | st.integers(0, 3) | st.integers(least, 2**bits - 1)
    if types.is_timestamp(kind):
        return st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)
    if types.is_map(kind):
        return st.none() | st.just([("a", b"b")])
    if types.is_struct(kind):
        values = {field.name: _of(field.type) for field in kind}
        return st.none() | st.fixed_dictionaries(values)
    if types.is_fixed_size_list(kind):
        return st.none() | st.lists(_of(kind.value_type), min_size=2, max_size=2)
    if types.is_nested(kind):
        return st.none() | st.lists(_of(kind.value_type), max_size=2)
    if types.is_fixed_size_binary(kind):
        return st.none() | st.binary(min_size=2, max_size=2)
    if "binary" in str(kind):
        return st.none() | st.binary(max_size=4)
    if "string" in str(kind):
        return st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
    return st.none() | _odd(kind)


def _odd(kind: pa.DataType) -> st.SearchStrategy[Any]:
    values = {"bool": True, "double": 1.5, "date32[day]": datetime.date(2020, 1, 1), "null": None}
    return st.just(values.get(str(kind)))


@st.composite
def _batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Some of the columns, a few rows, and perhaps a slice of them."""
    count = draw(st.integers(0, 4))
    columns = {}
    for name, kinds in _COLUMNS.items():
        if draw(st.booleans()):
            kind = draw(st.sampled_from(kinds))
            values = draw(st.lists(_of(kind), min_size=count, max_size=count))
            columns[name] = pa.array(values, kind)
    if not columns:
        columns["value"] = pa.array([b"v"] * count, pa.binary())
    made = pa.record_batch(columns)
    return made.slice(draw(st.integers(0, count)))


_WITH_HEADERS = pa.record_batch(
    {
        "value": [b"v", b"v", b"v"],
        "headers": pa.array(
            [[("a", b"b"), ("a", None)], [], None],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    }
)
_NULL_PARTITION = pa.record_batch(
    {"value": [b"v", b"v"], "partition": pa.array([1, None], pa.uint32())}
)
_FAR_FUTURE = pa.record_batch(
    {"value": [b"v"], "timestamp": pa.array([2**61 + 1], pa.timestamp("s"))}
)


@settings(max_examples=examples(200))
@given(batch=_batches(), topic=st.sampled_from([None, "out"]))
@example(batch=_NULL_PARTITION, topic="out")
@example(batch=_WITH_HEADERS, topic="out")
def test_rows_become_arguments_or_an_error_of_ours(
    batch: pa.RecordBatch, topic: str | None
) -> None:
    """As many of each as there are rows, and of the types that ``produce`` takes."""
    try:
        made = RecordColumns.of(batch.schema, topic).arguments(batch)
    except StreamError:
        return
    rows = batch.num_rows
    assert len(made.values) == rows
    for values, kind in (
        (made.topics, str),
        (made.keys, bytes | None),
        (made.values, bytes | None),
        (made.partitions, int),
        (made.timestamps_ms, int),
    ):
        assert all(isinstance(value, kind) for value in islice(values, rows))
    assert all(-1 <= number < 2**31 for number in islice(made.partitions, rows))
    assert all(0 <= stamp < 2**63 for stamp in islice(made.timestamps_ms, rows))
    for headers in islice(made.headers, rows):
        for name, content in headers or ():
            assert isinstance(name, str)
            assert isinstance(content, bytes | None)


def test_a_time_that_kafka_cannot_count_is_refused() -> None:
    with pytest.raises(ConfigError, match="timestamp"):
        RecordColumns.of(_FAR_FUTURE.schema, "out").arguments(_FAR_FUTURE)


def test_a_null_partition_of_an_unsigned_column_goes_by_the_key() -> None:
    made = RecordColumns.of(_NULL_PARTITION.schema, "out").arguments(_NULL_PARTITION)
    assert list(made.partitions) == [1, -1]
