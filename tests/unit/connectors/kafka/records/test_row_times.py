"""Where a Kafka record's event time is."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from sluice import BoundedOutOfOrderness, EventTime, Header, JsonDeserializer, KafkaSource
from sluice.connectors.kafka.records.row_times import KafkaRowTimes, columns_for
from sluice.runtime.contracts import TimedSource
from sluice.runtime.errors import ConfigError

UTC = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def times(of: Any, **columns: Any) -> list[int | None]:
    found: list[int | None] = KafkaRowTimes(of=of)(batch(**columns)).to_pylist()
    return found


def headers(*rows: list[tuple[str, bytes | None]] | None) -> pa.Array:
    return pa.array(
        [None if row is None else [{"key": k, "value": v} for k, v in row] for row in rows], HEADERS
    )


def test_kafkas_timestamp_is_a_time_and_a_record_without_one_has_none() -> None:
    assert times("kafka", timestamp=pa.array([1_999, None, -1_000], UTC)) == [1, None, None]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([1_999_999, None], pa.timestamp("ns")), [1, None]),
        (pa.array([7], pa.timestamp("s")), [7_000]),
        (pa.array([7], pa.timestamp("ms")), [7]),
        (pa.array([dt.date(1970, 1, 2)]), [86_400_000]),
        (pa.array([5, None], pa.int64()), [5, None]),
        (pa.nulls(2), [None, None]),
        (pa.array([-(2**63), 2**63 - 1, -(2**53)], pa.int64()), [None, None, -(2**53)]),
        (pa.array([2**64 - 1, 5], pa.uint64()), [None, 5]),
        (pa.array([2**62, -(2**63), 1], pa.timestamp("s")), [None, None, 1_000]),
        (pa.array([-(2**63), 2**63 - 1], pa.timestamp("ms")), [None, None]),
        (pa.array([-(2**63)], pa.timestamp("ns")), [-9_223_372_036_855]),
    ],
)
def test_a_column_of_any_type_of_a_time_is_read_in_milliseconds(
    values: pa.Array, expected: list[int | None]
) -> None:
    assert times("at", at=values) == expected
    assert times(lambda rows: rows.column("at"), at=values) == expected


def test_a_field_of_a_struct_is_named_by_its_path() -> None:
    assert times("value.at", value=pa.array([{"at": 3}, None])) == [3, None]


def test_the_last_header_counts_and_a_value_that_is_no_number_gives_no_time() -> None:
    of = headers([("at", b"1"), ("at", b"22")], [("at", b"soon")], None, [("x", b"1")])
    assert times(Header("at"), headers=of) == [22, None, None, None]
    assert times(Header("at"), headers=headers([("at", b"\xff\xfe")], [("at", b"4")])) == [None, 4]
    binary = headers([("at", (7).to_bytes(8, "big", signed=True))], [("at", b"7")], [("at", None)])
    assert times(Header("at", "int64"), headers=binary) == [7, None, None]
    least = headers([("at", (-(2**63)).to_bytes(8, "big", signed=True))], [("at", b"9" * 18)])
    assert times(Header("at", "int64"), headers=least) == [None, None]
    assert times(Header("at"), headers=least) == [None, None]
    assert times(Header("at"), headers=headers([], [])) == [None, None]


@pytest.mark.parametrize(
    ("of", "columns"),
    [
        ("at", {"at": ["1970-01-01"]}),
        ("at", {"when": [1]}),
        ("value.at", {"value": [1]}),
        (lambda rows: [1], {"at": [1]}),
        (lambda rows: pa.array([1, 2]), {"at": [1]}),
    ],
)
def test_values_that_are_no_times_are_refused(of: Any, columns: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        times(of, **columns)


def test_the_columns_that_time_needs_survive_pruning() -> None:
    source = KafkaSource(bootstrap_servers="b:9092", topics=["in"], time=EventTime("kafka"))
    narrowed = source.narrowed({"value"})
    for name in ("value", "topic", "partition", "offset", "timestamp"):
        assert name in narrowed.schema_ddl()
    assert isinstance(narrowed, TimedSource)
    assert "headers" not in narrowed.schema_ddl()


def made(**settings: Any) -> KafkaSource:
    return KafkaSource(bootstrap_servers="b:9092", topics=["in"], **settings)


@pytest.mark.parametrize(
    "make",
    [
        lambda: made(time=EventTime(Header("at")), include_headers=False),
        lambda: made(time=EventTime("kafka"), columns=["key", "value"]),
        lambda: made(time=EventTime("at")),
    ],
)
def test_a_source_that_does_not_read_the_time_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="event time needs a column"):
        make()


def test_a_function_may_read_every_column() -> None:
    time = EventTime(lambda rows: rows["value"])
    read = ["value", "topic", "partition", "offset"]
    assert columns_for(time, read) == ("topic", "partition", "offset", "value")
    assert columns_for(None, ["value"]) == ()
    deserialized = made(
        time=EventTime("value.at"),
        value_deserializer=JsonDeserializer(schema=pa.schema([("at", pa.int64())])),
    )
    assert deserialized.event_time == EventTime("value.at")


@pytest.mark.parametrize("time", ["kafka", BoundedOutOfOrderness("5 s"), EventTime])
def test_a_time_that_is_no_event_time_is_refused_with_the_call_to_write(time: Any) -> None:
    with pytest.raises(ConfigError, match=r"no EventTime .*Write time=EventTime"):
        KafkaSource(bootstrap_servers="b:9092", topics=["orders"], time=time)
