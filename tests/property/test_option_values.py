"""Options, memory settings, columns and groups with any values."""

import contextlib
import datetime
from collections import defaultdict
from collections.abc import Mapping
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice import KafkaSink, KafkaSource
from sluice.connectors.hdfs.file_drop_in import FileDropIn
from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.client_tuning import (
    batch_settings,
    claimed_by_reader,
    claimed_by_writer,
    read_settings,
    write_settings,
)
from sluice.connectors.kafka.client.confluent import make_consumer
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.records.partitioner import (
    by_partition,
    partition_for_key,
    partitions_for_keys,
)
from sluice.connectors.kafka.records.rows import RecordColumns
from sluice.connectors.kafka.source.source_options import SOURCE_OPTIONS, SourceOptions
from sluice.runtime.errors import ConfigError, StreamError
from sluice.runtime.model.task_memory import TaskMemory
from tests.kit.effort import examples
from tests.kit.mutations import json_texts

_SINK_OPTIONS = (
    *("guarantee", "hotPath", "taskMemoryMiB", "topic", "transactionalIdPrefix"),
    "transactionTimeout",
)
_FILE_OPTIONS = (
    *("path", "fileFormat", "partitionBy", "compression", "header", "name", "guarantee"),
    *("timeZone", "encoding"),
)
_HUGE = "9" * 400
_VALUES = st.one_of(
    st.text(max_size=12),
    json_texts,
    st.sampled_from(
        [
            *("", " ", "-1", "0", "1e3", "nan", "inf", "true", "latest", "earliest", "committed"),
            *(_HUGE, "9" * 5000, f"{_HUGE}ms", f"{_HUGE}us", "٣", "²", "\0", "\ud800", "[" * 5000),
            *('{"t": {"0": 1}}', '{"t": {"0": 1e999}}', '{"t": [0, 1]}', '{"t": {"0": -3}}'),
            *("10s", "500ms", "15m", "(", "(a+)+$", "a,b", ",", "exactly-once", "none"),
        ]
    ),
)
_KAFKA_OPTIONS = (
    *("kafka.group.id", "kafka.isolation.level", "kafka.security.protocol", "kafka.acks"),
    *("kafka.sasl.jaas.config", "kafka.sasl.mechanism", "kafka.fetch.min.bytes"),
    *("kafka.linger.ms", "kafka.compression.type", "kafka.queued.max.messages.kbytes"),
    *("kafka.fetch.max.bytes", "kafka.batch.size", "kafka.bootstrap.servers", "kafka."),
)
_SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}


def some_of(*names: str) -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(st.sampled_from(names), _VALUES, max_size=4)


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@settings(max_examples=examples(80))
@given(given_options=some_of(*SOURCE_OPTIONS, *_KAFKA_OPTIONS))
@example(given_options={"maxTriggerDelay": f"{_HUGE}us"})
@example(given_options={"kafkaConsumer.pollTimeoutMs": _HUGE})
@example(given_options={"partitionDiscoveryIntervalMs": _HUGE})
@example(given_options={"startingOffsets": '{"t": ' + "[" * 100_000})
@example(given_options={"startingOffsets": '{"t": {"' + "9" * 5000 + '": 1}}'})
@example(given_options={"taskMemoryMiB": "9" * 5000})
def test_options_of_a_source(
    given_options: Mapping[str, str], *, bounded: bool, stream: bool
) -> None:
    found = {"subscribe": "in", **_SERVERS, **given_options}
    if {"assign", "subscribePattern"} & set(given_options):
        del found["subscribe"]
    with contextlib.suppress(StreamError):
        made = SourceOptions.of(found, bounded=bounded, stream=stream)
        assert 0 < made.no_progress_timeout_s < float("inf")
        assert 0 <= made.max_trigger_delay_s < float("inf")


@settings(max_examples=examples(80))
@given(options=some_of(*SOURCE_OPTIONS, *_KAFKA_OPTIONS))
def test_options_of_a_jobs_source(options: Mapping[str, str]) -> None:
    with contextlib.suppress(StreamError):
        KafkaSource(bootstrap_servers="127.0.0.1:1", topics=["in"], options=options)


