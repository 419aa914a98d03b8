"""JSON Schema and Protobuf of a registry in jobs and queries: exactly once, with a real broker."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice import DeadLetters, FixedDelayRestart, Job, KafkaSink, KafkaSource, install
from sluice.connectors.kafka.records.registry.protobuf.message_indexes import index_bytes
from sluice.connectors.kafka.records.registry.schema_registry import close_clients
from sluice.connectors.kafka.records.serde.schema_ids import id_bytes
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.registry import (
    JsonRegistrySerializer,
    ProtobufRegistryDeserializer,
    SchemaRegistry,
    from_registry,
    to_registry,
)
from tests.kit.kafka.fake_registry import FakeRegistry
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique
from tests.kit.waiting import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.extended]

_ORDER = 'syntax = "proto3"; message Order { int64 id = 1; optional string note = 2; }'
_JSON = '{"$schema": "http://json-schema.org/draft-07/schema#", "required": ["id"]}'


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry().served() as served:
        yield served
    close_clients()


def _head(fake: FakeRegistry) -> bytes:
    """The bytes before each order."""
    return id_bytes(fake.add("orders-value", _ORDER, schemaType="PROTOBUF")) + index_bytes([0])


def test_a_registry_that_fails_restarts_the_task_and_makes_no_dead_letter(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    fake: FakeRegistry,
    tmp_path: Path,
) -> None:
    """From Protobuf to JSON; the records that are bad are dead letters, and only these."""
    orders, rows, dead = topic(), topic(), topic()
    head = _head(fake)
    good = [head + b"\x08" + bytes([number]) for number in range(1, 50)]
    bad = [b"no id", id_bytes(999) + b"\0", head[:5] + b"\x02\x08", head + b"\xff"]
    produce(kafka.bootstrap, orders, [*good[:20], *bad, *good[20:]])
    registry = SchemaRegistry(url=fake.url, timeout_s=0.5, request_timeout_s=0.4)
    read_order = ProtobufRegistryDeserializer(
        registry=registry, reader_schema=registry.latest("orders-value")
    )
    write = JsonRegistrySerializer(registry=registry, topic=rows, schema=_JSON)
    fake.failures = [(503, {"error_code": 50301, "message": "no leader"})] * 12
    job = Job(
        unique("registry"),
        spark,
        checkpoint_dir=str(tmp_path / "checkpoint"),
        interval_s=0.5,
        restart_strategy=FixedDelayRestart(attempts=20, delay_s=0.1),
    )
    source = KafkaSource(
        bootstrap_servers=kafka.bootstrap,
        topics=[orders],
        bounded=True,
        value_deserializer=read_order,
        on_error=DeadLetters(topic=dead),
    )
    sink = KafkaSink(
        bootstrap_servers=kafka.bootstrap, topic=rows, transactional_id_prefix=unique("registry")
    )
    job.source(source).map_batches(write).sink(sink)
    job.run()
    assert not fake.failures
    found = [each.value or b"" for each in read(kafka.bootstrap, rows)]
    assert [json.loads(each[5:])["id"] for each in found] == list(range(1, 50))
    assert [each.value for each in read(kafka.bootstrap, dead)] == bad


def _orders(records: DataFrame, registry: SchemaRegistry) -> DataFrame:
    """Orders with even numbers, with a note."""
    order = from_registry("value", registry, "orders-value", mode="PERMISSIVE")
    chosen = records.select("key", order.alias("o")).where("o.id % 2 = 0")
    made = chosen.selectExpr(
        "key", "named_struct('id', o.id, 'note', coalesce(o.note, 'none')) AS o"
    )
    return made.select("key", to_registry("o", registry, "orders-value").alias("value"))


def _expected(head: bytes) -> list[bytes]:
    return [head + b"\x08" + bytes([number]) + b"\x12\x04none" for number in range(2, 40, 2)]


def _produce_orders(kafka: EmbeddedKafka, name: str, head: bytes) -> None:
    orders = [Record(key=b"k", value=head + b"\x08" + bytes([each])) for each in range(1, 40)]
    produce(kafka.bootstrap, name, [*orders[:10], Record(key=b"k", value=b"bad"), *orders[10:]])


def test_columns_of_a_registry_in_a_transform(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    fake: FakeRegistry,
    tmp_path: Path,
) -> None:
    source, output = topic(), topic()
    head = _head(fake)
    _produce_orders(kafka, source, head)
    registry = SchemaRegistry(url=fake.url, timeout_s=PATIENCE_S)
    job = Job(
        unique("registry"), spark, checkpoint_dir=str(tmp_path / "checkpoint"), interval_s=0.5
    )
    job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    ).transform(lambda records: _orders(records, registry)).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap,
            topic=output,
            transactional_id_prefix=unique("registry"),
        )
    )
    job.run()
    assert [each.value for each in read(kafka.bootstrap, output)] == _expected(head)


def test_columns_of_a_registry_in_a_query(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    fake: FakeRegistry,
    tmp_path: Path,
) -> None:
    source, output = topic(), topic()
    head = _head(fake)
    _produce_orders(kafka, source, head)
    install(spark)
    records: Any = (
        spark.readStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    registry = SchemaRegistry(url=fake.url, timeout_s=PATIENCE_S)
    query = (
        _orders(records, registry)
        .writeStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("topic", output)
        .option("transactionalIdPrefix", unique("registry"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)
    assert [each.value for each in read(kafka.bootstrap, output)] == _expected(head)
