"""Brokers that know only a part of Kafka's requests: a real broker behind a proxy that hides some.

A start names what is missing and what works without it; the second test proves the second half.
"""

import contextlib
from collections.abc import Iterator

import pytest

from sluice.connectors.kafka.client.client_tuning import WriteSettings
from sluice.connectors.kafka.client.confluent import Producer
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.kafka_sink import KafkaSink
from sluice.connectors.kafka.kafka_source import KafkaSource
from sluice.connectors.kafka.sink.producers.cluster_limits import ClusterLimits
from sluice.connectors.kafka.sink.producers.preparation import plain_config
from sluice.runtime.errors import ConfigError
from tests.kit.kafka.kafka_proxy import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    OFFSET_FOR_LEADER_EPOCH,
    TRANSACTION_API,
)
from tests.kit.kafka.kafka_records import create_topic, end_offsets, unique
from tests.kit.kafka.proxied_kafka import ProxiedKafka
from tests.kit.waiting import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.extended]


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


@pytest.mark.parametrize(
    ("hidden", "told"),
    [
        (
            (DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS),
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


def test_a_source_refuses_brokers_that_it_cannot_read(kafka_behind: ProxiedKafka) -> None:
    (proxy,) = kafka_behind.proxies.values()
    topic = unique("plain")
    create_topic(kafka_behind.bootstrap, topic)
    proxy.hide(FETCH)
    source = KafkaSource(bootstrap_servers=kafka_behind.proxied, topics=[topic])
    with pytest.raises(ConfigError, match=r"=Fetch v4 .*Kafka 2\.1"):
        source.check(timeout_s=PATIENCE_S)


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
