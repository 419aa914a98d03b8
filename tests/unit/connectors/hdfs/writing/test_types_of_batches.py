"""Batches of one file whose types differ: their values stay, or the batch is refused."""

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.hdfs.formats.choice import file_format
from sluice.connectors.hdfs.formats.parquet import Parquet
from sluice.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ([{"a": 1}], [{"a": 1, "b": 2}]),
        ([[{"a": 1, "b": 2}]], [[{"a": 1}]]),
        ([7], ["007"]),
        ([1.5], ["1.50"]),
        ([True], [5]),
        ([b"x"], [["x"]]),
        (["x"], [b"\xff"]),
    ],
    ids=["more fields", "fewer fields", "zeros", "digits", "truth", "list", "bytes"],
)
@pytest.mark.parametrize("form", ["parquet", "json", "avro"])
def test_a_batch_of_another_type_keeps_its_values_or_is_refused(
    form: str, first: list[Any], then: list[Any]
) -> None:
    """Arrow's own cast omits fields of a struct, and makes most values other values."""
    batch = pa.record_batch({"v": first})
    writer = file_format(form, {}).open(io.BytesIO(), batch.schema)
    writer.write(batch)
    with pytest.raises(ConfigError, match="column=v"):
        writer.write(pa.record_batch({"v": then}))
    writer.write(pa.record_batch({"v": pa.nulls(1)}))
    assert writer.close() == 2


_REQUIRED = pa.field("n", pa.decimal128(5, 2), nullable=False)


@pytest.mark.parametrize(
    ("kind", "value", "place"),
    [
        (pa.struct([_REQUIRED]), {"n": None}, "v.n"),
        (pa.list_(_REQUIRED), [None], "v.element"),
        (pa.map_(pa.string(), _REQUIRED), [("k", None)], "v.value"),
        (
            pa.map_(pa.string(), pa.list_(pa.struct([_REQUIRED]))),
            [("k", [{}])],
            "v.value.element.n",
        ),
    ],
    ids=["struct", "list", "map", "deep"],
)
@pytest.mark.parametrize("form", ["parquet", "json", "avro"])
def test_a_null_where_none_was_declared_is_named_at_any_depth(
    form: str, kind: pa.DataType, value: object, place: str
) -> None:
    """A null above it is none."""
    schema = pa.schema([("v", kind)])
    writer = file_format(form, {}).open(io.BytesIO(), schema)
    nothing = pa.array([None, value], kind).slice(0, 1)
    writer.write(pa.RecordBatch.from_arrays([nothing], schema=schema))
    with pytest.raises(ConfigError, match=rf"without nulls .*column={place} "):
        writer.write(pa.RecordBatch.from_arrays([pa.array([None, value], kind)], schema=schema))
    assert writer.close() == 1


@pytest.mark.parametrize("kind", [pa.list_view, pa.large_list_view])
def test_list_views_are_written_whole(kind: Callable[[pa.DataType], pa.DataType]) -> None:
    """Arrow's own cast empties the last list of a column."""
    values = [None, [{"n": [1, 2]}, None], [], [{"n": None}, {"n": [3]}]]
    batch = pa.record_batch({"v": pa.array(values, kind(pa.struct({"n": kind(pa.int16())})))})
    stream = io.BytesIO()
    writer = Parquet().open(stream, batch.schema)
    writer.write(batch.slice(1))
    assert writer.close() == 3
    assert pq.read_table(stream)["v"].to_pylist() == values[1:]
