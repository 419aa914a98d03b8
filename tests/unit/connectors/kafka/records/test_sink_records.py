"""Which columns a sink takes, and what becomes of their values."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.kafka.records.partitioner import by_partition
from sluice.connectors.kafka.records.rows import RecordColumns, check_spark_columns
from sluice.connectors.kafka.records.serde.record_json import JsonSerializer
from sluice.runtime.errors import ConfigError

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def listed(batch: pa.RecordBatch, name: str, *, topic: str | None = "out") -> list[Any]:
    """One argument of `produce`, for every row of the batch."""
    arguments = RecordColumns.of(batch.schema, topic).arguments(batch)
    column: Iterable[Any] = getattr(arguments, name)
    return list(islice(column, batch.num_rows))


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"v"] * 2), **columns})


def test_a_column_without_values_is_null() -> None:
    """Functions make such columns with ``pa.nulls``."""
    batch = rows(key=pa.nulls(2), partition=pa.nulls(2), headers=pa.nulls(2))
    assert listed(batch, "keys") == [None, None]
    assert listed(batch, "partitions") == [-1, -1]
    assert listed(batch, "headers") == [None, None]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_every_unit(unit: str) -> None:
    stamps = pa.array([datetime(2020, 1, 1, tzinfo=UTC), None], pa.timestamp(unit, "UTC"))
    assert listed(rows(timestamp=stamps), "timestamps_ms") == [1_577_836_800_000, 0]


def test_the_edges_of_kafkas_time() -> None:
    """-1 is Kafka's word for no timestamp; librdkafka's 0 means now, so 1970 begins 1 ms late."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    stamps = pa.array([epoch - timedelta(milliseconds=1), epoch], pa.timestamp("us", "UTC"))
    assert listed(rows(timestamp=stamps), "timestamps_ms") == [0, 1]


def test_a_time_before_1970_is_refused_by_name() -> None:
    """Java's producer refuses it too; the row is named."""
    early = datetime(1969, 1, 1, tzinfo=UTC)
    stamps = pa.array([None, early], pa.timestamp("us", "UTC"))
    with pytest.raises(ConfigError, match="row=1"):
        listed(rows(timestamp=stamps), "timestamps_ms")


def test_a_timestamp_column_of_another_type_is_somebody_elses() -> None:
    """Spark's sink ignores columns that it does not know; this name is ours alone."""
    assert listed(rows(timestamp=["noon", "midnight"]), "timestamps_ms") == [0, 0]


def test_headers_of_a_slice_belong_to_its_rows() -> None:
    batch = pa.record_batch(
        {
            "value": [b"%d" % n for n in range(4)],
            "headers": pa.array(
                [
                    [{"key": "a", "value": b"0"}],
                    None,
                    [],
                    [{"key": "b", "value": None}, {"key": "b", "value": b""}],
                ],
                HEADERS,
            ),
        }
    )
    assert listed(batch.slice(1), "headers") == [None, None, [("b", None), ("b", b"")]]
    assert listed(batch.slice(0, 2), "headers") == [[("a", b"0")], None]


def test_a_header_without_a_key_is_refused() -> None:
    """Kafka's protocol has no null header keys."""
    headers = pa.array([[{"key": None, "value": b"x"}], []], HEADERS)
    with pytest.raises(ConfigError, match="header without a key"):
        listed(rows(headers=headers), "headers")


def test_a_header_whose_name_would_be_truncated_is_refused_by_its_row() -> None:
    """confluent-kafka takes a name for a C string; the native path writes it as it is."""
    headers = pa.array(
        [[{"key": "a", "value": None}], None, [{"key": "b\0c", "value": b""}]], HEADERS
    )
    batch = pa.record_batch({"value": [b"v"] * 3, "headers": headers})
    with pytest.raises(ConfigError, match=r"null character .*column=headers row=2"):
        listed(batch, "headers")


def test_a_partition_beyond_kafkas_numbers_is_refused_by_its_row() -> None:
    """Functions make int64 columns; putting rows together comes first, and leaves them alone."""
    batch = rows(partition=pa.array([1, 2**40]))
    columns = RecordColumns.of(batch.schema, "out")
    with pytest.raises(ConfigError, match=r"partition.*row=1"):
        columns.arguments(*by_partition(batch, columns, 4))


