"""Columns of a registry in Spark's frames: values, bad records, and a registry that fails."""

import datetime
import json
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from fastavro import parse_schema, schemaless_writer
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import DataFrame, Row, SparkSession

from sluice.connectors.kafka.records.registry.protobuf.message_indexes import index_bytes
from sluice.connectors.kafka.records.registry.protobuf.protobuf_schema import ProtobufSchema
from sluice.connectors.kafka.records.registry.schema_registry import close_clients
from sluice.connectors.kafka.records.serde.schema_ids import id_bytes
from sluice.registry import IdLocation, RegisteredSchema, SchemaRegistry, from_registry, to_registry
from sluice.runtime.errors import ConfigError
from tests.kit.kafka.fake_registry import FakeRegistry
from tests.kit.kafka.registry_server import EmbeddedRegistry

pytestmark = [pytest.mark.integration, pytest.mark.extended]

_PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
message Order {
  int64 id = 1;
  uint64 big = 2;
  google.protobuf.Timestamp at = 3;
  google.protobuf.Duration took = 4;
  map<string, double> prices = 5;
  repeated Line lines = 6;
  google.protobuf.StringValue note = 7;
  message Line { optional string article = 1; }
  uint32 count = 8;
}
"""


_JSON = '{"$schema": "http://json-schema.org/draft-07/schema#", "required": ["id"]}'


@pytest.fixture(scope="module")
def registry(registry_server: EmbeddedRegistry) -> Iterator[SchemaRegistry]:
    yield SchemaRegistry(url=registry_server.url)
    close_clients()


@pytest.fixture(scope="module")
def client(registry_server: EmbeddedRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry_server.url}) as made:
        yield made


@pytest.fixture
def subject() -> str:
    return f"t{uuid.uuid4().hex}-value"


def _frame(spark: SparkSession, *records: bytes | None) -> DataFrame:
    rows = [
        (number, None if each is None else bytearray(each)) for number, each in enumerate(records)
    ]
    return (
        spark.createDataFrame(rows, "number int, value binary")
        .repartition(1)
        .sortWithinPartitions("number")
    )


def _values(frame: DataFrame) -> list[Any]:
    return [row[0] for row in frame.collect()]


def test_protobuf(
    spark: SparkSession, registry: SchemaRegistry, client: SchemaRegistryClient, subject: str
) -> None:
    """Unsigned numbers become larger signed ones; a duration is an interval."""
    number = client.register_schema(subject, Schema(_PROTO, "PROTOBUF"))
    message = ProtobufSchema.of(RegisteredSchema(text=_PROTO, schema_type="PROTOBUF")).message(None)
    order = GetMessageClass(message)(
        id=-1,
        big=2**64 - 1,
        at={"seconds": -1, "nanos": 1000},
        took={"seconds": 1},
        prices={"b": 1.5, "a": -0.0},
        lines=[{}, {"article": ""}],
        note={},
        count=2**32 - 1,
    )
    data = id_bytes(number) + index_bytes([0]) + order.SerializeToString()
    frame = _frame(spark, data, None).select(from_registry("value", registry, subject))
    found, tombstone = _values(frame)
    assert tombstone is None
    assert found.asDict() == {
        "id": -1,
        "big": Decimal(2**64 - 1),
        "at": found["at"],
        "took": datetime.timedelta(seconds=1),
        "prices": {"a": -0.0, "b": 1.5},
        "lines": [Row(article=None), Row(article="")],
        "note": "",
        "count": 2**32 - 1,
    }
    micros = frame.selectExpr(f"unix_micros(`{frame.columns[0]}`.at)")
    assert _values(micros) == [-999_999, None]


_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}},
    ],
}


def _avro(value: Any) -> bytes:
    import io

    out = io.BytesIO()
    schemaless_writer(out, parse_schema(_AVRO), value)
    return out.getvalue()


def test_avro_with_ids_in_headers_and_bad_records(
    spark: SparkSession, registry: SchemaRegistry, client: SchemaRegistryClient, subject: str
) -> None:
    """A bad record is null, or fails the task; the records around it keep their values."""
    number = client.register_schema(subject, Schema(json.dumps(_AVRO), "AVRO"))
    payload = _avro({"id": 1, "at": datetime.time(1, 2, 3, 4000)})
    head = [("__value_schema_id", bytearray(id_bytes(number)))]
    rows = [
        (0, bytearray(id_bytes(number) + payload), []),
        (1, bytearray(payload), head),
        (2, bytearray(id_bytes(99_999) + payload), []),
        (3, bytearray(payload + b"x"), head),
        (4, None, []),
        (5, bytearray(id_bytes(number) + payload), None),
    ]
    frame = (
        spark.createDataFrame(
            rows, "number int, value binary, headers array<struct<key string, value binary>>"
        )
        .repartition(1)
        .sortWithinPartitions("number")
    )
    column = from_registry("value", registry, subject, headers="headers", mode="PERMISSIVE")
    good = Row(id=1, at=datetime.time(1, 2, 3, 4000))
    assert _values(frame.select(column)) == [good, good, None, None, None, good]
    strict = from_registry(frame.value, registry, subject, headers=frame.headers)
    with pytest.raises(Exception, match="a record cannot be read by its schema"):
        frame.select(strict).collect()


@pytest.mark.parametrize("schema_type", ["AVRO", "JSON", "PROTOBUF"])
def test_to_registry_writes_records_that_from_registry_reads(
    spark: SparkSession, registry: SchemaRegistry, subject: str, schema_type: str
) -> None:
    """The schema is registered once, as the function is called."""
    price = {"name": "price", "type": ["null", "double"]}
    fields = [{"name": "id", "type": "long"}, price]
    text = {
        "AVRO": json.dumps({"type": "record", "name": "M", "fields": fields}),
        "JSON": _JSON,
        "PROTOBUF": 'syntax = "proto3"; message M { int64 id = 1; optional double price = 2; }',
    }[schema_type]
    frame = spark.range(3).selectExpr(
        "if(id = 1, null, struct(id, if(id = 2, -0.0D, null) AS price)) AS order"
    )
    column = to_registry("order", registry, subject, schema=text, schema_type=schema_type)
    assert registry.latest(subject).schema_type == schema_type
    written = frame.select(column.alias("value"))
    by = {"schema": "id long, price double"} if schema_type == "JSON" else {"subject": subject}
    found = _values(written.select(from_registry("value", registry, **by)))
    assert repr(found) == repr([Row(id=0, price=None), None, Row(id=2, price=-0.0)])
    latest = to_registry("order", registry, subject)
    assert frame.select(latest).collect() == written.collect()


def test_a_value_that_does_not_fit_fails_the_task(
    spark: SparkSession, registry: SchemaRegistry, subject: str
) -> None:
    column = to_registry(
        "v",
        registry,
        subject,
        schema='syntax = "proto3"; message M { int32 id = 1; }',
        schema_type="protobuf",
    )
    with pytest.raises(Exception, match="not in range"):
        spark.range(1).selectExpr("struct(3000000000L AS id) AS v").select(column).collect()
    with pytest.raises(ConfigError, match="no schemas of this type"):
        to_registry("v", registry, subject, schema="{}", schema_type="THRIFT")
    with pytest.raises(ConfigError, match="cannot hold ids"):
        to_registry("v", registry, subject, id_location=IdLocation.HEADER)


def test_json(
    spark: SparkSession, registry: SchemaRegistry, client: SchemaRegistryClient, subject: str
) -> None:
    """Its column is given: JSON Schema has no types of columns."""
    number = client.register_schema(subject, Schema(_JSON, "JSON"))
    records = [id_bytes(number) + text for text in (b'{"id": 1}', b"{}", b'{"id": "a"}')]
    column = from_registry("value", registry, schema="id long, note string", mode="permissive")
    assert _values(_frame(spark, *records).select(column)) == [Row(id=1, note=None), None, None]
    with pytest.raises(ConfigError, match="does not give the type of a column"):
        from_registry("value", registry, subject)


@pytest.mark.parametrize(
    "given",
    [{}, {"subject": "a", "schema": "id long"}, {"schema": "id long", "mode": "DROPMALFORMED"}],
)
def test_wrong_arguments(registry: SchemaRegistry, given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        from_registry("value", registry, **given)


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE"])
def test_a_dead_registry_fails_the_task_and_a_later_try_succeeds(
    spark: SparkSession, mode: str
) -> None:
    """It makes no record a bad one."""
    with FakeRegistry().served() as fake:
        number = fake.add("s", {}, schemaType="JSON")
        registry = SchemaRegistry(url=fake.url, timeout_s=0.05, request_timeout_s=0.05)
        column = from_registry("value", registry, schema="id long", mode=mode)
        frame = _frame(spark, id_bytes(number) + b'{"id": 1}').select(column)
        fake.failures = [(503, {"error_code": 50301, "message": "no leader"})] * 2
        assert _values(frame) == [Row(id=1)]
        assert len(fake.paths) >= 3
        fake.failures = [(503, {})] * 1000
        changed = SchemaRegistry(url=fake.url, timeout_s=0.06, request_timeout_s=0.05)
        column = from_registry("value", changed, schema="id long", mode=mode)
        with pytest.raises(Exception, match="the schema registry does not answer"):
            _frame(spark, id_bytes(number) + b'{"id": 1}').select(column).collect()


def test_a_frozen_registry_fails_the_task(
    spark: SparkSession,
    registry_server: EmbeddedRegistry,
    client: SchemaRegistryClient,
    subject: str,
) -> None:
    """It accepts connections and does not answer."""
    number = client.register_schema(subject, Schema(_JSON, "JSON"))
    registry = SchemaRegistry(url=registry_server.url, timeout_s=0.5, request_timeout_s=0.3)
    column = from_registry("value", registry, schema="id long", mode="PERMISSIVE")
    frame = _frame(spark, id_bytes(number) + b'{"id": 1}').select(column)
    registry_server.pause()
    try:
        with pytest.raises(Exception, match="the schema registry does not answer"):
            frame.collect()
    finally:
        registry_server.resume()
    patient = from_registry("value", SchemaRegistry(url=registry_server.url), schema="id long")
    assert _values(_frame(spark, id_bytes(number) + b'{"id": 1}').select(patient)) == [Row(id=1)]