@settings(max_examples=examples(80))
@given(options=some_of(*_SINK_OPTIONS, *_KAFKA_OPTIONS))
@example(options={"transactionTimeout": _HUGE})
@example(options={"transactionTimeout": "9" * 5000})
@example(options={"taskMemoryMiB": "9" * 5000})
def test_options_of_a_sink(options: Mapping[str, str]) -> None:
    with contextlib.suppress(StreamError):
        made = KafkaSink.from_options({"transactionalIdPrefix": "p", **_SERVERS, **options})
        made.writer_factory()
        assert made.settings()


@given(
    timeout_s=st.floats() | st.sampled_from([float("nan"), float("inf"), -1.0, 10.0**300]),
    options=some_of(*_KAFKA_OPTIONS),
)
@example(timeout_s=float("nan"), options={})
@example(timeout_s=float("inf"), options={})
def test_arguments_of_a_jobs_sink(timeout_s: float, options: Mapping[str, str]) -> None:
    """A timeout that is a number, and is short enough to be reported to a broker."""
    with contextlib.suppress(StreamError):
        made = KafkaSink(
            bootstrap_servers="127.0.0.1:1",
            topic="out",
            transactional_id_prefix="p",
            transaction_timeout_s=timeout_s,
            options=options,
        )
        assert made.settings()
        assert 1 <= timeout_s * 1000 < 2**31


@settings(max_examples=examples(80))
@given(options=some_of(*_FILE_OPTIONS))
def test_options_of_files(options: Mapping[str, str]) -> None:
    with contextlib.suppress(StreamError):
        FileDropIn.from_options({"path": "/data/out", **options}, session_zone="UTC")


@settings(max_examples=examples(60))
@given(
    name=st.sampled_from(
        [
            *("fetch.min.bytes", "security.protocol", "client.id", "socket.timeout.ms"),
            *("ssl.ca.location", "debug", "sasl.mechanism", "queued.min.messages"),
        ]
    ),
    value=_VALUES,
)
@example(name="client.id", value="\ud800")
def test_what_librdkafka_refuses_is_an_error_of_ours(name: str, value: str) -> None:
    """Its own settings have bounds that only it knows."""
    with contextlib.suppress(StreamError):
        connection = KafkaConnection(bootstrap_servers="127.0.0.1:1", options={name: value})
        consumer: Any = make_consumer({**connection.librdkafka(Role.CONSUMER), "group.id": "g"})
        consumer.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxTriggerDelay", f"{_HUGE}us"),
        ("kafkaConsumer.pollTimeoutMs", _HUGE),
        ("startingTimestamp", _HUGE),
        ("startingOffsets", '{"in": {"0": 9223372036854775808}}'),
    ],
)
def test_a_number_that_no_client_takes_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        SourceOptions.of({"subscribe": "in", **_SERVERS, name: value}, bounded=False, stream=True)


MIB = st.integers(64, 65_536)
KEPT_BYTES = 48 << 20
_COPIES_IN_FLIGHT = 16

READING = st.fixed_dictionaries(
    {},
    optional={
        "queued.max.messages.kbytes": st.integers(1, 200_000),
        "queued.min.messages": st.integers(1, 1_000_000),
        "fetch.max.bytes": st.integers(1_000_000, 200_000_000),
        "max.partition.fetch.bytes": st.integers(1, 50_000_000),
        "message.max.bytes": st.integers(1_000, 50_000_000),
    },
)
WRITING = st.fixed_dictionaries(
    {},
    optional={
        "queue.buffering.max.kbytes": st.integers(1, 500_000),
        "queue.buffering.max.messages": st.integers(1, 1_000_000),
        "message.max.bytes": st.integers(1_000, 50_000_000),
    },
)


