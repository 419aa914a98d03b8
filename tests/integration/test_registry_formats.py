"""Protobuf and JSON Schema with a real registry, and with confluent-kafka's own serializers."""

import json
import pickle
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
)
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from sluice.connectors.kafka.records.registry.protobuf.message_indexes import index_bytes
from sluice.connectors.kafka.records.registry.protobuf.protobuf_schema import (
    ProtobufSchema,
    file_text,
)
from sluice.connectors.kafka.records.registry.schema_registry import close_clients
from sluice.connectors.kafka.records.serde.schema_ids import id_bytes
from sluice.registry import (
    IdLocation,
    JsonRegistryDeserializer,
    JsonRegistrySerializer,
    ProtobufRegistryDeserializer,
    ProtobufRegistrySerializer,
    RegisteredSchema,
    SchemaRegistry,
    UnknownSchemaError,
)
from sluice.runtime.errors import ConfigError
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


def _batch(values: list[Any], kind: pa.DataType) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["value"])


_LINES = pa.list_(pa.struct([("article", pa.string())]))
_VALUE = pa.struct(
    [
        ("id", pa.int64()),
        ("buyer", pa.struct([("name", pa.string())])),
        ("counts", pa.map_(pa.string(), pa.int32())),
        ("lines", _LINES),
    ]
)
_SOLD = {"id": 7, "buyer": {"name": "é"}, "counts": [("a", 1)], "lines": [{"article": "x"}]}


def test_confluents_protobuf_deserializer_reads_our_records(
    registry: SchemaRegistry, client: SchemaRegistryClient, subject: str
) -> None:
    """The schema is that of a generated class; the file that it imports is registered first."""
    made = GetMessageClass(_order().message("shop.Order"))
    write = ProtobufRegistrySerializer(registry=registry, subject=subject, schema=made)
    write = pickle.loads(pickle.dumps(write))
    column = write(_batch([_SOLD, None], _VALUE)).column(0)
    read = ProtobufDeserializer(made, {"use.latest.version": False}, client)
    found = read(column[0].as_py(), _context(subject))
    assert (found.id, found.buyer.name, dict(found.counts)) == (7, "é", {"a": 1})
    assert column[1].as_py() is None
    assert [each.name for each in client.get_latest_version(subject).schema.references] == [
        "party.proto"
    ]
    serialized = write(_batch([found.SerializeToString()], pa.binary())).column(0)
    assert serialized[0].as_py() == column[0].as_py()
    with pytest.raises(DecodeError):
        write(_batch([b"\xff"], pa.binary()))
    again = ProtobufRegistrySerializer(
        registry=registry,
        subject=subject,
        schema=registry.latest(subject),
        message="shop.Cancelled",
    )
    data = again(_batch([{"id": 1}], pa.struct([("id", pa.int64())]))).column(0)[0].as_py()
    assert data[5:] == index_bytes([1]) + b"\x08\x01"


def test_confluents_json_deserializer_reads_our_records(
    registry: SchemaRegistry, client: SchemaRegistryClient, subject: str
) -> None:
    schema = json.dumps(_JSON_PARTY | {"$schema": _JSON_ORDER["$schema"]})
    write = JsonRegistrySerializer(registry=registry, subject=subject, schema=schema)
    kind = pa.struct([("name", pa.string())])
    column = write(_batch([{"name": "é"}, None], kind)).column(0)
    assert JSONDeserializer(schema)(column[0].as_py(), _context(subject)) == {"name": "é"}
    assert column[1].as_py() is None
    with pytest.raises(ValueError, match=r"^\$\.name breaks the rule type"):
        write(_batch([{"name": None}], kind))


def test_ids_are_written_into_headers(registry: SchemaRegistry, subject: str) -> None:
    """A header that was copied from the input would name another schema: it goes, in both ways."""
    kind = pa.struct([("name", pa.string())])
    header = {"key": "__value_schema_id", "value": b"old"}
    other = {"key": "other", "value": b"1"}
    batch = _batch([{"name": "x"}] * 2, kind).append_column(
        "headers",
        pa.array(
            [[header, other], None],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    )
    write = ProtobufRegistrySerializer(
        registry=registry, subject=subject, schema=_PARTY, id_location=IdLocation.HEADER
    )
    made = write(batch)
    new = {
        "key": "__value_schema_id",
        "value": id_bytes(registry.latest(subject).schema_id or 0) + index_bytes([0]),
    }
    assert made.column("headers").to_pylist() == [[other, new], [new]]
    assert made.column("value").to_pylist() == [b"\x0a\x01x"] * 2
    assert write(_batch([None], kind)).column("headers").to_pylist() == [None]
    in_payload = replace(write, id_location=IdLocation.PREFIX)(batch)
    assert in_payload.column("headers").to_pylist() == [[other], None]
    reader = ProtobufRegistryDeserializer(registry=registry, reader_schema=_PARTY)
    assert reader.deserialize(in_payload.column("value")).to_pylist() == [{"name": "x"}] * 2
    ids = pa.array([new["value"]] * 2, pa.binary())
    assert reader.deserialize(made.column("value"), ids).to_pylist() == [{"name": "x"}] * 2


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        (
            ProtobufRegistrySerializer,
            'syntax = "proto3"; message M { int32 a = 1; }',
            'syntax = "proto3"; message M { string a = 1; }',
        ),
        (
            JsonRegistrySerializer,
            '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}',
            '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"}',
        ),
    ],
)
def test_an_incompatible_schema_is_an_error_of_the_job(
    registry: SchemaRegistry,
    client: SchemaRegistryClient,
    subject: str,
    kind: Any,
    old: str,
    new: str,
) -> None:
    """And registers nothing."""
    kind(registry=registry, subject=subject, schema=old)
    client.set_compatibility(subject, level="BACKWARD")
    with pytest.raises(ConfigError, match="not compatible with the versions of its subject"):
        kind(registry=registry, subject=subject, schema=new)
    assert client.get_versions(subject) == [1]


@pytest.mark.parametrize("kind", [ProtobufRegistrySerializer, JsonRegistrySerializer])
def test_a_schema_is_not_registered_if_told_so(
    registry: SchemaRegistry, subject: str, kind: Any
) -> None:
    schema = _PARTY if kind is ProtobufRegistrySerializer else json.dumps(_JSON_ORDER)
    with pytest.raises(ConfigError, match="does not have the schema under the subject"):
        kind(registry=registry, subject=subject, schema=schema, auto_register_schemas=False)
    with pytest.raises(ConfigError, match="no such version"):
        registry.latest(subject)
