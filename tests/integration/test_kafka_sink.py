"""The sink's writers on a real broker: what is refused, what is kept, what is visible and when."""

import socket
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from connectors.kafka._client import make_admin
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.handles import TransactionHandle, TransactionIdentity, decode_handle
from connectors.kafka.partitioner import partition_for_key
from connectors.kafka.producer_settings import ClusterLimits, describe_limits
from connectors.kafka.producers import process_pools
from connectors.kafka.security import KafkaConnection
from connectors.kafka.sink import KafkaSink
from connectors.kafka.transaction_wire import TransactionWire
from connectors.kafka.wire import TransactionState
from connectors.kafka.writer import KafkaWriterFactory
from runtime.contracts import CommitOutcome, RegisteredAttempt, SinkWriter, TaskScope
from runtime.errors import (
    AuthenticationError,
    ConfigError,
    DeliveryError,
    FencedError,
    UnreachableError,
)
from runtime.model import BatchKey, SplitRange, StateEntry
from tests.kafka_fixture import SecureKafka, TopicFactory
from tests.kafka_records import (
    abandon_transaction,
    add_partitions,
    await_stable,
    create_topic,
    read,
    unique,
    values,
)

pytestmark = pytest.mark.integration

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass
class Region:
    """One region of a job with one sink, as the engine would drive it.

    ``attempts`` are the registered ones, in order.
    """

    factory: KafkaWriterFactory
    job_uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    generation: int = 0
    batch_id: int = 0
    attempts: list[RegisteredAttempt] = field(default_factory=list)
    source_ranges: tuple[SplitRange, ...] = ()

    def register(self, attempt: RegisteredAttempt) -> None:
        self.attempts.append(attempt)

    def open(self, task: str = "0.0") -> SinkWriter:
        scope = TaskScope(
            job_uid=self.job_uid,
            operator_id="sink",
            batch=BatchKey(region="r", generation=self.generation, batch_id=self.batch_id),
            checkpoint_id=self.batch_id + 1,
            committed_through=self.batch_id,
            task=task,
            source_ranges=self.source_ranges,
        )
        return self.factory.open(scope, self)

    def write(self, *batches: pa.RecordBatch, task: str = "0.0") -> list[StateEntry]:
        writer = self.open(task)
        try:
            for batch in batches:
                writer.write(batch)
            return writer.pre_commit()
        except BaseException:
            writer.abort()
            raise


@pytest.fixture(autouse=True)
def _no_pools_left() -> Iterator[None]:
    """Producers that were made ready do not outlive their test."""
    yield
    process_pools().close()


def sink_to(kafka: EmbeddedKafka, topic: str | None, **settings: Any) -> KafkaSink:
    given = {"transactional_id_prefix": unique("sink"), **settings}
    return KafkaSink(bootstrap_servers=kafka.bootstrap, topic=topic, **given)


def region_of(kafka: EmbeddedKafka, topic: str | None, **settings: Any) -> Region:
    return Region(sink_to(kafka, topic, **settings).writer_factory())


def commit(kafka: EmbeddedKafka, entries: list[StateEntry]) -> None:
    """What the driver does after the decision: another client, the wire's EndTxn."""
    coordinator = sink_to(kafka, None).coordinator()
    reports = coordinator.committer.commit(entries, timeout_s=300, after_crash=False)
    assert [report.outcome for report in reports] == [CommitOutcome.COMMITTED] * len(entries)
    assert coordinator.committer.await_visible(entries, timeout_s=300)
    coordinator.close()


def describe(kafka: EmbeddedKafka, transactional_id: str) -> tuple[TransactionState, int, int]:
    wire = TransactionWire(KafkaConnection(bootstrap_servers=kafka.bootstrap))
    try:
        found = wire.describe([transactional_id], timeout_s=120)[transactional_id]
    finally:
        wire.close()
    assert found is not None
    return found.state, found.producer_id, found.producer_epoch


