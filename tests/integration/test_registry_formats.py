"""Protobuf and JSON Schema with a real registry, and with confluent-kafka's own serializers."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
)
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass

from sluice.connectors.kafka.records.registry.message_indexes import index_bytes
from sluice.connectors.kafka.records.registry.protobuf_schema import ProtobufSchema, file_text
from sluice.connectors.kafka.records.registry.schema_registry import close_clients
from sluice.connectors.kafka.records.serde.schema_ids import id_bytes
from sluice.registry import (
    JsonRegistryDeserializer,
    ProtobufRegistryDeserializer,
    RegisteredSchema,
    SchemaRegistry,
    UnknownSchemaError,
)
from tests.kit.kafka.registry_server import EmbeddedRegistry

pytestmark = [pytest.mark.integration, pytest.mark.extended]

_PARTY = 'syntax = "proto3"; package shop; message Party { string name = 1; }'
_ORDER = """
syntax = "proto3";
package shop;
import "party.proto";
message Order {
  int64 id = 1;
  Party buyer = 2;
  map<string, int32> counts = 3;
  message Line { string article = 1; }
  repeated Line lines = 4;
}
message Cancelled { int64 id = 1; }
"""


@pytest.fixture(scope="module")
def registry(registry_server: EmbeddedRegistry) -> Iterator[SchemaRegistry]:
    yield SchemaRegistry(url=registry_server.url)
    close_clients()


@pytest.fixture(scope="module")
def client(registry_server: EmbeddedRegistry) -> Iterator[SchemaRegistryClient]:
    """Confluent's own."""
    with SchemaRegistryClient({"url": registry_server.url}) as made:
        yield made


@pytest.fixture
def subject() -> str:
    """A name that no other test uses; also of the topic."""
    return f"t{uuid.uuid4().hex}-value"


def _order() -> Any:
    schema = RegisteredSchema(text=_ORDER, schema_type="PROTOBUF", named=(("party.proto", _PARTY),))
    return ProtobufSchema.of(schema)


def _context(subject: str, headers: list[Any] | None = None) -> SerializationContext:
    return SerializationContext(subject.removesuffix("-value"), MessageField.VALUE, headers)


@pytest.mark.parametrize("is_text", [True, False], ids=["text", "descriptor"])
def test_records_of_confluents_protobuf_serializer(
    registry: SchemaRegistry, client: SchemaRegistryClient, subject: str, is_text: bool
) -> None:
    """The schema refers to another one, and is in the registry as text or as a descriptor."""
    made = GetMessageClass(_order().message("shop.Order"))
    order = made(id=-1, buyer={"name": "é"}, counts={"b": 2, "a": 1}, lines=[{"article": "x"}])
    if is_text:
        client.register_schema("party.proto", Schema(_PARTY, "PROTOBUF"))
        version = client.get_latest_version("party.proto").version
        reference = SchemaReference("party.proto", "party.proto", version)
        number = client.register_schema(subject, Schema(_ORDER, "PROTOBUF", [reference]))
        data = id_bytes(number) + index_bytes([0]) + order.SerializeToString()
    else:
        data = ProtobufSerializer(made, client)(order, _context(subject))
    reader = ProtobufRegistryDeserializer(registry=registry, reader_schema=registry.latest(subject))
    found = reader.deserialize(pa.array([data, None, data], pa.binary()))
    value = {
        "id": -1,
        "buyer": {"name": "é"},
        "counts": [("a", 1), ("b", 2)],
        "lines": [{"article": "x"}],
    }
    assert found.to_pylist() == [value, None, value]


def test_a_message_in_a_message_after_a_map(
    registry: SchemaRegistry, client: SchemaRegistryClient, subject: str
) -> None:
    """Java's serializers do not count the entry that the compiler makes of a map."""
    text = file_text(_order().message(None).file)
    party = client.register_schema("party.proto", Schema(_PARTY, "PROTOBUF"))
    assert party
    version = client.get_latest_version("party.proto").version
    reference = SchemaReference("party.proto", "party.proto", version)
    number = client.register_schema(subject, Schema(text, "PROTOBUF", [reference]))
    reader = ProtobufRegistryDeserializer(
        registry=registry, reader_schema=registry.latest(subject), message="shop.Order.Line"
    )
    data = id_bytes(number) + index_bytes([0, 0]) + b"\x0a\x01x"
    assert reader.deserialize(pa.array([data])).to_pylist() == [{"article": "x"}]