@example(mib=64, sinks=1, reading={"message.max.bytes": 1_392_056}, writing={})
@example(mib=256, sinks=1, reading={"message.max.bytes": 18_173_453}, writing={})
@example(mib=128, sinks=0, reading={"message.max.bytes": 12_229_604}, writing={})
@given(mib=MIB, sinks=st.integers(0, 4), reading=READING, writing=WRITING)
def test_everything_together_fits_or_is_refused_by_name(
    mib: int, sinks: int, reading: dict[str, Any], writing: dict[str, Any]
) -> None:
    """A consumer, a producer for each sink, and the copies of a batch: below the bound, with the
    user's own settings counted; these themselves are never changed."""
    claimed = claimed_by_reader(reading) + sinks * claimed_by_writer(writing)
    try:
        memory = TaskMemory.of_mib(mib, claimed_bytes=claimed, sinks=sinks)
        source = read_settings(memory, reading)
        sink = write_settings(memory, writing) if sinks else None
    except ConfigError:
        largest = max(
            int(reading.get("message.max.bytes", 1_000_000)),
            int(writing.get("message.max.bytes", 1_048_576)),
        )
        queue_kib = writing.get("queue.buffering.max.kbytes", 500_000)
        if sinks and queue_kib < writing.get("message.max.bytes", 0) // 1024:
            return  # a queue for less than one message
        # Only where there is no room: a sixteenth of what is left takes no message.
        assert max(0, (mib << 20) - KEPT_BYTES - claimed) // 16 < max(1, sinks) * 2 * largest
        return
    least = 1_000 * (400 + sinks * 256)  # the smallest queues there are, where next to none is left
    held = source.most_bytes + (sink.most_bytes * sinks if sink else 0)
    assert held + source.batch_bytes * _COPIES_IN_FLIGHT <= (mib << 20) - KEPT_BYTES + least
    own = source.librdkafka() | (dict(sink.librdkafka()) if sink else {})
    for name, value in {**reading, **(writing if sinks else {})}.items():
        if name in own:
            assert own[name] == value


@given(
    mib=MIB,
    partitions=st.integers(1, 100),
    batch_bytes=st.integers(1, 2_000_000),
    writing=WRITING,
    batches=st.fixed_dictionaries(
        {},
        optional={
            "batch.size": st.integers(1, 5_000_000),
            "batch.num.messages": st.integers(1, 1_000_000),
        },
    ),
)
def test_no_queue_is_full_before_a_batch_that_is_waited_for(
    mib: int, partitions: int, batch_bytes: int, writing: dict[str, Any], batches: dict[str, Any]
) -> None:
    """It would take no record until the linger is over. As full as partitions can be of which none
    wakes the client, which it does at the number of records and beyond the number of bytes, it
    takes the largest one."""
    try:
        memory = TaskMemory.of_mib(mib, claimed_bytes=claimed_by_writer(writing))
        queue = write_settings(memory, writing)
    except ConfigError:
        return
    options = {**writing, **batches}
    found = batch_settings(
        queue, options, batch_bytes=batch_bytes, partitions=partitions, is_seen_at_once=False
    )
    if found["linger.ms"] <= 20:
        return
    in_hand = int(options.get("message.max.bytes", 1_048_576))
    assert partitions * found["batch.size"] + in_hand <= queue.queue_kib * 1024
    assert partitions * (found["batch.num.messages"] - 1) + 1 <= queue.queue_records


@given(mib=st.integers(96, 65_536), more=st.integers(1, 1_000), sinks=st.integers(1, 2))
def test_more_memory_never_makes_a_queue_smaller(mib: int, more: int, sinks: int) -> None:
    small, large = (
        TaskMemory.of_mib(size, claimed_bytes=0, sinks=sinks) for size in (mib, mib + more)
    )
    for before, after in (
        (read_settings(small, {}), read_settings(large, {})),
        (write_settings(small, {}), write_settings(large, {})),
    ):
        for name, value in before.librdkafka().items():
            assert after.librdkafka()[name] >= value  # type: ignore[operator]  # all are numbers
    crowded = TaskMemory.of_mib(mib, claimed_bytes=0, sinks=sinks + 1)
    assert write_settings(crowded, {}).queue_kib <= write_settings(small, {}).queue_kib


@given(options=READING)
def test_a_fetch_is_never_smaller_than_a_message(options: dict[str, Any]) -> None:
    memory = TaskMemory.of_mib(65_536, claimed_bytes=claimed_by_reader(options))
    found = read_settings(memory, options)
    if "fetch.max.bytes" not in options:
        assert found.fetch_bytes >= int(options.get("message.max.bytes", 1_000_000))
    if "max.partition.fetch.bytes" not in options:
        assert found.partition_bytes <= found.fetch_bytes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queued.max.messages.kbytes": "2000000"}, "do not fit into a task's memory"),
        ({"message.max.bytes": "20000000"}, "too small for the largest fetch"),
        ({"queued.min.messages": "many"}, "queued.min.messages"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_settings(TaskMemory.of_mib(256, claimed_bytes=claimed_by_reader(options)), options)


def test_a_batch_never_outgrows_the_offsets_of_an_arrow_column() -> None:
    """They have 32 bits; where records grow, a batch may be larger than it was meant to be."""
    memory = TaskMemory.of_mib(1 << 20)
    assert read_settings(memory, {}).batch_bytes == 1 << 30
    assert read_settings(TaskMemory.of_mib(16_384), {}).batch_bytes == (
        TaskMemory.of_mib(16_384).batch_bytes // _COPIES_IN_FLIGHT
    )


def test_a_sink_that_may_send_larger_messages_than_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="sink's largest message"):
        write_settings(TaskMemory(), {"message.max.bytes": "100000000"})


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
_LARGE_PARTITION = pa.record_batch(
    {"value": [b"v", b"v"], "partition": pa.array([None, 2**63], pa.uint64())}
)
_FAR_FUTURE = pa.record_batch(
    {"value": [b"v"], "timestamp": pa.array([2**61 + 1], pa.timestamp("s"))}
)