def test_a_dictionary_of_partitions_is_a_column_like_any_other() -> None:
    """Arrow functions return them for columns with few values."""
    partitions = pa.array([1, None], pa.int32()).dictionary_encode()
    assert listed(rows(partition=partitions), "partitions") == [1, -1]


def test_rows_that_arrow_cannot_reorder_are_written_as_they_come() -> None:
    """Views have no ``take``; putting rows of a partition together is for speed alone."""
    values = pa.array([b"a", b"b", b"c"], pa.binary_view())
    batch = pa.record_batch({"value": values, "partition": pa.array([1, 0, 1], pa.int32())})
    columns = RecordColumns.of(batch.schema, "out")
    arguments = columns.arguments(*by_partition(batch, columns, 2))
    assert list(arguments.values) == [b"a", b"b", b"c"]
    assert list(arguments.partitions) == [1, 0, 1]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"value": pa.binary()}, "a topic is required"),
        ({"topic": pa.string()}, "column value is missing"),
        ({"topic": pa.int32(), "value": pa.binary()}, "topic must be of type string"),
        ({"topic": pa.string(), "value": pa.int64()}, "value must be of type string or binary"),
        (
            {"topic": pa.string(), "value": pa.binary(), "key": pa.float64()},
            "key must be of type string or binary",
        ),
        (
            {"topic": pa.string(), "value": pa.binary(), "partition": pa.string()},
            "partition must be of type int",
        ),
        (
            {"topic": pa.string(), "value": pa.binary(), "headers": pa.list_(pa.string())},
            "headers must be of type array",
        ),
    ],
)
def test_wrong_columns_are_named(schema: dict[str, pa.DataType], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RecordColumns.of(pa.schema(schema), None)


@pytest.mark.parametrize(
    ("schema", "topic", "words"),
    [
        ({"value": "string", "Key": "string"}, "out", r"column=Key .*sink_column=key.*Key AS key"),
        ({"VALUE": "string"}, "out", "sink_column=value"),
        ({"value": "string", "Topic": "string"}, None, "sink_column=topic"),
    ],
)
def test_a_column_in_another_case_is_not_left_out_without_a_word(
    schema: dict[str, str], topic: str | None, words: str
) -> None:
    """Spark calls it the same name. Without their keys, records of one key have no order."""
    with pytest.raises(ConfigError, match=words):
        check_spark_columns(schema, topic)


def test_a_column_in_another_case_that_means_nothing_to_the_sink_may_stay() -> None:
    """A topic beside the sink's own, a time, which Spark's sink knows no column for, and one that
    is there as it should be."""
    others = {"Topic": "string", "Timestamp": "string", "KEY": "bigint", "key": "string"}
    check_spark_columns({"value": "string", **others}, "out")


def test_spark_columns_are_checked_before_the_query_runs() -> None:
    """The drop-in knows the frame's schema; no task has to fail."""
    good = {"key": "binary", "value": "string", "partition": "int", "offset": "bigint"}
    check_spark_columns(good, "out")
    with pytest.raises(ConfigError, match="a topic is required"):
        check_spark_columns(good, None)
    with pytest.raises(ConfigError, match="partition must be of type int"):
        check_spark_columns({**good, "partition": "bigint"}, "out")


_AMBIGUOUS = "several columns have one name .*column={} "


def _with_two(name: str) -> pa.RecordBatch:
    names = ["value", name, name] if name != "value" else [name, name]
    return pa.RecordBatch.from_arrays([pa.array(["a"])] * len(names), names=names)


@pytest.mark.parametrize("name", ["value", "key", "headers", "timestamp", "topic"])
def test_two_columns_of_a_name_that_the_sink_reads_are_refused(name: str) -> None:
    """The first one was written, and the other one left out."""
    with pytest.raises(ConfigError, match=_AMBIGUOUS.format(name)):
        RecordColumns.of(_with_two(name).schema, None)


@pytest.mark.parametrize("name", ["other", "offset", "topic"])
def test_two_columns_that_the_sink_does_not_read_are_left_out(name: str) -> None:
    assert RecordColumns.of(_with_two(name).schema, "out").value == 0


def test_a_serializer_refuses_two_columns_of_its_name() -> None:
    """It said that there was none."""
    with pytest.raises(ConfigError, match=_AMBIGUOUS.format("value")):
        JsonSerializer()(_with_two("value"))
