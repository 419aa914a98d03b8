"""The sink's writers on a real broker: what is kept, what is visible and when."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.records.partitioner import partition_for_key
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.sink.handles import (
    OutputCount,
    TransactionHandle,
    TransactionIdentity,
    decode_handle,
)
from sluice.connectors.kafka.sink.producers.producer_pool import process_pools
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.kit.coordinator.sink_region import (
    HEADERS,
    commit,
    describe,
    handles,
    no_pools_left,
    refused,
    region_of,
    rows,
    sink_to,
)
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import await_stable, create_topic, read, values

pytestmark = pytest.mark.integration

__all__ = ["no_pools_left"]  # a fixture of every test here


def test_ids_never_reused_a_pre_commit_is_invisible_until_another_process_ends_it(
    leveled_kafka: EmbeddedKafka,
) -> None:
    """The producer is long gone when the driver commits, at every feature level."""
    topic = create_topic(leveled_kafka.bootstrap)
    region = region_of(leveled_kafka, topic)
    entries = region.write(rows(value=[b"a", b"b"]), rows(value=[b"c"]))
    assert values(leveled_kafka.bootstrap, topic) == []
    commit(leveled_kafka, entries)
    assert values(leveled_kafka.bootstrap, topic) == [b"a", b"b", b"c"]


def test_letting_go_of_a_producer_leaves_its_transaction_open(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """The client's own ``close`` would abort what is pre-committed (seen in 2.16.1)."""
    region = region_of(kafka, topic())
    [handle] = handles(region.write(rows(value=[b"a"])))
    process_pools().close()
    assert describe(kafka, handle.transactional_id)[0] is TransactionState.ONGOING