@settings(max_examples=examples(200))
@given(batch=_batches(), topic=st.sampled_from([None, "out"]))
@example(batch=_NULL_PARTITION, topic="out")
@example(batch=_LARGE_PARTITION, topic="out")
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


KEYS = st.one_of(st.none(), st.binary(max_size=17))


@settings(deadline=None)
@given(keys=st.lists(KEYS), partitions=st.integers(1, 50), start=st.integers(0, 5))
def test_a_column_of_keys_is_partitioned_as_each_key_alone(
    keys: list[bytes | None], partitions: int, start: int
) -> None:
    """Nulls, empty keys, every length, and slices; -1 for null."""
    column = pa.array(keys, pa.large_binary()).slice(min(start, len(keys)))
    expected = [-1 if k is None else partition_for_key(k, partitions) for k in column.to_pylist()]
    assert partitions_for_keys(column, partitions).tolist() == expected


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    count = draw(st.integers(1, 60))
    columns: dict[str, Any] = {"value": pa.array([b"%d" % n for n in range(count)])}
    if draw(st.booleans()):
        columns["key"] = pa.array(draw(lists_of(KEYS, count)), pa.binary())
    if draw(st.booleans()):
        numbers = st.one_of(st.none(), st.integers(0, 4))
        columns["partition"] = pa.array(draw(lists_of(numbers, count)), pa.int32())
    return pa.record_batch(columns)


def lists_of(elements: st.SearchStrategy[Any], count: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(elements, min_size=count, max_size=count)


def by_client(
    batch: pa.RecordBatch, count: int, *, newer_count: int | None = None
) -> dict[int, list[bytes | None]]:
    """Which values each partition gets, in order, from what `produce` is called with.

    The client sends null keys without a partition where it likes: to partition 0 here. It may have
    learned meanwhile that there are more partitions.
    """
    rows, known = by_partition(batch, RecordColumns.of(batch.schema, "t"), count)
    arguments = RecordColumns.of(batch.schema, "t").arguments(rows, known)
    found: dict[int, list[bytes | None]] = defaultdict(list)
    for value, key, partition in zip(
        arguments.values, arguments.keys, arguments.partitions, strict=False
    ):
        chosen = partition
        if partition < 0:
            chosen = 0 if key is None else partition_for_key(key, newer_count or count)
        found[chosen].append(value)
    return found


def as_it_came(batch: pa.RecordBatch, count: int) -> dict[int, list[bytes | None]]:
    found: dict[int, list[bytes | None]] = defaultdict(list)
    for row in batch.to_pylist():
        partition, key = row.get("partition"), row.get("key")
        if partition is None:
            partition = 0 if key is None else partition_for_key(key, count)
        found[partition].append(row["value"])
    return found


@settings(deadline=None)
@given(batch=batches())
def test_every_partition_gets_its_rows_in_their_order(batch: pa.RecordBatch) -> None:
    """Whatever columns decide the partition, and although null keys may land anywhere."""
    assert by_client(batch, 5) == as_it_came(batch, 5)
    assert by_client(batch, 5, newer_count=7) == as_it_came(batch, 5)


def test_a_key_has_one_partition_in_whatever_runs_its_records_come() -> None:
    """The client learns of new partitions by itself: long runs went by its count, not by ours."""
    key = next(k for k in (b"%d" % n for n in range(99)) if partition_for_key(k, 5) == 4)
    long_run = pa.record_batch({"value": [b"v"] * 500, "key": [key] * 500})
    with_nulls = pa.record_batch({"value": [b"v"] * 4, "key": [key, None, key, None]})
    assert set(by_client(long_run, 5, newer_count=7)) == {4}
    assert set(by_client(with_nulls, 5, newer_count=7)) == {4, 0}
