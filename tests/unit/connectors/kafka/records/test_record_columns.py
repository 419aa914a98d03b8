"""Kafka messages as columns, and the partition of a key."""

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Message
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from sluice.connectors.kafka.records.columns import (
    ColumnBuilder,
    columns_with,
    schema_ddl,
    schema_of,
    times_of,
)
from sluice.connectors.kafka.records.partitioner import partition_for_key
from sluice.connectors.kafka.tools.verify.topic_history import record_of
from sluice.runtime.checker import Record
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.state.key_groups import murmur2

Rows = list[dict[str, Any]]


def build(columns: tuple[str, ...], *messages: Message, topics: tuple[str, ...] = ("t",)) -> Rows:
    builder = ColumnBuilder(columns, [(topic, 3) for topic in topics])
    slots = np.array([topics.index(m.topic()) for m in messages], np.int64)
    offsets = np.array([m.offset() for m in messages], np.int64)
    rows: Rows = builder.build(messages, slots, offsets).to_pylist()
    return rows


def message(**fields: Any) -> Message:
    return Message(**{"topic": "t", "partition": 3, "offset": 7, "timestamp": (1, 5), **fields})


def test_headers_are_kept_in_order_repeated_and_null() -> None:
    """A record without headers has null there, as in Spark."""
    rows = build(
        ("headers",),
        message(headers=[("a", b"1"), ("a", b"1"), ("b", None), ("", b"")]),
        message(headers=None),
        message(headers=[("z", b"\xff")]),
    )
    assert rows == [
        {
            "headers": [
                {"key": "a", "value": b"1"},
                {"key": "a", "value": b"1"},
                {"key": "b", "value": None},
                {"key": "", "value": b""},
            ]
        },
        {"headers": None},
        {"headers": [{"key": "z", "value": b"\xff"}]},
    ]
    assert build(("headers",), message(headers=None)) == [{"headers": None}]


class Damaged:
    """A message with a header whose name is not UTF-8."""

    topic, partition, offset = (lambda _: "t"), (lambda _: 3), (lambda _: 7)
    key, value, timestamp = (lambda _: b"k"), (lambda _: b"v"), (lambda _: (1, 5))

    def headers(self) -> None:
        raise SystemError("returned a result with an exception set")


def test_a_header_name_that_is_not_utf_8_is_an_error_that_names_the_record() -> None:
    builder = ColumnBuilder(("headers",), [("t", 3)])
    with pytest.raises(ConfigError, match=r"topic=t .*offset=7"):
        builder.build([Damaged()], np.zeros(1, np.int64), np.array([7]))
    with pytest.raises(ConfigError, match=r"topic=t .*offset=7"):
        record_of(Damaged())  # as the checker reads it


def test_where_no_headers_are_compared_a_record_with_unreadable_ones_has_none() -> None:
    found = record_of(Damaged(), need_headers=False)
    assert found == Record("t", 3, 7, b"k", b"v", (), 5)
    readable = message(headers=[("a", b"1")])
    assert record_of(readable, need_headers=False).headers == (("a", b"1"),)


def test_timestamps_have_javas_type_numbers() -> None:
    rows = build(
        ("timestamp", "timestampType"),
        message(timestamp=(1, 1_700_000_000_123)),
        message(timestamp=(2, 0)),
    )
    moment = datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, datetime.UTC)
    assert rows[0] == {"timestamp": moment, "timestampType": 0}
    assert rows[1]["timestampType"] == 1


def test_topic_partition_and_offset_belong_to_each_record() -> None:
    rows = build(
        ("topic", "partition", "offset"),
        message(topic="b", offset=1),
        message(topic="a", offset=2),
        topics=("a", "b"),
    )
    assert rows == [
        {"topic": "b", "partition": 3, "offset": 1},
        {"topic": "a", "partition": 3, "offset": 2},
    ]
    assert build(("topic",), message())[0] == {"topic": "t"}


def test_only_the_wanted_columns_are_made_in_their_order() -> None:
    assert list(build(("value", "key"), message(key=b"k", value=b"v"))[0]) == ["value", "key"]
    with pytest.raises(ConfigError, match="valeu"):
        schema_of(["valeu"])


def test_batches_of_different_sizes_repeat_the_topic_right() -> None:
    builder = ColumnBuilder(("topic",), [("t", 0)])
    for count in (3, 1, 5):
        batch = builder.build(
            [message()] * count, np.zeros(count, np.int64), np.zeros(count, np.int64)
        )
        assert batch.column(0) == pa.array(["t"] * count)


def test_a_time_beyond_what_spark_can_count_is_the_last_one_that_it_can() -> None:
    times_ms = np.array([5, 1_753_000_000_000_000_000, -(2**62), -1])
    found = times_of(np.array([1, 1, 1, 0]), times_ms)["timestamp"].cast(pa.int64()).to_pylist()
    most = (2**63 - 1) // 1000 * 1000
    assert found == [5_000, most, -most, -1_000]


# From org.apache.kafka.common.utils.UtilsTest of Apache Kafka; the last two from running it.
GOLDEN = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
    (b"", 275646681),
    (bytes(range(128, 256)), 872916902),
]


@pytest.mark.parametrize(("data", "signed"), GOLDEN)
def test_murmur2_equals_javas(data: bytes, signed: int) -> None:
    """Golden vectors of the Java implementation."""
    assert murmur2(data) == signed & 0xFFFFFFFF


@pytest.mark.parametrize(("data", "signed"), GOLDEN)
def test_the_partition_is_javas(data: bytes, signed: int) -> None:
    """``Utils.toPositive(murmur2(key)) % partitions``."""
    assert partition_for_key(data, 7) == (signed & 0x7FFFFFFF) % 7


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(ConfigError):
        partition_for_key(b"a", 0)


@pytest.mark.parametrize("headers", [True, False])
def test_schema_is_the_one_spark_expects_of_its_kafka_source(headers: bool) -> None:
    wanted = (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
    )
    if headers:
        header = StructType().add("key", StringType()).add("value", BinaryType())
        wanted = wanted.add("headers", ArrayType(header))
    columns = columns_with(headers=headers)
    assert schema_of(columns).equals(to_arrow_schema(wanted, timezone="UTC"))
    kinds = [(f.name, f.dataType.simpleString()) for f in wanted.fields]
    # A session may take "timestamp" for one without a zone, and have reserved "offset".
    in_every_session = {"timestamp": "timestamp_ltz"}
    assert schema_ddl(columns) == ", ".join(
        f"`{name}` {in_every_session.get(kind, kind)}" for name, kind in kinds
    )
