"""Brokers that know only a part of Kafka's requests: a proxy before a real broker hides some.

A start names the missing requests, and the sinks that work without them. `test_what_an_error_names_works…` proves the
second half.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import sluice
from sluice import Job
from sluice.connectors.kafka.client.client_tuning import WriteSettings
from sluice.connectors.kafka.client.confluent import Producer
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.kafka_sink import KafkaSink
from sluice.connectors.kafka.kafka_source import KafkaSource
from sluice.connectors.kafka.sink.producers.cluster_limits import ClusterLimits
from sluice.connectors.kafka.sink.producers.preparation import plain_config
from sluice.runtime.errors import ConfigError, SourceChangedError
from tests.kit.kafka.kafka_proxy import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    TRANSACTION_API,
)
from tests.kit.kafka.kafka_records import (
    Record,
    create_topic,
    delete_topic,
    end_offsets,
    produce,
    unique,
)
from tests.kit.kafka.proxied_kafka import ProxiedKafka
from tests.kit.source.kafka_source_reading import TIMEOUT_S, cut, rows, start, values
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

_LISTING = (DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS)
_SENTENCE = (
    r"the brokers lack requests that an exactly-once sink sends "
    r"\[missing=DescribeTransactions, ListTransactions servers=[0-9.:]+\]\. "
    r"Use Kafka 3\.0 or later\. .*at-least-once and sources work"
)


@pytest.fixture(scope="module")
def one_broker() -> Iterator[ProxiedKafka]:
    with ProxiedKafka(transaction_version=2) as made:
        yield made


@pytest.fixture
def kafka_behind(one_broker: ProxiedKafka) -> Iterator[ProxiedKafka]:
    """A broker with its proxy, which hides nothing after each test."""
    yield one_broker
    for proxy in one_broker.proxies.values():
        proxy.hide()
        proxy.limit({})


@pytest.mark.extended
@pytest.mark.parametrize(
    ("hidden", "told"),
    [
        (
            _LISTING,
            r"=DescribeTransactions, ListTransactions .*3\.0.*at-least-once and sources work",
        ),
        ((ADD_PARTITIONS_TO_TXN,), "=AddPartitionsToTxn .*at-least-once and sources work"),
        ((INIT_PRODUCER_ID, END_TXN), "=InitProducerId, EndTxn .*idempotence=false"),
    ],
)
def test_a_broker_without_part_of_the_transaction_api_is_refused_at_the_start(
    kafka_behind: ProxiedKafka, hidden: tuple[int, ...], told: str
) -> None:
    """By what it lacks; before, such a start hung until its transactions timed out."""
    (proxy,) = kafka_behind.proxies.values()
    proxy.hide(*hidden)
    sink = KafkaSink(
        bootstrap_servers=kafka_behind.proxied, topic="any", transactional_id_prefix="any"
    )
    with (
        contextlib.closing(sink.coordinator()) as coordinator,
        pytest.raises(ConfigError, match=told),
    ):
        coordinator.check(timeout_s=PATIENCE_S)


@pytest.fixture
def topics(kafka_behind: ProxiedKafka) -> tuple[str, str]:
    """One with a record, and an empty one; the broker lacks two requests from now on."""
    source, output = (create_topic(kafka_behind.bootstrap, partitions=1) for _ in range(2))
    produce(kafka_behind.bootstrap, source, [Record(value=b"value", partition=0)])
    (proxy,) = kafka_behind.proxies.values()
    proxy.hide(*_LISTING)
    return source, output


@pytest.mark.parametrize("way", ["run", "start"])
def test_a_job_on_such_a_broker_ends_with_one_sentence(
    spark: SparkSession,
    kafka_behind: ProxiedKafka,
    topics: tuple[str, str],
    tmp_path: Path,
    way: str,
) -> None:
    servers, (source, output) = kafka_behind.proxied, topics
    job = Job("partial", spark, checkpoint_dir=str(tmp_path / "checkpoint"), interval_s=0.2)
    job.source(KafkaSource(bootstrap_servers=servers, topics=[source], bounded=True)).sink(
        KafkaSink(bootstrap_servers=servers, topic=output, transactional_id_prefix=output)
    )
    runs = {"run": job.run, "start": lambda: job.start().wait(PATIENCE_S)}
    with pytest.raises(ConfigError, match=f"^{_SENTENCE}"):
        runs[way]()
    assert end_offsets(kafka_behind.bootstrap, output) == {0: 0}


def test_a_drop_in_query_on_such_a_broker_ends_with_one_sentence(
    spark: SparkSession, kafka_behind: ProxiedKafka, topics: tuple[str, str], tmp_path: Path
) -> None:
    source, output = topics
    with contextlib.closing(sluice.install(spark)):
        frame = (
            spark.readStream.format("sluice-kafka")
            .option("kafka.bootstrap.servers", kafka_behind.proxied)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
        )
        writer = (
            frame.select("value")
            .writeStream.format("sluice-kafka")
            .option("kafka.bootstrap.servers", kafka_behind.proxied)
            .option("topic", output)
            .option("transactionalIdPrefix", output)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        with pytest.raises((ConfigError, StreamingQueryException), match=_SENTENCE):
            writer.start().awaitTermination(PATIENCE_S)
    assert end_offsets(kafka_behind.bootstrap, output) == {0: 0}


@pytest.mark.extended
def test_what_an_error_names_works_without_the_transaction_api(kafka_behind: ProxiedKafka) -> None:
    """A source, and a sink at least once without idempotence, on a broker without all of it."""
    (proxy,) = kafka_behind.proxies.values()
    topic = unique("plain")
    create_topic(kafka_behind.bootstrap, topic)
    options = {"kafka.enable.idempotence": "false"}
    sink = KafkaSink(
        bootstrap_servers=kafka_behind.proxied,
        topic=topic,
        guarantee="at-least-once",
        options=options,
    )
    source = KafkaSource(bootstrap_servers=kafka_behind.proxied, topics=[topic])
    proxy.hide(INIT_PRODUCER_ID, *TRANSACTION_API)
    with contextlib.closing(sink.coordinator()) as coordinator:
        assert coordinator.check(timeout_s=PATIENCE_S)["guarantee"] == "at-least-once"
    assert source.check(timeout_s=PATIENCE_S)["partitions"] == "1"
    connection = KafkaConnection(
        bootstrap_servers=kafka_behind.proxied, options={"enable.idempotence": "false"}
    )
    producer = Producer(
        plain_config(
            connection,
            ClusterLimits(),
            WriteSettings(queue_kib=1024, queue_records=1000),
            idempotent=True,
        )
    )
    producer.produce(topic, b"value")
    assert producer.flush(PATIENCE_S) == 0
    assert end_offsets(kafka_behind.bootstrap, topic) == {0: 1}


@pytest.mark.extended
def test_a_source_refuses_brokers_that_it_cannot_read(kafka_behind: ProxiedKafka) -> None:
    (proxy,) = kafka_behind.proxies.values()
    topic = unique("plain")
    create_topic(kafka_behind.bootstrap, topic)
    proxy.hide(FETCH)
    source = KafkaSource(bootstrap_servers=kafka_behind.proxied, topics=[topic])
    with pytest.raises(ConfigError, match=r"=Fetch v4 .*Kafka 2\.1"):
        source.check(timeout_s=PATIENCE_S)


@pytest.mark.extended
def test_a_source_warns_if_truncated_logs_would_not_be_detected(
    kafka_behind: ProxiedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    (proxy,) = kafka_behind.proxies.values()
    topic = unique("plain")
    create_topic(kafka_behind.bootstrap, topic)
    proxy.hide(OFFSET_FOR_LEADER_EPOCH)
    source = KafkaSource(bootstrap_servers=kafka_behind.proxied, topics=[topic])
    assert source.check(timeout_s=PATIENCE_S)["partitions"] == "1"
    (warning,) = [r.getMessage() for r in caplog.records if "truncated logs" in r.getMessage()]
    assert "missing=OffsetForLeaderEpoch" in warning


def test_a_source_warns_if_offsets_have_no_leader_epochs(
    kafka_behind: ProxiedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    (proxy,) = kafka_behind.proxies.values()
    topic = create_topic(kafka_behind.bootstrap, partitions=1)
    proxy.limit({LIST_OFFSETS: 3})
    source = KafkaSource(bootstrap_servers=kafka_behind.proxied, topics=[topic])
    source.check(timeout_s=PATIENCE_S)
    (warning,) = [r.getMessage() for r in caplog.records if "truncated logs" in r.getMessage()]
    assert "missing=ListOffsets v4 " in warning
    _, positions = start(source)
    assert [position.leader_epoch for position in positions] == [None]


def test_brokers_without_topic_ids_are_warned_of_and_may_be_upgraded(
    kafka_behind: ProxiedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """As Kafka before 2.8. A later broker gives the id of the untouched topic, which is then compared."""
    (proxy,) = kafka_behind.proxies.values()
    topic = create_topic(kafka_behind.bootstrap, partitions=1)
    produce(kafka_behind.bootstrap, topic, [b"1", b"2"])
    proxy.limit({METADATA: 9})
    source = KafkaSource(bootstrap_servers=kafka_behind.proxied, topics=[topic])
    source.check(timeout_s=PATIENCE_S)
    (warning,) = [r.getMessage() for r in caplog.records if "topic ids" in r.getMessage()]
    assert "missing=Metadata v10 " in warning
    position = cut(*start(source))
    assert values(rows(source, position)) == [b"1", b"2"]
    proxy.limit({})
    upgraded = KafkaSource(bootstrap_servers=kafka_behind.proxied, topics=[topic])
    enumerator = upgraded.enumerator("s")
    enumerator.restore(position, timeout_s=TIMEOUT_S)
    position = cut(enumerator, position)
    delete_topic(kafka_behind.bootstrap, topic)
    create_topic(kafka_behind.bootstrap, topic, partitions=1)
    with pytest.raises(SourceChangedError, match="recreated"):
        upgraded.enumerator("s").restore(position, timeout_s=TIMEOUT_S)
    caplog.clear()
    upgraded.check(timeout_s=PATIENCE_S)
    assert not [r for r in caplog.records if "topic ids" in r.getMessage()]