def test_handle_from_producer_the_handle_is_what_the_broker_knows(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Id and epoch out of the statistics equal those of DescribeTransactions."""
    region = region_of(kafka, topic())
    [handle] = handles(region.write(rows(value=[b"a"])))
    expected = (TransactionState.ONGOING, handle.producer_id, handle.producer_epoch)
    assert describe(kafka, handle.transactional_id) == expected
    [attempt] = region.attempts
    assert TransactionIdentity.parse(attempt.resource) == handle.identity


def test_an_empty_epoch_leaves_no_trace(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    """Rule `outcome-from-broker`: no transaction, no registration, no committable."""
    name = topic()
    region = region_of(kafka, name)
    assert region.write(rows(value=pa.array([], pa.binary()))) == []
    assert region.attempts == []
    assert values(kafka.bootstrap, name, committed=False) == []


ODD_RECORDS: Mapping[str, Any] = {
    "key": pa.array([None, b"", b"k", b"\x00\xff"], pa.binary()),
    "value": pa.array([b"v", None, b"", b"\xff\x00"], pa.binary()),
    "partition": pa.array([0, 0, 0, 0], pa.int32()),
    "headers": pa.array(
        [
            None,
            [],
            [
                {"key": "h", "value": b"1"},
                {"key": "h", "value": None},
                {"key": "g", "value": b""},
                {"key": "h", "value": b"1"},
            ],
            [{"key": "é", "value": b"\x00"}],
        ],
        HEADERS,
    ),
}


def test_records_arrive_byte_for_byte(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """Null is not empty, headers repeat and keep their order, bytes are not text."""
    name = topic()
    commit(kafka, region_of(kafka, name, hot_path=hot_path).write(rows(**ODD_RECORDS)))
    found = read(kafka.bootstrap, name)
    assert [record.key for record in found] == [None, b"", b"k", b"\x00\xff"]
    assert [record.value for record in found] == [b"v", None, b"", b"\xff\x00"]
    assert [record.headers for record in found] == [
        (),
        (),
        (("h", b"1"), ("h", None), ("g", b""), ("h", b"1")),
        (("é", b"\x00"),),
    ]


def test_strings_arrive_as_utf_8(kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str) -> None:
    """Key and value may be strings, as in Spark's sink."""
    name = topic()
    commit(
        kafka,
        region_of(kafka, name, hot_path=hot_path).write(rows(key=["schlüssel"], value=["wert€"])),
    )
    [record] = read(kafka.bootstrap, name)
    assert (record.key, record.value) == ("schlüssel".encode(), "wert€".encode())


def test_the_timestamp_column_is_honoured(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """To the millisecond; null means now."""
    name = topic()
    then = datetime(2001, 2, 3, 4, 5, 6, 789_999, tzinfo=UTC)
    stamps = pa.array([then, None], pa.timestamp("us", "UTC"))
    before_ms = int(datetime.now(UTC).timestamp() * 1000)
    commit(
        kafka,
        region_of(kafka, name, hot_path=hot_path).write(rows(value=[b"a", b"b"], timestamp=stamps)),
    )
    old, new = read(kafka.bootstrap, name)
    assert old.timestamp_ms == 981_173_106_789
    assert new.timestamp_ms is not None
    assert new.timestamp_ms >= before_ms


def test_keyed_records_land_where_java_puts_them(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """Murmur2 of the key, the empty key too; a partition column wins; its null asks the key."""
    name = topic(partitions=7)
    keys = [b"", b"21", b"foobar", b"a-little-bit-long-string", *(b"%d" % n for n in range(100))]
    chosen: list[int | None] = [None, 6, *[None] * (len(keys) - 2)]
    batch = rows(key=keys, value=keys, partition=pa.array(chosen, pa.int32()))
    [entry] = region_of(kafka, name, hot_path=hot_path).write(batch)
    commit(kafka, [entry])
    found = read(kafka.bootstrap, name)
    expected = {key: partition_for_key(key, 7) for key in keys} | {b"21": 6}
    assert {record.key: record.partition for record in found} == expected
    assert decode_handle(entry).outputs == (OutputCount(topic=name, records=len(found)),)


def test_the_order_of_a_partition_is_kept_whatever_columns_its_records_use(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """Rule `produce-order`: records with headers, timestamps and neither share one path."""
    name = topic()
    stamp = datetime(2020, 1, 1, tzinfo=UTC)
    numbers = range(12_000)
    batch = rows(
        value=[b"%d" % n for n in numbers],
        headers=pa.array(
            [[{"key": "n", "value": b"%d" % n}] if n % 3 == 0 else None for n in numbers], HEADERS
        ),
        timestamp=pa.array([stamp if n % 2 else None for n in numbers], pa.timestamp("us", "UTC")),
    )
    commit(kafka, region_of(kafka, name, hot_path=hot_path).write(batch))
    assert values(kafka.bootstrap, name) == [b"%d" % n for n in numbers]


def test_the_sinks_topic_wins_over_the_column_and_the_column_stands_in_for_it(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """As in Spark's sink."""
    own, other, third = topic(), topic(), topic()
    commit(kafka, region_of(kafka, own, hot_path=hot_path).write(rows(value=[b"a"], topic=[other])))
    by_column = rows(value=[b"b", b"c"], topic=[other, third])
    commit(kafka, region_of(kafka, None, hot_path=hot_path).write(by_column))
    found = [values(kafka.bootstrap, name) for name in (own, other, third)]
    assert found == [[b"a"], [b"b"], [b"c"]]


def test_many_epochs_leave_two_ids(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    """Rule `ids-never-reused`: an id comes back when its checkpoint is committed on record, with a
    new epoch."""
    name = topic()
    region = region_of(kafka, name)
    seen: list[TransactionHandle] = []
    for batch_id in range(8):
        region.batch_id = batch_id
        entries = region.write(rows(value=[b"%d" % batch_id]))
        seen += handles(entries)
        commit(kafka, entries)
    assert values(kafka.bootstrap, name) == [b"%d" % n for n in range(8)]
    assert len({handle.transactional_id for handle in seen}) == 2
    assert len({handle.identity for handle in seen}) == 8


def test_tasks_of_one_batch_have_transactions_of_their_own(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """One worker runs several tasks of a batch one after the other."""
    name = topic()
    region = region_of(kafka, name)
    entries = [
        entry
        for task in range(3)
        for entry in region.write(rows(value=[b"%d" % task]), task=f"{task}.0")
    ]
    assert len({handle.transactional_id for handle in handles(entries)}) == 3
    commit(kafka, entries[:2])
    wire = TransactionWire(KafkaConnection(bootstrap_servers=kafka.bootstrap))
    wire.end([handles(entries)[2].identity], commit=False, timeout_s=120)
    wire.close()
    await_stable(kafka.bootstrap, name)
    assert values(kafka.bootstrap, name) == [b"0", b"1"]


def test_at_least_once_is_visible_when_the_writer_is_done(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """Acknowledged, nothing to commit."""
    name = topic()
    region = region_of(
        kafka, name, hot_path=hot_path, guarantee="at-least-once", transactional_id_prefix=""
    )
    assert region.write(rows(value=[b"a"])) == []
    assert values(kafka.bootstrap, name) == [b"a"]
    where = refused(region, rows(value=[b"b", b"x" * 3_000_000]))
    assert where["code"] == "MSG_SIZE_TOO_LARGE"
    region.write(rows(value=[b"c"]))
    assert values(kafka.bootstrap, name)[-1] == b"c"


def test_without_a_guarantee_the_rest_is_written(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """A refused record is left out."""
    name = topic()
    region = region_of(kafka, name, hot_path=hot_path, guarantee="none", transactional_id_prefix="")
    assert region.write(rows(value=[b"a", b"x" * 3_000_000, b"c"])) == []
    assert values(kafka.bootstrap, name) == [b"a", b"c"]


def test_a_plain_sinks_coordinator_checks_and_has_nothing_to_commit(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """The start check works for every guarantee."""
    coordinator = sink_to(kafka, topic(), guarantee="at-least-once").coordinator()
    assert coordinator.check(timeout_s=120)["cluster_id"]
    assert coordinator.committer.commit([], timeout_s=1, after_crash=True) == []
    coordinator.close()
