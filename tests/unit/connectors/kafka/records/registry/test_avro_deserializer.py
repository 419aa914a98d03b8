"""Avro records of many schemas as one column."""

import io
import json
import pickle
import struct
import uuid
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from sluice.connectors.kafka.records.serde.deserializing import DeserializedColumn
from sluice.registry import AvroRegistryDeserializer, SchemaRegistry, UnknownSchemaError
from sluice.runtime.errors import ConfigError, UnreachableError
from tests.kit.kafka.fake_registry import FakeRegistry

GUID = uuid.UUID("0e7c4a6f-8a8f-4f5b-9c1f-2a0c9b0a3c11")


def order(*fields: Any) -> dict[str, Any]:
    """The schema of a record with these fields."""
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": list(fields)}


OLD = order({"name": "id", "type": "int"})
NEW = order(
    {"name": "id", "type": "long"},
    {"name": "note", "type": ["null", "string"], "default": None},
    {"name": "state", "type": "string", "default": "new"},
)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    """With two versions of a subject."""
    with FakeRegistry().served() as fake:
        fake.add("orders-value", OLD)
        fake.add("orders-value", NEW, guid=str(GUID))
        yield fake


def payload(schema: Any, value: object) -> bytes:
    """By fastavro itself."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def record(schema_id: int, schema: Any, value: object) -> bytes:
    """As Confluent's serializers write it."""
    return struct.pack(">bI", 0, schema_id) + payload(schema, value)


def deserializer(registry: FakeRegistry, **more: Any) -> AvroRegistryDeserializer:
    """Of the newest schema."""
    described = SchemaRegistry(url=registry.url, **more)
    return AvroRegistryDeserializer(registry=described, reader_schema=NEW)


def test_records_of_several_schemas_become_values_of_one(registry: FakeRegistry) -> None:
    """In their order; tombstones stay null; and each schema is fetched once."""
    new = {"id": 2**40, "note": "late", "state": "paid"}
    column = pa.array(
        [record(1, OLD, {"id": 7}), None, record(2, NEW, new), record(1, OLD, {"id": 8})]
    )
    expected = [
        {"id": 7, "note": None, "state": "new"},
        None,
        new,
        {"id": 8, "note": None, "state": "new"},
    ]
    again: AvroRegistryDeserializer = pickle.loads(pickle.dumps(deserializer(registry)))
    for part in (slice(0, 4), slice(1, 4), slice(1, 2), slice(4, 4)):
        assert again.deserialize(column[part]).to_pylist() == expected[part]
    assert len(registry.paths) == 2
    assert again.deserialize(column).type == again.type


def test_ids_in_headers_and_before_values_may_be_mixed(registry: FakeRegistry) -> None:
    """A header counts more; numbers and GUIDs."""
    value = {"id": 1, "note": None, "state": "s"}
    guid = b"\1" + GUID.bytes
    headers: list[list[tuple[str, bytes]] | None] = [
        [("__value_schema_id", guid)],
        None,
        [("__value_schema_id", b"\0\0\0\0\1"), ("other", b"x")],
        [("__key_schema_id", b"rubbish")],
    ]
    values = [
        payload(NEW, value),
        record(2, NEW, value),
        payload(OLD, {"id": 5}),
        guid + payload(NEW, value),
    ]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    made: Any = [h and [{"key": name, "value": v} for name, v in h] for h in headers]
    batch = pa.record_batch({"value": pa.array(values), "headers": pa.array(made, kind)})
    function = DeserializedColumn(column="value", deserializer=deserializer(registry))
    found = function(batch).column("value").to_pylist()
    assert [row["id"] for row in found] == [1, 1, 5, 1]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"", "no schema id"),
        (b"\0\0\0\1", "no schema id"),
        (b"\1" + GUID.bytes[:-1], "no schema id"),
        (b"\2\0\0\0\1\2", "no schema id"),
        (struct.pack(">bI", 0, 9) + b"\2", "no schema with id 9"),
        (struct.pack(">bI", 0, 3) + b"\2", "id 3 is of JSON"),
        (struct.pack(">bI", 0, 4) + b"\2", "does not take"),
        (struct.pack(">bI", 0, 1), "ends within a value"),
        (struct.pack(">bI", 0, 1) + b"\2\2", "bytes after its Avro value"),
    ],
    ids=str,
)
def test_a_bad_record_fails_alone(registry: FakeRegistry, bad: bytes, said: str) -> None:
    """With an error that its policy applies to; its neighbours are read."""
    registry.add("other", {"type": "object"}, schemaType="JSON")
    registry.add("third", "string")
    registry.add("fourth", {"type": "record", "name": "Other", "fields": []})
    registry.schemas[4] = registry.schemas.pop(5)
    made, good = deserializer(registry), record(1, OLD, {"id": 7})
    with pytest.raises(ValueError, match=said):
        made.deserialize(pa.array([good, bad, good]))
    with pytest.raises(ValueError, match=said):
        made.deserialize(pa.array([bad]))
    assert made.deserialize(pa.array([good, good])).to_pylist()[1]["id"] == 7