def test_an_unknown_message_index_is_a_bad_record(
    registry: SchemaRegistry, client: SchemaRegistryClient, subject: str
) -> None:
    number = client.register_schema(subject, Schema(_PARTY, "PROTOBUF"))
    reader = ProtobufRegistryDeserializer(registry=registry, reader_schema=_PARTY)
    for indexes in (index_bytes([1]), index_bytes([0, 0]), b"\2\1", b"\1\2", b""):
        data = id_bytes(number) + indexes
        with pytest.raises(ValueError, match="no message"):
            reader.deserialize(pa.array([data]))


_JSON_ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 0}, "buyer": {"$ref": "party.json"}},
    "required": ["id"],
}
_JSON_PARTY = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
_COLUMNS = pa.schema([("id", pa.int64()), ("buyer", pa.struct([("name", pa.string())]))])


def test_records_of_confluents_json_serializer(
    registry: SchemaRegistry, client: SchemaRegistryClient, subject: str
) -> None:
    """The schema refers to another one; a record that breaks that one is bad."""
    client.register_schema("party-json", Schema(json.dumps(_JSON_PARTY), "JSON"))
    version = client.get_latest_version("party-json").version
    reference = SchemaReference("party.json", "party-json", version)
    schema = Schema(json.dumps(_JSON_ORDER), "JSON", [reference])
    write = JSONSerializer(schema, client)
    good = write({"id": 1, "buyer": {"name": "é"}}, _context(subject))
    reader = JsonRegistryDeserializer(registry=registry, schema=_COLUMNS)
    found = reader.deserialize(pa.array([None, good], pa.binary()))
    assert found.to_pylist() == [None, {"id": 1, "buyer": {"name": "é"}}]
    trusting = JSONSerializer(schema, client, conf={"validate": False})
    for value, place in (
        ({"id": -1}, r"\$\.id breaks the rule minimum"),
        ({"id": 1, "buyer": {}}, "buyer breaks the rule required"),
    ):
        bad = trusting(value, _context(subject))
        with pytest.raises(ValueError, match=place):
            reader.deserialize(pa.array([good, bad]))
        unchecked = JsonRegistryDeserializer(registry=registry, schema=_COLUMNS, validate=False)
        assert len(unchecked.deserialize(pa.array([good, bad]))) == 2


def test_a_schema_of_another_type_is_a_bad_record(
    registry: SchemaRegistry, client: SchemaRegistryClient, subject: str
) -> None:
    """Not an error of the job: another program's record in the topic."""
    number = client.register_schema(subject, Schema('"string"', "AVRO"))
    data = pa.array([id_bytes(number) + b"\0\2a"])
    for reader in (
        JsonRegistryDeserializer(registry=registry, schema=_COLUMNS),
        ProtobufRegistryDeserializer(registry=registry, reader_schema=_PARTY),
    ):
        with pytest.raises(UnknownSchemaError, match="AVRO"):
            reader.deserialize(data)


def test_ids_in_headers(
    registry: SchemaRegistry, client: SchemaRegistryClient, subject: str
) -> None:
    """The message's place in its schema is in the header, too; confluent-kafka writes GUIDs, which
    this registry does not have."""
    number = client.register_schema(subject, Schema(_PARTY, "PROTOBUF"))
    reader = ProtobufRegistryDeserializer(registry=registry, reader_schema=_PARTY)
    payload = b"\x0a\x01x"
    header = id_bytes(number) + index_bytes([0])
    rows, headers = pa.array([payload, header + payload]), pa.array([header, None], pa.binary())
    assert reader.deserialize(rows, headers).to_pylist() == [{"name": "x"}] * 2
    for wrong in (id_bytes(number), header + b"x", b""):
        with pytest.raises(ValueError, match="schema id"):
            reader.deserialize(rows[:1], pa.array([wrong]))
