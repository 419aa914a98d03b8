"""The native hot path against the plain one, byte for byte, through a real broker.

The plain path is the oracle. More examples: ``SLUICE_CHAOS=long``.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.records.columns import schema_of
from sluice.connectors.kafka.sink.producers.plain_producers import process_plain_producers
from sluice.connectors.kafka.sink.producers.producer_pool import process_pools
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.kafka.tools.verify.verify_cli import verify_command
from sluice.runtime.contracts import RegisteredAttempt, SinkWriter
from sluice.runtime.errors import ConfigError, DeliveryError
from sluice.runtime.model.splits import SplitRange
from tests.kit.kafka.kafka_fixture import require_native
from tests.kit.kafka.kafka_records import (
    Record,
    await_stable,
    create_topic,
    produce,
    produce_transaction,
    read,
    unique,
)
from tests.kit.task_scopes import SCOPE

pytestmark = pytest.mark.integration

_verify = typer.Typer()
_verify.command()(verify_command)

PARTITIONS = 2
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIMEOUT_S = 240.0  # of transactions that may stay open
_TOPIC = {"max.message.bytes": "4000000", "retention.ms": "-1"}  # times are old
_PRODUCER = {"message.max.bytes": 4_000_000}
_LEFT_OUT = [
    (),
    ("headers", "timestamp"),
    ("headers", "timestamp", "partition"),
    ("timestamp",),
    ("headers",),
]
_FIXED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]

_large = st.sampled_from([b"\xab" * 1_000_000, b"\x00" * 70_000])
_bytes = st.one_of(st.none(), st.just(b""), st.binary(max_size=40), st.binary(max_size=3))
_values = st.one_of(_bytes, _bytes, _bytes, _bytes, _bytes, _large)
_names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=6)
_header_lists = st.lists(st.tuples(_names | st.just("h"), _bytes), max_size=4).map(tuple)
_stamps_ms = st.integers(1, 1_700_000_000_000)  # brokers refuse times to come
_records = st.builds(
    Record,
    value=_values,
    key=_bytes,
    headers=_header_lists,
    partition=st.integers(0, PARTITIONS - 1),
    timestamp_ms=_stamps_ms,
)
# Some of them twice or more: equal records are records, too.
_record_lists = st.lists(_records, min_size=1, max_size=12).flatmap(
    lambda some: st.lists(st.sampled_from(some), max_size=4).map(lambda again: [*some, *again])
)
_codecs = st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"])
_transactions = st.tuples(_record_lists, st.booleans(), _codecs)


@pytest.fixture(autouse=True)
def _native() -> None:
    require_native()


# --- reading --------------------------------------------------------------------------------------


def _read(kafka: EmbeddedKafka, path: str, splits: Sequence[SplitRange], **more: Any) -> pa.Table:
    topics = sorted({split.topic for split in splits})
    source = KafkaSource(bootstrap_servers=kafka.bootstrap, topics=topics, hot_path=path, **more)
    reader = source.reader()
    batches = list(reader.read(splits))
    for batch in batches:
        batch.validate(full=True)
    # How partitions take turns is chance; within each the order counts.
    table = pa.Table.from_batches(batches, schema_of(reader.columns))
    return table.sort_by([("topic", "ascending"), ("partition", "ascending")])


def _split(topic: str, partition: int, start: int, end: int) -> SplitRange:
    return SplitRange(
        source_id="s",
        topic=topic,
        topic_id="",
        partition=partition,
        start_offset=start,
        end_offset=end,
    )


def _same_rows(kafka: EmbeddedKafka, splits: Sequence[SplitRange]) -> pa.Table:
    native, plain = (_read(kafka, path, splits) for path in ("native", "plain"))
    assert native.schema == plain.schema
    assert native.to_pylist() == plain.to_pylist()
    assert native.equals(plain)
    return native


def _compare_reads(kafka: EmbeddedKafka, data: st.DataObject) -> None:
    stamp_type = data.draw(st.sampled_from(["CreateTime", "LogAppendTime"]))
    topic = create_topic(
        kafka.bootstrap,
        partitions=PARTITIONS,
        config={**_TOPIC, "message.timestamp.type": stamp_type},
    )
    expected: list[Record] = []
    for records, committed, codec in data.draw(st.lists(_transactions, min_size=1, max_size=2)):
        options = {**_PRODUCER, "compression.type": codec}
        produce_transaction(kafka.bootstrap, topic, records, commit=committed, options=options)
        expected += records if committed else []
    plain_ones = data.draw(st.lists(_records, max_size=4))
    produce(kafka.bootstrap, topic, plain_ones, options=_PRODUCER)
    expected += plain_ones
    ends = await_stable(kafka.bootstrap, topic)
    whole = [_split(topic, p, 0, end) for p, end in ends.items() if end]
    found = _same_rows(kafka, whole)
    for partition in ends:
        mine = [row for row in found.to_pylist() if row["partition"] == partition]
        written = [r for r in expected if r.partition == partition]
        assert [(row["key"], row["value"]) for row in mine] == [(r.key, r.value) for r in written]
        assert [tuple((h["key"], h["value"]) for h in row["headers"] or ()) for row in mine] == [
            r.headers for r in written
        ]
        assert {row["timestampType"] for row in mine} <= {int(stamp_type == "LogAppendTime")}
        if stamp_type == "CreateTime":
            assert [row["timestamp"] for row in mine] == [
                datetime.fromtimestamp((r.timestamp_ms or 0) / 1000, UTC) for r in written
            ]
    # Ranges that begin and end anywhere: in a marker, among aborted records, at the end.
    parts = []
    for partition, end in ends.items():
        start = data.draw(st.integers(0, end))
        stop = data.draw(st.integers(start, end))
        parts.append(_split(topic, partition, start, stop))
    _same_rows(kafka, parts)


@settings(max_examples=4, suppress_health_check=_FIXED)
@given(data=st.data())
def test_read_committed_end_both_paths_read_the_same(
    kafka: EmbeddedKafka, data: st.DataObject
) -> None:
    """Nulls, empty and large values, headers, both kinds of time, codecs, aborted transactions,
    ranges that end in markers."""
    _compare_reads(kafka, data)


@pytest.mark.long
@settings(max_examples=300, suppress_health_check=_FIXED)
@given(data=st.data())
def test_read_committed_end_both_paths_read_the_same_in_many_examples(
    kafka: EmbeddedKafka, data: st.DataObject
) -> None:
    _compare_reads(kafka, data)


# --- writing --------------------------------------------------------------------------------------


class _Registry:
    def register(self, attempt: RegisteredAttempt) -> float:
        """See `sluice.runtime.contracts.AttemptRegistry`."""
        del attempt
        return time.monotonic()


def _rows(records: Sequence[Record], keyed: Sequence[bool], *, slice_at: int) -> pa.RecordBatch:
    """The records as a slice of a larger batch, so that no buffer begins at its first row."""
    filler = [Record(value=b"filler", key=b"f", headers=(("f", b"f"),), timestamp_ms=1)] * slice_at
    every = [*filler, *records]
    by_key = [*([False] * slice_at), *keyed]
    made = pa.record_batch(
        {
            "key": pa.array([r.key for r in every], pa.binary()),
            "value": pa.array([r.value for r in every], pa.binary()),
            "partition": pa.array(
                [
                    None if asks_key and r.key is not None else (r.partition or 0)
                    for r, asks_key in zip(every, by_key, strict=True)
                ],
                pa.int32(),
            ),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in r.headers] or None for r in every], HEADERS
            ),
            "timestamp": pa.array(
                [(r.timestamp_ms or 0) * 1000 for r in every], pa.timestamp("us", "UTC")
            ),
        }
    )
    return made.slice(slice_at)


def _written(kafka: EmbeddedKafka, path: str, batches: Sequence[pa.RecordBatch]) -> str:
    topic = create_topic(kafka.bootstrap, partitions=PARTITIONS, config=_TOPIC)
    sink = KafkaSink(
        bootstrap_servers=kafka.bootstrap,
        topic=topic,
        guarantee="at-least-once",
        hot_path=path,
        options={"message.max.bytes": "4000000"},
    )
    scope = replace(SCOPE, job_uid=str(uuid.uuid4()))
    writer = sink.writer_factory().open(scope, _Registry())
    for batch in batches:
        writer.write(batch)
    assert writer.pre_commit() == []
    process_plain_producers().drop(scope)
    return topic


def _compare_writes(kafka: EmbeddedKafka, data: st.DataObject) -> None:
    batches = []
    for _ in range(data.draw(st.integers(1, 3))):
        records = data.draw(_record_lists)
        keyed = data.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
        rows = _rows(records, keyed, slice_at=data.draw(st.sampled_from([0, 1, 9])))
        left_out = set(data.draw(st.sampled_from(_LEFT_OUT)))
        if any(record.key is None for record in records):
            left_out -= {"partition"}  # by chance
        batches.append(rows.drop_columns(sorted(left_out)))
    stamped = all("timestamp" in batch.schema.names for batch in batches)
    native, plain = (
        [
            record if stamped else replace(record, timestamp_ms=None)
            for record in read(kafka.bootstrap, _written(kafka, path, batches))
        ]
        for path in ("native", "plain")
    )
    assert native == plain
    assert len(native) == sum(batch.num_rows for batch in batches)


@settings(max_examples=4, suppress_health_check=_FIXED)
@given(data=st.data())
def test_pre_commit_confirmed_both_paths_write_the_same(
    kafka: EmbeddedKafka, data: st.DataObject
) -> None:
    """Into the same partitions, in the same order, with the same headers and times."""
    _compare_writes(kafka, data)


@pytest.mark.long
@settings(max_examples=300, suppress_health_check=_FIXED)
@given(data=st.data())
def test_pre_commit_confirmed_both_paths_write_the_same_in_many_examples(
    kafka: EmbeddedKafka, data: st.DataObject
) -> None:
    _compare_writes(kafka, data)


def _with_header_names(names: Sequence[Sequence[bytes]]) -> pa.RecordBatch:
    """A record for each list of names; Arrow takes whatever bytes they are."""
    flat = pa.array([name for row in names for name in row], pa.binary()).view(pa.string())
    bounds = np.cumsum([0, *map(len, names)])
    entries = pa.StructArray.from_arrays(
        [flat, pa.nulls(len(flat), pa.binary())], fields=list(HEADERS.value_type)
    )
    return pa.record_batch(
        {
            "value": pa.array([b"v"] * len(names), pa.binary()),
            "partition": pa.array([1] * len(names), pa.int32()),
            "headers": pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), entries),
        }
    )


@pytest.mark.parametrize("bad", [b"\xff", b"a\xc3", b"\xed\xa0\x80"])
def test_both_paths_name_the_record_whose_header_is_not_utf_8(
    kafka: EmbeddedKafka, bad: bytes
) -> None:
    ones = [[], [b"a", b"b"], [], [b"g", "ü".encode(), b""], [b"n", bad, b"o"], [], [b"z"]]
    topic = _written(kafka, "native", [_with_header_names(ones)])
    before, whole = _split(topic, 1, 0, 4), _split(topic, 1, 0, len(ones))
    assert _same_rows(kafka, [before])["headers"][3][1]["key"].as_py() == "ü"
    told = []
    for path in ("native", "plain"):
        with pytest.raises(ConfigError, match="a header whose name is not UTF-8") as caught:
            _read(kafka, path, [whole])
        told.append(caught.value.args)
        assert _read(kafka, path, [whole], include_headers=False).num_rows == len(ones)
    assert told[0] == told[1]
    assert told[0][1] == {"topic": topic, "partition": 1, "offset": 4}


def test_a_record_with_more_headers_than_librdkafka_reads_is_an_error(kafka: EmbeddedKafka) -> None:
    most = 100_000
    ones = [[b"a"], [b""] * most, [], [b""] * (most + 1)]
    topic = _written(kafka, "native", [_with_header_names(ones)])
    found = _read(kafka, "native", [_split(topic, 1, 0, 3)])["headers"]
    assert [None if row is None else len(row) for row in found.to_pylist()] == [1, most, None]
    whole = _split(topic, 1, 0, len(ones))
    with pytest.raises(ConfigError, match="headers that librdkafka does not read") as caught:
        _read(kafka, "native", [whole])
    assert caught.value.args[1] == {"topic": topic, "partition": 1, "offset": 3}
    assert _read(kafka, "native", [whole], include_headers=False).num_rows == len(ones)
    # confluent-kafka does not report it, as docs/guide/kafka-source.md says: once it does, so can we.
    assert _read(kafka, "plain", [whole])["headers"][3].as_py() is None


def test_a_comparison_without_headers_continues_where_one_is_not_utf_8(
    kafka: EmbeddedKafka,
) -> None:
    records = [_with_header_names([[b"a"], [b"\xff"]])]
    topic, copy = (_written(kafka, "native", records) for _ in range(2))
    for each in (topic, copy):
        await_stable(kafka.bootstrap, each)
    places = ["--input", topic, "--output", copy, "--bootstrap-servers", kafka.bootstrap]
    refused = CliRunner().invoke(_verify, places)
    assert isinstance(refused.exception, ConfigError)
    result = CliRunner().invoke(_verify, [*places, "--ignore-headers"])
    assert result.exit_code == 0, result.output


# --- delivery errors ------------------------------------------------------------------------------


def _refused(
    kafka: EmbeddedKafka, path: str, topic: str, batches: Sequence[pa.RecordBatch]
) -> tuple[str, dict[str, object]]:
    sink = KafkaSink(
        bootstrap_servers=kafka.bootstrap,
        topic=topic,
        transactional_id_prefix=unique("refused"),
        transaction_timeout_s=_TIMEOUT_S,
        hot_path=path,
        options={"message.max.bytes": "4000000"},
    )
    scope = replace(SCOPE, job_uid=str(uuid.uuid4()))
    writer = sink.writer_factory().open(scope, _Registry())
    with pytest.raises(DeliveryError) as caught:
        _write_and_pre_commit(writer, batches)
    writer.abort()
    process_pools().close()
    what, where, _ = caught.value.args
    return what, {name: where[name] for name in ("topic", "partition", "code", "source_offset")}


def _write_and_pre_commit(writer: SinkWriter, batches: Sequence[pa.RecordBatch]) -> None:
    for batch in batches:
        writer.write(batch)
    writer.pre_commit()


@pytest.fixture
def aborts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    found: list[bool] = []
    abort = TransactionalProducer.abort

    def noted(producer: TransactionalProducer, *, timeout_s: float) -> bool:
        found.append(abort(producer, timeout_s=timeout_s))
        return found[-1]

    monkeypatch.setattr(TransactionalProducer, "abort", noted)
    return found


@settings(max_examples=3, suppress_health_check=_FIXED)
@given(data=st.data())
def test_pre_commit_confirmed_both_paths_name_the_same_refused_record(
    kafka: EmbeddedKafka, aborts: list[bool], data: st.DataObject
) -> None:
    """One record among many, by topic, partition and source offset; nothing becomes visible. An
    acknowledged abort leaves nothing open; for any other one the transaction's time-out is here."""
    topic = create_topic(
        kafka.bootstrap, partitions=PARTITIONS, config={**_TOPIC, "max.message.bytes": "2000"}
    )
    count, at = data.draw(st.integers(1, 3_000)), data.draw(st.integers(0, 2_999))
    values = [b"%d" % n for n in range(count)]
    values[at % count] = b"x" * 5_000
    numbers = [n % PARTITIONS for n in range(count)]
    rows = pa.record_batch(
        {
            "value": pa.array(values, pa.binary()),
            "partition": pa.array(numbers, pa.int32()),
            "offset": pa.array(range(700, 700 + count), pa.int64()),
        }
    )
    cut = data.draw(st.integers(0, count))
    batches = [rows.slice(0, cut), rows.slice(cut)]
    native, plain = (_refused(kafka, path, topic, batches) for path in ("native", "plain"))
    assert native == plain
    assert native[1] == {
        "topic": topic,
        "partition": (at % count) % PARTITIONS,
        "code": "MSG_SIZE_TOO_LARGE",
        "source_offset": 700 + at % count,
    }
    await_stable(kafka.bootstrap, topic, timeout_s=_TIMEOUT_S / 2 if all(aborts) else 600.0)
    assert read(kafka.bootstrap, topic) == []