def handles(entries: list[StateEntry]) -> list[TransactionHandle]:
    return [decode_handle(entry) for entry in entries]


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def test_rule_4_a_pre_commit_is_invisible_until_another_process_ends_it(
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


def test_rule_3_the_handle_is_what_the_broker_knows(
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
    """Rule 5: no transaction, no registration, no committable."""
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
    counts = {output.partition: output.records for output in decode_handle(entry).outputs}
    assert counts == {p: sum(r.partition == p for r in found) for p in set(expected.values())}


def test_the_order_of_a_partition_is_kept_whatever_columns_its_records_use(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """Rule 30: records with headers, timestamps and neither share one path."""
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


SOURCE = SplitRange(
    source_id="s", topic="orders", topic_id="x", partition=3, start_offset=500, end_offset=600
)


def refused(region: Region, batch: pa.RecordBatch) -> dict[str, object]:
    """What the error says of the record that the broker refused."""
    with pytest.raises(DeliveryError) as caught:
        region.write(batch)
    where: dict[str, object] = caught.value.args[1]
    return where


def test_rule_1_a_record_that_is_too_large_stops_the_epoch(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """Nothing of its epoch becomes visible; topic, partition and source offset are named."""
    name = topic(partitions=2, config={"max.message.bytes": "1000"})
    region = region_of(kafka, name, hot_path=hot_path)
    region.source_ranges = (SOURCE,)
    batch = rows(
        value=[b"small", b"x" * 3000, b"small too"],
        topic=["orders"] * 3,
        partition=pa.array([1, 1, 1], pa.int32()),
        offset=pa.array([500, 501, 502], pa.int64()),
    )
    where = refused(region, batch)
    assert (where["topic"], where["partition"]) == (name, 1)
    assert where["code"] == "MSG_SIZE_TOO_LARGE"
    assert (where["source_topic"], where["source_partition"]) == ("orders", 3)
    assert where["source_offset"] == 501
    await_stable(kafka.bootstrap, name)
    assert values(kafka.bootstrap, name) == []


def test_small_records_pass_where_only_their_batch_would_be_too_large(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """librdkafka does not split a refused batch as Java does, so none is made too large."""
    name = topic(config={"max.message.bytes": "2000"})
    sent = [b"%0200d" % n for n in range(2_000)]
    commit(kafka, region_of(kafka, name, hot_path=hot_path).write(rows(value=sent)))
    assert values(kafka.bootstrap, name) == sent


def test_rule_1_an_unknown_partition_stops_the_epoch(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """Also when the error comes from the client and not from the broker."""
    name = topic(partitions=2)
    batch = rows(value=[b"a", b"b"], partition=pa.array([0, 7], pa.int32()), offset=[10, 11])
    where = refused(region_of(kafka, name, hot_path=hot_path), batch)
    assert (where["topic"], where["partition"], where["code"]) == (name, 7, "_UNKNOWN_PARTITION")
    assert where["source_offset"] == 11
    await_stable(kafka.bootstrap, name)
    assert values(kafka.bootstrap, name) == []


def test_a_topic_that_does_not_exist_is_not_made(kafka: EmbeddedKafka) -> None:
    """Although the broker would: a misspelt name must not become a topic."""
    name = unique("misspelt")
    region = region_of(kafka, None, options={"topic.metadata.propagation.max.ms": "500"})
    assert refused(region, rows(topic=[name], value=[b"a"]))["topic"] == name
    admin = make_admin({"bootstrap.servers": kafka.bootstrap})
    assert name not in admin.list_topics(timeout=120).topics


def test_a_partition_added_behind_a_producers_back_is_written(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """A job whose input and output grow together goes on, although its producers were ready."""
    name = topic(partitions=1)
    region = region_of(kafka, name, hot_path=hot_path)
    commit(kafka, region.write(rows(value=[b"a"], partition=[0])))
    writer = region.open("0.0")
    writer.write(rows(value=[b"b"], partition=[0]))  # this producer knows one partition
    add_partitions(kafka.bootstrap, name, total=3)
    writer.write(rows(value=[b"c", b"d", b"e"], partition=[2, 0, 2]))
    commit(kafka, writer.pre_commit())
    found = [(r.partition, r.value) for r in read(kafka.bootstrap, name)]
    assert sorted(found) == [(0, b"a"), (0, b"b"), (0, b"d"), (2, b"c"), (2, b"e")]


def test_after_a_refusal_the_next_attempt_is_clean(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """The same worker writes the epoch again, without what the broker refused."""
    name = topic(config={"max.message.bytes": "1000"})
    region = region_of(kafka, name, hot_path=hot_path)
    refused(region, rows(value=[b"a", b"x" * 3000]))
    commit(kafka, region.write(rows(value=[b"a"]), task="0.1"))
    assert values(kafka.bootstrap, name) == [b"a"]


def test_a_fenced_writer_pre_commits_nothing(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """Whoever takes its id over, its task stops as fenced."""
    name = topic()
    region = region_of(kafka, name, hot_path=hot_path)
    writer = region.open()
    writer.write(rows(value=[b"a"]))
    taken = TransactionIdentity.parse(region.attempts[0].resource).transactional_id
    thief = abandon_transaction(kafka.bootstrap, name, [b"thief"], transactional_id=taken)
    with pytest.raises(FencedError):
        _write_and_pre_commit(writer, rows(value=[b"b"]))
    writer.abort()
    thief.commit_transaction(30)
    await_stable(kafka.bootstrap, name)
    assert values(kafka.bootstrap, name) == [b"thief"]


def _write_and_pre_commit(writer: SinkWriter, batch: pa.RecordBatch) -> None:
    writer.write(batch)
    writer.pre_commit()  # what the client learns may be told by either call


def test_a_timeout_beyond_the_maximum_is_named(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    """A typed error at once, not a producer that never becomes ready."""
    region = region_of(kafka, topic(), transaction_timeout_s=100_000)
    with pytest.raises(ConfigError, match="larger than the maximum"):
        region.write(rows(value=[b"a"]))


def test_many_epochs_leave_two_ids(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    """Rule 4: an id comes back when its checkpoint is committed on record, with a new epoch."""
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


def test_a_wrong_password_is_named_as_such(secure_kafka: SecureKafka, hot_path: str) -> None:
    """Not as a time-out, although the client only times out."""
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": secure_kafka.username,
        "sasl.password": "wrong-canary-9913",
        "ssl.ca.location": str(secure_kafka.ca_file),
    }
    sink = KafkaSink(
        bootstrap_servers=secure_kafka.bootstrap,
        topic="any",
        transactional_id_prefix=unique("sink"),
        options=options,
        hot_path=hot_path,
    )
    with pytest.raises(AuthenticationError) as caught:
        Region(sink.writer_factory()).write(rows(value=[b"a"]))
    assert "wrong-canary" not in str(caught.value)


def test_a_broker_that_says_nothing_has_not_answered() -> None:
    """A listener that takes the connection and no more, as a paused broker's kernel does."""
    with socket.create_server(("127.0.0.1", 0)) as paused:
        server = f"127.0.0.1:{paused.getsockname()[1]}"
        found = describe_limits(KafkaConnection(bootstrap_servers=server), ["out"], timeout_s=0.2)
    assert found == ClusterLimits(answered=False)


def test_a_broker_that_is_not_there_is_an_error_within_30_s() -> None:
    """Bad input: a typed error, in time."""
    sink = KafkaSink(
        bootstrap_servers="127.0.0.1:1", topic="any", transactional_id_prefix=unique("sink")
    )
    with pytest.raises(UnreachableError):
        Region(sink.writer_factory()).write(rows(value=[b"a"]))
