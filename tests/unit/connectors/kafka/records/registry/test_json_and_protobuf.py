"""Records of JSON Schema and Protobuf in one column, by the schemas of a registry."""

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from sluice.connectors.kafka.records.registry.json_deserializer import JsonRegistryDeserializer
from sluice.connectors.kafka.records.registry.json_schema import JsonSchema
from sluice.connectors.kafka.records.registry.protobuf.message_indexes import (
    index_bytes,
    read_indexes,
)
from sluice.connectors.kafka.records.registry.protobuf.protobuf_deserializer import (
    ProtobufRegistryDeserializer,
)
from sluice.connectors.kafka.records.registry.protobuf.protobuf_schema import (
    ProtobufSchema,
    file_text,
)
from sluice.connectors.kafka.records.registry.registered_schema import (
    RegisteredSchema,
    UnknownSchemaError,
)
from sluice.connectors.kafka.records.registry.schema_registry import SchemaRegistry
from sluice.connectors.kafka.records.serde.schema_ids import id_bytes
from sluice.runtime.errors import ConfigError, UnreachableError
from tests.kit.kafka.fake_registry import FakeRegistry

_OLD = 'syntax = "proto3"; package p; message Other {} message M { int32 n = 1; }'
_NEW = 'syntax = "proto3"; package p; message M { int64 n = 1; optional string note = 2; }'
_CUT = 'syntax = "proto3"; package p; message M { int64 n = 1; string note = 5; } message N {}'


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry().served() as served:
        yield served


def _registry(fake: FakeRegistry) -> SchemaRegistry:
    return SchemaRegistry(url=fake.url, timeout_s=1.0, request_timeout_s=0.5)


def test_rows_of_two_protobuf_schemas_keep_their_places(fake: FakeRegistry) -> None:
    """Each is read by its own schema and by the index of its message there; a null stays null."""
    old = id_bytes(fake.add("old", _OLD, schemaType="PROTOBUF")) + index_bytes([1])
    new = id_bytes(fake.add("new", _NEW, schemaType="PROTOBUF")) + index_bytes([0])
    reader = ProtobufRegistryDeserializer(
        registry=_registry(fake), reader_schema=_registry(fake).latest("new")
    )
    rows = [old + b"\x08\x01", None, new + b"\x08\x02\x12\0", old, new]
    found = pickle.loads(pickle.dumps(reader)).deserialize(pa.array([b"?", *rows, b"?"])[1:-1])
    assert found.type == reader.type
    assert found.to_pylist() == [
        {"n": 1, "note": None},
        None,
        {"n": 2, "note": ""},
        {"n": 0, "note": None},
        {"n": 0, "note": None},
    ]
    empty = reader.deserialize(pa.array([None, None], pa.binary()))
    assert empty.to_pylist() == [None, None]


def test_a_record_of_another_message_is_bad(fake: FakeRegistry) -> None:
    number = fake.add("s", _CUT, schemaType="PROTOBUF")
    reader = ProtobufRegistryDeserializer(registry=_registry(fake), reader_schema=_NEW)
    with pytest.raises(ValueError, match=r"a record is a p\.N, not a p\.M"):
        reader.deserialize(pa.array([id_bytes(number) + index_bytes([1])]))


