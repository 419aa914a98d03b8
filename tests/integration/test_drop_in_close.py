"""What closing an installation, as the end of a process does, leaves of its drop-in queries."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sluice
from sluice.connectors.installation import Installation
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import await_stable, produce, values
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.integration

QUERY_S = 600


@pytest.fixture
def installed(spark: SparkSession) -> Iterator[Installation]:
    installation = sluice.install(spark)
    yield installation
    installation.close()


def read(spark: SparkSession, kafka: EmbeddedKafka, topic: str, **options: str) -> DataFrame:
    made = spark.readStream.format("sluice-kafka").option("subscribe", topic)
    made = made.option("kafka.bootstrap.servers", kafka.bootstrap)
    return made.option("startingOffsets", "earliest").options(**options).load().select("value")


def copy(
    frame: DataFrame, kafka: EmbeddedKafka, topic: str, location: Path, **trigger: object
) -> StreamingQuery:
    writer = frame.writeStream.format("sluice-kafka").option("topic", topic)
    writer = writer.option("kafka.bootstrap.servers", kafka.bootstrap)
    writer = writer.option("transactionalIdPrefix", f"copy-{topic}")
    writer = writer.option("checkpointLocation", str(location))
    return writer.trigger(**(trigger or {"availableNow": True})).start()  # type: ignore[arg-type]


def test_closing_stops_the_queries_and_leaves_no_transaction_open(
    spark: SparkSession,
    installed: Installation,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    """What the end of the process does; a new installation goes on where it ended."""
    source, sink = topic(), topic()
    produce(kafka.bootstrap, source, [b"1"])
    query = copy(read(spark, kafka, source), kafka, sink, tmp_path, processingTime="0 seconds")
    wait_for(lambda: values(kafka.bootstrap, sink) == [b"1"], poll_s=0.5)
    installed.close()
    assert not query.isActive
    wire = TransactionWire(KafkaConnection(bootstrap_servers=kafka.bootstrap))
    found = wire.list_transactions(
        f"copy-{sink}/", timeout_s=120.0, states=(TransactionState.ONGOING,)
    )
    wire.close()
    assert not found.transactions

    produce(kafka.bootstrap, source, [b"2"])
    again = sluice.install(spark)
    try:
        assert copy(read(spark, kafka, source), kafka, sink, tmp_path).awaitTermination(QUERY_S)
    finally:
        again.close()
    await_stable(kafka.bootstrap, sink)
    assert values(kafka.bootstrap, sink) == [b"1", b"2"]
