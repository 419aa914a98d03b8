"""Columns of every type that a sink takes, on the native path and on the plain one: one result.

Through librdkafka's own mock cluster. What records hold, and codecs, transactions and reading,
``tests/integration/test_hot_path.py`` compares through a real broker.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.connectors.kafka.client.client_tuning import HotPath
from sluice.connectors.kafka.client.confluent import Consumer, TopicPartition, make_consumer
from sluice.connectors.kafka.records.partitioner import LIBRDKAFKA_PARTITIONER
from sluice.connectors.kafka.records.rows import RecordColumns
from sluice.connectors.kafka.sink.producers.delivery import DeliveryLog
from sluice.connectors.kafka.sink.producers.preparation import make_client
from sluice.connectors.kafka.sink.producers.producer_client import Client
from sluice.connectors.kafka.sink.writer.sender import RecordSender, flush
from tests.kit.kafka.kafka_fixture import require_native
from tests.kit.kafka.mock_cluster import MockCluster
from tests.kit.task_scopes import SCOPE

PARTITIONS = 3
_WAIT_S = 300.0
_NOW_MS = 120_000

_texts = st.sampled_from(["", "a", "ü", "key", "日本", "x" * 300])
_text_types = st.sampled_from(
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.binary(3),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.binary()),
        pa.null(),
    ]
)
_topic_types = st.sampled_from(
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
_number_types = st.sampled_from(
    [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        pa.dictionary(pa.int32(), pa.int32()),
    ]
)
_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_header_values = st.sampled_from([pa.binary(), pa.large_binary(), pa.binary(2)])


class _Bed:
    """A cluster, a producer of each path, and a consumer."""

    def __init__(self, mock: MockCluster) -> None:
        self.mock = mock
        self._numbers = itertools.count()
        common = {"bootstrap.servers": mock.bootstrap, "log_level": 0}
        config = {
            **common,
            "delivery.report.only.error": True,
            "enable.idempotence": True,
            "linger.ms": 1,
            "partitioner": LIBRDKAFKA_PARTITIONER,
            "queue.buffering.max.messages": 100,  # a part is taken, often
        }
        self.clients: Mapping[HotPath, Client] = {
            path: make_client(path, config) for path in (HotPath.NATIVE, HotPath.PLAIN)
        }
        self._consumer: Consumer = make_consumer(
            {**common, "group.id": "g", "enable.partition.eof": True, "fetch.wait.max.ms": 5}
        )

    def topics(self) -> list[str]:
        made = [f"t{next(self._numbers)}" for _ in range(2)]
        for name in made:
            self.mock.make_topic(name, partitions=PARTITIONS)
        return made

    def read(self, topics: Sequence[str]) -> list[Any]:
        """By topic's place and partition, each record's key, value, headers and time."""
        places = [TopicPartition(t, p, 0) for t in topics for p in range(PARTITIONS)]
        found: dict[tuple[int, int | None], list[Any]] = {}
        open_partitions = len(places)
        for topic in topics:  # else it looks for them once each second
            self._consumer.list_topics(topic, timeout=_WAIT_S)
        self._consumer.assign(places)
        until_s = time.monotonic() + _WAIT_S
        while open_partitions and time.monotonic() < until_s:
            for message in self._consumer.consume(1_000, 0.05):
                if message.error() is not None:
                    open_partitions -= 1
                    continue
                at = (topics.index(message.topic() or ""), message.partition())
                found.setdefault(at, []).append(_record(message))
        assert not open_partitions
        self._consumer.unassign()
        return sorted(found.items())

    def close(self) -> None:
        """End the consumer; producers end with their last reference."""
        self._consumer.close()


def _record(message: Any) -> tuple[Any, ...]:
    kind, at_ms = message.timestamp()
    stamped = "now" if at_ms > time.time() * 1_000 - _NOW_MS else at_ms
    return message.key(), message.value(), message.headers(), kind, stamped


@pytest.fixture(scope="module")
def bed() -> Iterator[_Bed]:
    require_native()
    with MockCluster.running() as mock:
        made = _Bed(mock)
        yield made
        made.close()


def _text_column(draw: st.DrawFn, rows: int, *, nulls: bool) -> pa.Array:
    kind = draw(_text_types if nulls else _text_types.filter(lambda kind: kind != pa.null()))
    texts = draw(st.lists(_texts | st.none() if nulls else _texts, min_size=rows, max_size=rows))
    if kind == pa.binary(3):
        return pa.array([None if text is None else b"abc" for text in texts], kind)
    if kind == pa.null():
        return pa.nulls(rows)
    content = [None if text is None else text.encode() for text in texts]
    if pa.types.is_dictionary(kind):
        return pa.array(content, pa.binary()).cast(kind.value_type).dictionary_encode()
    if pa.types.is_binary_view(kind):
        return pa.array(content, kind)
    return pa.array(texts, pa.string()).cast(kind)


def _stamps(draw: st.DrawFn, rows: int) -> pa.Array:
    unit = draw(st.sampled_from(sorted(_TICKS)))
    zone = draw(st.sampled_from([None, "UTC", "Europe/Berlin"]))
    second = _TICKS[unit]
    edges = st.sampled_from([None, 0, 1, second, 1_600_000_000 * second])
    ticks = edges | st.integers(0, 1_700_000_000 * second)
    found = draw(st.lists(ticks, min_size=rows, max_size=rows))
    return pa.array(found, pa.int64()).cast(pa.timestamp(unit, zone))


def _headers(draw: st.DrawFn, rows: int) -> pa.Array:
    kind = draw(_header_values)
    contents = [None, b"ab"] if kind == pa.binary(2) else [None, b"", b"v", b"\0"]
    names = draw(st.sampled_from([pa.string(), pa.large_string()]))
    entry = pa.struct([("key", names), ("value", kind)])
    one = st.fixed_dictionaries({"key": _texts, "value": st.sampled_from(contents)})
    some = st.none() | st.lists(one, max_size=3)
    found = draw(st.lists(some, min_size=rows, max_size=rows))
    listing = draw(st.sampled_from([pa.list_, pa.large_list]))
    return pa.array(found, listing(entry))


@st.composite
def _batches(draw: st.DrawFn, topics: Sequence[str] | None) -> pa.RecordBatch:
    """A slice of one; what goes by key has one, for the rest goes anywhere."""
    rows = draw(st.integers(1, 40))
    columns = {"value": _text_column(draw, rows, nulls=True)}
    if draw(st.booleans()):
        columns["key"] = _text_column(draw, rows, nulls=draw(st.booleans()))
    goes_by_key = "key" in columns and not columns["key"].null_count
    if not goes_by_key or draw(st.booleans()):
        numbers = st.integers(0, PARTITIONS - 1)
        chosen = numbers | st.none() if goes_by_key else numbers
        found = draw(st.lists(chosen, min_size=rows, max_size=rows))
        kind = draw(_number_types)
        plain = pa.array(found, pa.int32())
        is_coded = pa.types.is_dictionary(kind)
        columns["partition"] = plain.dictionary_encode() if is_coded else plain.cast(kind)
    if draw(st.booleans()):
        columns["timestamp"] = _stamps(draw, rows)
    if draw(st.booleans()):
        columns["headers"] = _headers(draw, rows)
    if topics is not None:
        names = draw(st.lists(st.sampled_from(topics), min_size=rows, max_size=rows))
        kind = draw(_topic_types)
        plain = pa.array(names, pa.string())
        is_coded = pa.types.is_dictionary(kind)
        columns["topic"] = plain.dictionary_encode() if is_coded else plain.cast(kind)
    order = draw(st.permutations(sorted(columns)))
    whole = pa.RecordBatch.from_arrays([columns[name] for name in order], names=list(order))
    start = draw(st.integers(0, rows - 1))
    return whole.slice(start, draw(st.integers(1, rows - start)))


def _renamed(batch: pa.RecordBatch, topics: Mapping[str, str]) -> pa.RecordBatch:
    at = batch.schema.get_field_index("topic")
    if at < 0:
        return batch
    column = batch.column(at)
    names = pa.array([topics[name] for name in column.to_pylist()], pa.string())
    is_coded = pa.types.is_dictionary(column.type)
    made = names.dictionary_encode() if is_coded else names.cast(column.type)
    return batch.set_column(at, "topic", made)


def _written(
    bed: _Bed, path: HotPath, batches: Sequence[pa.RecordBatch], count: int | None
) -> tuple[list[Any], list[int]]:
    topics = bed.topics()
    delivery, client = DeliveryLog(SCOPE), bed.clients[path]
    sender = RecordSender(client, delivery, queue_full_timeout_s=_WAIT_S, partition_count=count)
    for batch in batches:
        rows = _renamed(batch, dict(zip(("x", "y"), topics, strict=True)))
        own = None if "topic" in batch.schema.names else topics[0]
        sender.send(rows, RecordColumns.of(rows.schema, own))
    flush(client, delivery, timeout_s=_WAIT_S)
    counted = {output.topic: output.records for output in sender.outputs}
    return bed.read(topics), [counted.get(topic, 0) for topic in topics]


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_pre_commit_confirmed_columns_of_every_type_are_written_alike(
    bed: _Bed, data: st.DataObject
) -> None:
    """Text, views, dictionaries, numbers of every width, times of every unit; slices of them;
    topics by column; and a queue that takes a part."""
    topics = data.draw(st.sampled_from([None, ("x", "y")]))
    batches = data.draw(st.lists(_batches(topics), min_size=1, max_size=3))
    count = None if topics else data.draw(st.sampled_from([None, PARTITIONS]))
    native, plain = (
        _written(bed, path, batches, count) for path in (HotPath.NATIVE, HotPath.PLAIN)
    )
    assert native == plain
    assert sum(native[1]) == sum(batch.num_rows for batch in batches)