def test_an_unknown_id_is_not_looked_for_again_in_each_half(registry: FakeRegistry) -> None:
    """The search for the record would take minutes."""
    made = deserializer(registry)
    bad = pa.array([struct.pack(">bI", 0, 9) + b"\2"])
    for _ in range(5):
        with pytest.raises(UnknownSchemaError):
            made.deserialize(bad)
    assert len(registry.paths) == 2


def test_a_registry_that_is_down_is_no_bad_record(registry: FakeRegistry) -> None:
    """What is fetched is still read."""
    made = deserializer(registry, timeout_s=0.5, request_timeout_s=0.1)
    known = pa.array([record(1, OLD, {"id": 7})])
    made.deserialize(known)
    registry.failures = [(503, b"")] * 1_000
    assert len(made.deserialize(known)) == 1
    with pytest.raises(UnreachableError, match="id=2"):
        made.deserialize(pa.array([record(2, OLD, {"id": 7})]))


def test_a_schema_with_rules_is_refused(registry: FakeRegistry) -> None:
    """Its fields may be encrypted."""
    rule = {"name": "r", "kind": "TRANSFORM", "mode": "WRITEREAD", "type": "ENCRYPT"}
    number = registry.add("secret", order({"name": "id", "type": "long"}))
    registry.schemas[number]["ruleSet"] = {"domainRules": [rule]}
    made = deserializer(registry)
    with pytest.raises(ConfigError, match=f"has rules.*id={number} modes=WRITEREAD"):
        made.deserialize(pa.array([record(number, OLD, {"id": 7})]))
    registry.schemas[2]["ruleSet"] = {"domainRules": [{**rule, "disabled": True}]}
    assert len(made.deserialize(pa.array([record(2, NEW, {"id": 1, "note": None, "state": ""})])))


def test_the_reader_may_take_its_schema_from_the_registry(registry: FakeRegistry) -> None:
    """With the schemas that it refers to."""
    registry.add("places", {"type": "fixed", "name": "place", "namespace": "shop", "size": 2})
    schema = order({"name": "at", "type": "place"})
    reference = {"name": "shop.place", "subject": "places", "version": 1}
    number = registry.add("trips-value", schema, references=[reference])
    described = SchemaRegistry(url=registry.url)
    latest = described.latest("trips-value")
    made = AvroRegistryDeserializer(registry=described, reader_schema=latest)
    assert made.type == pa.struct([("at", pa.binary(2))])
    column = pa.array([struct.pack(">bI", 0, number) + b"ab"])
    assert made.deserialize(column).to_pylist() == [{"at": b"ab"}]


def test_plain_bytes_have_no_length(registry: FakeRegistry) -> None:
    """As Confluent's serializers write them; texts have one."""
    registry.add("raw-value", '"bytes"')
    registry.add("text-value", json.dumps("string"))
    described = SchemaRegistry(url=registry.url)
    made = AvroRegistryDeserializer(registry=described, reader_schema='"bytes"')
    column = pa.array([b"\0\0\0\0\3ab", b"\0\0\0\0\3", b"\0\0\0\0\4\4cd"])
    assert made.deserialize(column).to_pylist() == [b"ab", b"", b"cd"]