def test_a_narrower_reader_is_refused(fake: FakeRegistry) -> None:
    """Protobuf's parser would cut the number to 32 bits."""
    number = fake.add("s", _NEW, schemaType="PROTOBUF")
    reader = ProtobufRegistryDeserializer(
        registry=_registry(fake), reader_schema=_OLD, message="p.M"
    )
    with pytest.raises(ValueError, match=r"p\.M\.n has another type"):
        reader.deserialize(pa.array([id_bytes(number) + index_bytes([0]) + b"\x08\x01"]))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"reader_schema": "nonsense"}, "cannot be compiled"),
        ({"reader_schema": 'import "absent.proto";'}, "cannot be compiled"),
        ({"reader_schema": _OLD, "message": "p.Absent"}, "has no such message"),
        ({"reader_schema": _OLD, "unknown_fields": "drop"}, "value that does not exist"),
        ({"reader_schema": _OLD, "nanoseconds": "round"}, "value that does not exist"),
    ],
)
def test_wrong_settings_of_a_protobuf_reader(settings: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        ProtobufRegistryDeserializer(registry=SchemaRegistry(url="http://x"), **settings)


def test_common_types_need_no_reference() -> None:
    """Google's and Confluent's own files; a schema with options of the latter compiles."""
    text = """syntax = "proto3";
        import "confluent/meta.proto";
        import "google/type/money.proto";
        message M { google.type.Money price = 1 [(confluent.field_meta).doc = "gross"]; }"""
    source = RegisteredSchema(text=text, schema_type="PROTOBUF")
    encoded = replace(source, text=file_text(ProtobufSchema.of(source).message(None).file))
    both = replace(
        source,
        text=f'{text} import "a.proto";'.replace("message M", "message N"),
        named=(("a.proto", encoded.text),),
    )
    for schema in (source, encoded, both):
        reader = ProtobufRegistryDeserializer(
            registry=SchemaRegistry(url="http://x"), reader_schema=schema
        )
        assert reader.type.field("price").type.names == ["currency_code", "units", "nanos"]


@pytest.mark.parametrize("indexes", [[0], [1], [0, 0], [3, 64, 128, 300_000]])
def test_indexes_are_read_as_they_were_written(indexes: list[int]) -> None:
    data = index_bytes(indexes)
    assert read_indexes(data + b"rest") == (tuple(indexes), len(data))


def test_the_long_form_of_the_first_message_is_read() -> None:
    """Some writers do not shorten it."""
    assert read_indexes(b"\x02\x00rest") == ((0,), 2)


_COLUMNS = pa.schema([("id", pa.int64())])


def _json(text: object, *named: tuple[str, object]) -> JsonSchema:
    references = tuple((name, json.dumps(each)) for name, each in named)
    return JsonSchema.of(
        RegisteredSchema(text=json.dumps(text), schema_type="JSON", named=references)
    )


class TestJsonSchema:
    """Validation."""

    @pytest.mark.parametrize(
        ("record", "why"),
        [
            (b"{", "Expecting"),
            (b"", "Expecting"),
            (b'{"id": NaN}', "JSON has no NaN"),
            (b'"\xff"', "codec can't decode"),
            ('{"id": 1}'.encode("utf-16"), "codec can't decode"),
            (b'{"id": "secret"}', r"^\$\.id breaks the rule type of its schema$"),
            (b"{} {}", "Extra data"),
        ],
    )
    def test_bad_records(self, record: bytes, why: str) -> None:
        """The error has no value of the record: logs hold no contents."""
        with pytest.raises(ValueError, match=why):
            _json({"properties": {"id": {"type": "integer"}}}).require_valid(record)

    def test_large_integers_are_exact(self) -> None:
        schema = _json({"maximum": 2**63 - 1})
        schema.require_valid(str(2**63 - 1).encode())
        with pytest.raises(ValueError, match="maximum"):
            schema.require_valid(str(2**63).encode())

    @pytest.mark.parametrize("base", [{}, {"$id": "http://example.com/order.json"}])
    def test_references(self, base: dict[str, str]) -> None:
        """By their name, or by their name beside the schema's own id; also through each other."""
        middle = ("middle.json", {"items": {"$ref": "leaf.json"}})
        schema = _json(base | {"$ref": "middle.json"}, ("leaf.json", {"type": "null"}), middle)
        schema.require_valid(b"[null]")
        with pytest.raises(ValueError, match=r"\$\[1\] breaks the rule type"):
            schema.require_valid(b"[null,1]")

    @pytest.mark.parametrize("ref", ["absent.json", "http://127.0.0.1:1/a.json", "#/absent"])
    def test_a_reference_that_the_registry_does_not_name(self, ref: str) -> None:
        """The schema is wrong, no record is; no other server is asked."""
        with pytest.raises(ConfigError, match="JSON Schema of the registry cannot be used"):
            _json({"$ref": ref}).require_valid(b"1")

    @pytest.mark.parametrize("schema", [{"type": "no such type"}, 3, {"pattern": "["}])
    def test_an_invalid_schema(self, schema: object) -> None:
        with pytest.raises(ConfigError, match="JSON Schema of the registry cannot be used"):
            _json(schema).require_valid(b'"text"')


def test_json_records_by_their_writers_schemas(fake: FakeRegistry) -> None:
    strict = id_bytes(fake.add("a", {"required": ["id"]}, schemaType="JSON"))
    lax = id_bytes(fake.add("b", {}, schemaType="JSON"))
    reader = JsonRegistryDeserializer(registry=_registry(fake), schema=_COLUMNS)
    rows = pa.array([lax + b"{}", None, strict + b'{"id":1}', lax + b'{"id":2,"x":3}'])
    assert pickle.loads(pickle.dumps(reader)).deserialize(rows).to_pylist() == [
        {"id": None},
        None,
        {"id": 1},
        {"id": 2},
    ]
    with pytest.raises(ValueError, match=r"^\$ breaks the rule required"):
        reader.deserialize(pa.array([strict + b"{}"]))
    with pytest.raises(UnknownSchemaError, match="99"):
        reader.deserialize(pa.array([id_bytes(99) + b"{}"]))


def test_encrypted_fields_are_not_read_as_text(fake: FakeRegistry) -> None:
    """Also without validation: the schema's rules say that the values are encrypted."""
    rules = {
        "domainRules": [{"name": "e", "kind": "TRANSFORM", "mode": "WRITEREAD", "type": "ENCRYPT"}]
    }
    number = fake.add("a", {}, schemaType="JSON", ruleSet=rules)
    reader = JsonRegistryDeserializer(registry=_registry(fake), schema=_COLUMNS, validate=False)
    with pytest.raises(ConfigError, match="rules, which Sluice does not run"):
        reader.deserialize(pa.array([id_bytes(number) + b"{}"]))


@pytest.mark.parametrize("kind", ["json", "protobuf"])
def test_a_registry_that_is_down_is_no_bad_record(kind: str) -> None:
    """Its error fails the task, whatever ``on_error`` says."""
    registry = SchemaRegistry(url="http://127.0.0.1:1", timeout_s=0.1, request_timeout_s=0.1)
    reader = (
        JsonRegistryDeserializer(registry=registry, schema=_COLUMNS)
        if kind == "json"
        else ProtobufRegistryDeserializer(registry=registry, reader_schema=_OLD)
    )
    with pytest.raises(UnreachableError):
        reader.deserialize(pa.array([id_bytes(1) + b"\0"]))
