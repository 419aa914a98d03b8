"""Values as JSON Schema and Protobuf records with the id of their schema."""

import pickle
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from sluice.connectors.kafka.records.registry.protobuf.message_indexes import index_bytes
from sluice.connectors.kafka.records.registry.protobuf.protobuf_schema import ProtobufSchema
from sluice.connectors.kafka.records.serde.schema_ids import id_bytes
from sluice.registry import (
    IdLocation,
    JsonRegistrySerializer,
    ProtobufRegistrySerializer,
    RegisteredSchema,
    SchemaRegistry,
    SubjectNameStrategy,
)
from sluice.runtime.errors import ConfigError
from tests.kit.kafka.fake_registry import FakeRegistry

_PARTY = 'syntax = "proto3"; package shop; message Party { string name = 1; }'
_ORDER = """
syntax = "proto3"; package shop; import "shop/party.proto";
message Unused {}
message Order { int64 id = 1; Party buyer = 2; }
"""
_GUID = uuid.UUID("0e7c4a6f-8a8f-4f5b-9c1f-2a0c9b0a3c11")
_NAME = pa.struct([("name", pa.string())])
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry().served() as served:
        yield served


@pytest.fixture
def registry(fake: FakeRegistry) -> SchemaRegistry:
    return SchemaRegistry(url=fake.url, timeout_s=1.0, request_timeout_s=0.5)


def _batch(values: list[Any], kind: pa.DataType = _NAME) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["value"])


