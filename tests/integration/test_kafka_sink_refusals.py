"""The sink's writers on a real broker: what is refused, and what is left of it: nothing."""

import socket
import time

import pyarrow as pa
import pytest

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import make_admin
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.kafka_sink import KafkaSink
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.connectors.kafka.sink.producers.cluster_limits import LimitsAnswer, fetch_limits
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.contracts import SinkWriter
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    DeliveryError,
    FencedError,
    UnreachableError,
)
from sluice.runtime.model.splits import SplitRange
from tests.kit.coordinator.sink_region import (
    Region,
    commit,
    no_pools_left,
    refused,
    region_of,
    rows,
)
from tests.kit.kafka.kafka_fixture import SecureKafka, TopicFactory
from tests.kit.kafka.kafka_records import (
    abandon_transaction,
    add_partitions,
    await_stable,
    read,
    unique,
    values,
)
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

__all__ = ["no_pools_left"]  # a fixture of every test here


SOURCE = SplitRange(
    source_id="s", topic="orders", topic_id="x", partition=3, start_offset=500, end_offset=600
)


def test_pre_commit_confirmed_a_record_that_is_too_large_stops_the_epoch(
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


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("case", "code", "remedy"),
    [
        ("ahead", "INVALID_TIMESTAMP", "Clamp or drop"),
        ("two ahead", "INVALID_TIMESTAMP", "Clamp or drop"),
        ("no key", "INVALID_RECORD", "Give each record a key"),
    ],
)
def test_pre_commit_confirmed_the_refused_record_is_named_and_no_innocent_one(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str, case: str, code: str, remedy: str
) -> None:
    """Offset 520 is refused, 533 is the largest. The plain path does not get the broker's names,
    and has the range alone."""
    name = topic(config={"cleanup.policy": "compact"} if case == "no key" else {})
    now_ms = round(time.time() * 1000)
    bad = {20, 21} if case == "two ahead" else {20}
    is_late = case != "no key"
    batch = rows(
        key=[None if n in bad and not is_late else b"k" for n in range(60)],
        value=[b"x" * (200 if n == 33 else 10) for n in range(60)],
        timestamp=pa.array(
            [now_ms + (2 * HOUR_MS if n in bad and is_late else 0) for n in range(60)],
            pa.timestamp("ms", "UTC"),
        ),
        topic=["orders"] * 60,
        partition=pa.array([0] * 60, pa.int32()),
        offset=pa.array(range(500, 560), pa.int64()),
    )
    region = region_of(kafka, name, hot_path=hot_path)
    region.source_ranges = (SOURCE,)
    with pytest.raises(DeliveryError, match=remedy) as caught:
        region.write(batch)
    where = caught.value.args[1]
    assert where["code"] == code
    if hot_path == "plain":
        assert where["source_ranges"] == "orders-3[500,600)"
        assert "source_offset" not in where
    else:
        assert where["source_offset"] == 520
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


def test_pre_commit_confirmed_an_unknown_partition_stops_the_epoch(
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
    thief.commit_transaction(PATIENCE_S)
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


@pytest.mark.parametrize(
    "hot_path",
    ["native", pytest.param("plain", marks=pytest.mark.extended)],
    indirect=True,
)
def test_a_wrong_password_is_named_as_such(
    secure_kafka: SecureKafka, hot_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as a time-out, although the client only times out."""
    monkeypatch.setattr("sluice.connectors.kafka.client.login_refusals.LASTING_S", 2.0)
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
        found = fetch_limits(KafkaConnection(bootstrap_servers=server), ["out"], timeout_s=0.2)
    assert found == LimitsAnswer(unanswered=frozenset({"cluster"}))


def test_limits_count_the_partitions_of_every_topic(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Dead letters' too. One that does not exist, or a topic column, and nobody knows."""
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap)
    both = [topic(partitions=3), topic(partitions=2)]
    missing = unique("missing")
    counted = [
        fetch_limits(connection, topics, timeout_s=PATIENCE_S)
        for topics in (both, [*both, missing], [])
    ]
    assert [look.partitions for look in counted] == [5, None, None]
    assert not any(look.is_partial for look in counted), "that a topic is missing is an answer"
    named_by_records = KafkaSink(
        bootstrap_servers=kafka.bootstrap, transactional_id_prefix=unique("sink")
    ).with_dead_letters(both[:1])
    assert named_by_records.writer_factory().limits().partitions is None
    admin = make_admin(connection.librdkafka(Role.ADMIN))
    assert missing not in admin.list_topics(timeout=PATIENCE_S).topics


@pytest.mark.extended
def test_a_broker_that_is_not_there_is_an_error_once_its_time_is_over() -> None:
    """A typed one, when a record would be given up, but not before half a minute."""
    sink = KafkaSink(
        bootstrap_servers="127.0.0.1:1",
        topic="any",
        transactional_id_prefix=unique("sink"),
        options={"message.timeout.ms": 1_000},
    )
    with pytest.raises(UnreachableError):
        Region(sink.writer_factory()).write(rows(value=[b"a"]))
