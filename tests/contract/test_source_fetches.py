"""What a look at a source's topics sends (`wait-for-all-brokers`): DescribeConfigs, Metadata,
ListOffsets, Fetch.

By kafka-python's undocumented classes, too; a version that answers differently fails here.
"""

import time

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.source.enumerator.topic_compression import TopicLoad, fetch_topic_load
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.ports import HOST, free_ports
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import produce_transaction

pytestmark = pytest.mark.integration

CODECS = ("gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_the_newest_batch_reports_its_codec_after_markers_and_what_was_aborted(
    kafka: EmbeddedKafka, topic: TopicFactory, codec: str
) -> None:
    """ListOffsets gives the ends, Fetch one batch whatever its size; markers have no codec."""
    name = topic(config={"max.message.bytes": "123456"})
    for is_committed in (True, False):
        produce_transaction(
            kafka.bootstrap,
            name,
            [b"value" * 100] * 50,
            commit=is_committed,
            options={"compression.type": codec},
        )
    found = fetch_topic_load(
        KafkaConnection(bootstrap_servers=kafka.bootstrap), [(name, 0)], timeout_s=300
    )
    assert found == TopicLoad(codec=codec, codecs=(codec,), batch_bytes=123456)


def test_a_topic_with_a_codec_of_its_own_reports_it_without_a_batch(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """DescribeConfigs: the broker compresses again, whatever the producer sent."""
    name = topic(config={"compression.type": "lz4"})
    found = fetch_topic_load(
        KafkaConnection(bootstrap_servers=kafka.bootstrap), [(name, 0)], timeout_s=300
    )
    assert found.codec == "lz4"


def test_an_empty_topic_and_one_that_is_not_there_have_no_codec(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Nothing is guessed, and no topic is made by the question."""
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap)
    assert fetch_topic_load(connection, [(topic(), 0)], timeout_s=300).codec is None
    assert fetch_topic_load(connection, [("no-such-topic", 0)], timeout_s=300).codec is None


def test_a_broker_that_is_not_there_costs_the_time_that_was_given_and_nothing_else() -> None:
    (port,) = free_ports(1)
    began_s = time.monotonic()
    connection = KafkaConnection(bootstrap_servers=f"{HOST}:{port}")
    assert fetch_topic_load(connection, [("orders", 0)], timeout_s=2) == TopicLoad()
    assert time.monotonic() - began_s < 300