def test_protobuf_records_begin_with_the_id_and_the_place_of_their_message(
    fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    """The serializer asks the registry when it is made, and not in tasks."""
    write = ProtobufRegistrySerializer(registry=registry, topic="people", schema=_PARTY)
    (number,) = fake.subjects["people-value"]
    asked = len(fake.paths)
    made = pickle.loads(pickle.dumps(write))(_batch([{"name": "x"}, None]))
    assert made.column("value").to_pylist() == [id_bytes(number) + b"\0\x0a\x01x", None]
    assert len(fake.paths) == asked


def test_a_generated_class_registers_its_imports(
    fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    """Each under its own name; a task needs the schema only, and not the class."""
    schema = RegisteredSchema(
        text=_ORDER, schema_type="PROTOBUF", named=(("shop/party.proto", _PARTY),)
    )
    made = GetMessageClass(ProtobufSchema.of(schema).message("shop.Order"))
    write = pickle.loads(
        pickle.dumps(ProtobufRegistrySerializer(registry=registry, topic="orders", schema=made))
    )
    (party,), (order,) = fake.subjects["shop/party.proto"], fake.subjects["orders-value"]
    assert fake.schemas[order]["references"] == [
        {"name": "shop/party.proto", "subject": "shop/party.proto", "version": 1}
    ]
    assert party != order
    value = {"id": 1, "buyer": {"name": "x"}}
    kind = pa.struct([("id", pa.int64()), ("buyer", _NAME)])
    payload = made(**value).SerializeToString()
    head = id_bytes(order) + index_bytes([1])
    assert write(_batch([value], kind)).column(0).to_pylist() == [head + payload]
    assert write(_batch([payload], pa.binary())).column(0).to_pylist() == [head + payload]
    with pytest.raises(DecodeError):
        write(_batch([b"\xff"], pa.binary()))


def test_an_id_in_a_header_is_a_guid_if_there_is_one(
    fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    """As from confluent-kafka; Protobuf's place follows it."""
    fake.add("people-value", _PARTY, schemaType="PROTOBUF", guid=str(_GUID))
    write = ProtobufRegistrySerializer(
        registry=registry,
        topic="people",
        schema=registry.latest("people-value"),
        id_location=IdLocation.HEADER,
    )
    (header,) = write(_batch([{"name": "x"}])).column("headers")[0].as_py()
    assert header["value"] == id_bytes(_GUID) + b"\0"
    assert header["key"] == "__value_schema_id"


@pytest.mark.parametrize("location", list(IdLocation))
def test_the_header_of_a_copied_record_goes(registry: SchemaRegistry, location: IdLocation) -> None:
    """Readers take a header first: they would read the value by the schema of the input."""
    write = JsonRegistrySerializer(
        registry=registry, topic="people", schema={"type": "object"}, id_location=location
    )
    old, other = {"key": "__value_schema_id", "value": b"old"}, {"key": "a", "value": None}
    headers = pa.array([[old, other, old], None, [old]], _HEADERS)
    batch = _batch([{"name": "x"}, {"name": "y"}, None]).append_column("headers", headers)
    found = write(batch).column("headers").to_pylist()
    new = [] if location is IdLocation.PREFIX else [{**old, "value": id_bytes(1)}]
    assert found == [[other, *new], new or None, []]


def test_json_records_are_checked_before_they_are_written(registry: SchemaRegistry) -> None:
    write = JsonRegistrySerializer(
        registry=registry, topic="people", schema={"required": ["name"], "title": "Person"}
    )
    made = write(_batch([{"name": "é"}, None]))
    assert made.column(0).to_pylist() == [id_bytes(1) + '{"name":"é"}'.encode(), None]
    other = _batch([{"n": 1}], pa.struct([("n", pa.int64())]))
    with pytest.raises(ValueError, match=r"^\$ breaks the rule required"):
        write(other)
    assert len(replace(write, validate=False)(other)) == 1


@pytest.mark.parametrize(
    ("kind", "schema", "name"),
    [
        (JsonRegistrySerializer, {"title": "Person"}, "Person"),
        (ProtobufRegistrySerializer, _PARTY, "shop.Party"),
    ],
)
def test_subjects_by_the_name_of_a_record(
    fake: FakeRegistry, registry: SchemaRegistry, kind: Any, schema: Any, name: str
) -> None:
    """A JSON Schema is named by its title, as for confluent-kafka."""
    for strategy in SubjectNameStrategy:
        kind(registry=registry, topic="t", schema=schema, subject_name_strategy=strategy)
    assert set(fake.subjects) == {"t-value", name, f"t-{name}"}


@pytest.mark.parametrize(
    ("kind", "settings", "what"),
    [
        (ProtobufRegistrySerializer, {"topic": "t"}, "has no schema"),
        (ProtobufRegistrySerializer, {"schema": _PARTY}, "needs a topic or a subject"),
        (ProtobufRegistrySerializer, {"topic": "t", "subject": "s"}, "needs a topic or a subject"),
        (ProtobufRegistrySerializer, {"topic": "t", "schema": "nonsense"}, "cannot be compiled"),
        (ProtobufRegistrySerializer, {"topic": "t", "schema": _PARTY, "message": "X"}, "no such"),
        (JsonRegistrySerializer, {"topic": "t", "schema": {"type": "x"}}, "cannot be used"),
        (JsonRegistrySerializer, {"topic": "t", "schema": _PARTY}, "cannot be used"),
    ],
)
def test_wrong_settings(
    registry: SchemaRegistry, kind: Any, settings: dict[str, Any], what: str
) -> None:
    """They end the program before its first record."""
    with pytest.raises(ConfigError, match=what):
        kind(registry=registry, **settings)


def test_a_schema_of_another_type(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    fake.add("people-value", '"string"')
    with pytest.raises(ConfigError, match="of another type than its serializer"):
        JsonRegistrySerializer(
            registry=registry, topic="people", use_latest_version=True, auto_register_schemas=False
        )


def test_an_incompatible_schema_is_refused(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    fake.incompatible = "type changed"
    for kind, schema in ((ProtobufRegistrySerializer, _PARTY), (JsonRegistrySerializer, "{}")):
        with pytest.raises(ConfigError, match=r"not compatible .*type changed"):
            kind(registry=registry, topic="people", schema=schema)
