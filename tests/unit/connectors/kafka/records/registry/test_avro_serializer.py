"""Values that become Avro records with the id of their schema."""

import pickle
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from sluice.connectors.kafka.records.serde.deserializing import DeserializedColumn
from sluice.registry import (
    AvroRegistryDeserializer,
    AvroRegistrySerializer,
    IdLocation,
    RegisteredSchema,
    SchemaReference,
    SchemaRegistry,
    SubjectNameStrategy,
)
from sluice.runtime.errors import ConfigError, UnreachableError
from tests.kit.kafka.fake_registry import FakeRegistry

GUID = uuid.UUID("0e7c4a6f-8a8f-4f5b-9c1f-2a0c9b0a3c11")
LOGICAL = {
    "day": ("int", "date"),
    "ms": ("int", "time-millis"),
    "us": ("long", "time-micros"),
    "at": ("long", "timestamp-millis"),
    "at_us": ("long", "timestamp-micros"),
    "local": ("long", "local-timestamp-millis"),
    "local_us": ("long", "local-timestamp-micros"),
}
MONEY = {"logicalType": "decimal", "precision": 12, "scale": 2}
EVERY_TYPE = {
    "type": "record",
    "name": "Everything",
    "namespace": "shop",
    "fields": [
        {"name": "none", "type": "null"},
        *({"name": f"a_{kind}", "type": kind} for kind in ("boolean", "int", "long", "float")),
        *({"name": f"a_{kind}", "type": kind} for kind in ("double", "bytes", "string")),
        *(
            {"name": name, "type": {"type": kind, "logicalType": logical}}
            for name, (kind, logical) in LOGICAL.items()
        ),
        {"name": "cost", "type": {"type": "bytes", **MONEY}},
        {"name": "tax", "type": {"type": "fixed", "name": "tax", "size": 6, **MONEY}},
        {"name": "raw", "type": {"type": "fixed", "name": "raw", "size": 3}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "maybe", "type": ["null", "string"]},
        {"name": "perhaps", "type": ["long", "null"]},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "sku", "type": "string"}, {"name": "s", "type": "State"}],
                },
            },
        },
        {"name": "first", "type": ["null", "shop.Line"]},
    ],
}


def everything(number: int) -> dict[str, Any]:
    """A value of each type."""
    moment = datetime(2024, 2, 29, 12, 0, 1, 2000, UTC)
    return {
        "none": None,
        "a_boolean": number % 2 == 0,
        "a_int": -number,
        "a_long": number * 2**40,
        "a_float": 0.5 * number,
        "a_double": 0.1 * number,
        "a_bytes": b"\0\xff" * (number % 3),
        "a_string": "\u00e9" * (number % 200),
        "day": date(1969, 12, 31),
        "ms": time(1, 2, 3, 4000),
        "us": time(1, 2, 3, 4),
        "at": moment,
        "at_us": moment.replace(microsecond=3),
        "local": moment.replace(tzinfo=None),
        "local_us": moment.replace(tzinfo=None, microsecond=3),
        "cost": Decimal(number - 2).scaleb(-2),
        "tax": Decimal("-1234567890.12"),
        "raw": b"abc",
        "state": ["NEW", "PAID"][number % 2],
        "maybe": None if number % 3 else "m",
        "perhaps": None if number % 2 else number,
        "tags": ["a", None, ""][: number % 4],
        "counts": [("x", number), ("y", -1)][: number % 3],
        "lines": [{"sku": f"s{at}", "s": "PAID"} for at in range(number % 3)],
        "first": None if number % 2 else {"sku": "f", "s": "NEW"},
    }


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    """Without schemas."""
    with FakeRegistry().served() as fake:
        yield fake


def serializer(fake: FakeRegistry, **more: Any) -> AvroRegistrySerializer:
    """Of a topic."""
    described = SchemaRegistry(url=fake.url, timeout_s=0.5, request_timeout_s=0.2)
    return AvroRegistrySerializer(registry=described, topic="orders", **more)


def confluent(fake: FakeRegistry, batch: pa.RecordBatch, column: str = "value") -> list[Any]:
    """What Confluent's deserializer reads from records."""
    field = MessageField.VALUE if column == "value" else MessageField.KEY
    with SchemaRegistryClient({"url": fake.url}) as client:
        read = AvroDeserializer(client)
        found = []
        for row in batch.to_pylist():
            headers = [(header["key"], header["value"]) for header in row.get("headers") or ()]
            found.append(read(row[column], SerializationContext("orders", field, headers)))
    return found


@pytest.mark.parametrize("at", IdLocation)
@pytest.mark.parametrize("guid", [None, GUID], ids=["number", "guid"])
def test_every_type_comes_back(
    registry: FakeRegistry, at: IdLocation, guid: uuid.UUID | None
) -> None:
    """By Sluice's own deserializer, and by Confluent's as far as Python has such times."""
    registry.add("orders-value", EVERY_TYPE, **({"guid": str(guid)} if guid else {}))
    made = serializer(registry, schema=EVERY_TYPE, id_location=at, auto_register_schemas=False)
    back = AvroRegistryDeserializer(registry=made.registry, reader_schema=EVERY_TYPE)
    rows = [None if number == 3 else everything(number) for number in range(500)]
    batch = pa.record_batch({"value": pa.array(rows, back.type)})
    for part in (batch, batch.slice(2, 5), batch.slice(0, 0)):
        out = pickle.loads(pickle.dumps(made))(part)
        assert out.column("value").type == pa.binary()
        if "headers" not in out.schema.names:
            out = out.append_column("headers", _no_headers(part.num_rows))
        read = DeserializedColumn(column="value", deserializer=back)(out)
        assert read.column("value").equals(part.column("value"))
    for theirs, ours in zip(confluent(registry, made(batch)), rows, strict=True):
        expected = ours and {**ours, "counts": dict(ours["counts"])}
        assert theirs == expected


def _no_headers(rows: int) -> pa.Array:
    return pa.nulls(rows, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))


def test_columns_may_be_the_fields(registry: FakeRegistry) -> None:
    """The other columns stay; a field that has a default may be missing."""
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": "string", "default": "none"},
        ],
    }
    made = serializer(registry, schema=schema, fields=["id"])
    batch = pa.record_batch({"key": [b"k", b"l"], "id": pa.array([1, 2], pa.int32())})
    out = made(batch)
    assert out.schema.names == ["key", "value"]
    assert confluent(registry, out) == [{"id": 1, "note": "none"}, {"id": 2, "note": "none"}]


def test_a_header_replaces_the_one_of_the_record_before(registry: FakeRegistry) -> None:
    """Other headers stay; a tombstone gets none."""
    made = serializer(registry, schema="string", id_location=IdLocation.HEADER, column="key")
    old = [{"key": "__key_schema_id", "value": b"old"}, {"key": "x", "value": b"y"}]
    batch = pa.record_batch(
        {"key": ["abcdef", None], "headers": pa.array([old, old[1:]], _no_headers(0).type)}
    )
    out = made(batch)
    assert out.column("headers").to_pylist() == [
        [old[1], {"key": "__key_schema_id", "value": b"\0\0\0\0\1"}],
        old[1:],
    ]
    assert confluent(registry, out, "key") == ["abcdef", None]
    assert list(registry.subjects) == ["orders-key"]


def test_plain_bytes_have_no_length(registry: FakeRegistry) -> None:
    """As Confluent's deserializers read them."""
    out = serializer(registry, schema="bytes")(pa.record_batch({"value": [b"ab", b"", None]}))
    assert out.column("value").to_pylist() == [b"\0\0\0\0\1ab", b"\0\0\0\0\1", None]


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [("TOPIC", "orders-value"), ("RECORD", "shop.r"), ("TOPIC_RECORD", "orders-shop.r")],
)
def test_a_strategy_names_the_subject(registry: FakeRegistry, strategy: str, subject: str) -> None:
    """As Confluent's do."""
    schema = {"type": "record", "name": "r", "namespace": "shop", "fields": []}
    serializer(registry, schema=schema, subject_name_strategy=strategy)
    assert list(registry.subjects) == [subject]
    with pytest.raises(ConfigError, match="schema that has none"):
        serializer(registry, schema="int", subject_name_strategy=SubjectNameStrategy.RECORD)


def test_a_choice_is_a_member_or_its_name(registry: FakeRegistry) -> None:
    """Another text is refused: it must not become the other choice in silence."""
    made = [
        serializer(registry, schema="int", id_location=at) for at in (IdLocation.PREFIX, "PREFIX")
    ]
    assert made[0] == made[1]
    for wrong in ({"id_location": "heder"}, {"subject_name_strategy": "TopicNameStrategy"}):
        with pytest.raises(
            ConfigError, match=f"{next(iter(wrong))} has a value that does not exist"
        ):
            serializer(registry, schema="int", **wrong)


class TestStart:
    """What the registry says ends the program before the job starts."""

    def test_a_schema_that_is_not_registered(self, registry: FakeRegistry) -> None:
        """Unless it may be registered."""
        with pytest.raises(ConfigError, match="does not have the schema"):
            serializer(registry, schema="int", auto_register_schemas=False)
        serializer(registry, schema="int")
        serializer(registry, schema="int", auto_register_schemas=False)

    def test_a_schema_that_is_not_compatible(self, registry: FakeRegistry) -> None:
        """With the answer of the registry."""
        registry.incompatible = "reader type: STRING not compatible with writer type: INT"
        with pytest.raises(ConfigError, match=r"subject=orders-value .*reader type: STRING"):
            serializer(registry, schema="string")

    def test_a_registry_that_is_down(self, registry: FakeRegistry) -> None:
        """As for a reader."""
        registry.failures = [(503, b"")] * 100
        with pytest.raises(UnreachableError, match="subject=orders-value"):
            serializer(registry, schema="int")

    def test_the_latest_schema_may_be_used(self, registry: FakeRegistry) -> None:
        """Without one in the program."""
        registry.add("orders-value", '"int"')
        registry.add("orders-value", '"long"')
        made = serializer(registry, use_latest_version=True, auto_register_schemas=False)
        out = made(pa.record_batch({"value": [2**40]}))
        assert confluent(registry, out) == [2**40]

    @pytest.mark.parametrize("options", [{}, {"use_latest_version": True}], ids=str)
    def test_options_that_contradict_each_other(self, registry: FakeRegistry, options: Any) -> None:
        """As in Confluent's serializers."""
        with pytest.raises(ConfigError, match="use_latest_version=True and auto_register"):
            serializer(registry, **options)

    def test_a_schema_of_another_type(self, registry: FakeRegistry) -> None:
        """Its name is no guess."""
        registry.add("orders-value", "{}", schemaType="JSON")
        with pytest.raises(ConfigError, match="id=1 type=JSON"):
            serializer(registry, use_latest_version=True, auto_register_schemas=False)

    def test_references_are_registered_with_it(self, registry: FakeRegistry) -> None:
        """They must be there before."""
        registry.add("places", {"type": "fixed", "name": "place", "namespace": "shop", "size": 2})
        schema = RegisteredSchema(
            text='{"type":"record","name":"r","fields":[{"name":"p","type":"shop.place"}]}',
            references=(SchemaReference(name="shop.place", subject="places", version=1),),
        )
        out = serializer(registry, schema=schema)(pa.record_batch({"value": [{"p": b"ab"}]}))
        assert out.column("value").to_pylist() == [b"\0\0\0\0\2ab"]


ROW = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "n", "type": "int"},
        {"name": "s", "type": {"type": "enum", "name": "e", "symbols": ["A"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
GOOD = {"n": 1, "s": "A", "at": datetime(2024, 1, 1, tzinfo=UTC)}
ROW_TYPE = pa.struct(
    [("n", pa.int64()), ("s", pa.string()), ("at", pa.timestamp("us", tz="Europe/Paris"))]
)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"n": None}, "the field n is null"),
        ({"n": 2**31}, "2147483648"),
        ({"s": "B"}, "the enum s lacks a symbol"),
        ({"at": datetime(2024, 1, 1, 0, 0, 0, 1, UTC)}, "lose data"),
    ],
    ids=str,
)
def test_a_row_that_the_schema_does_not_take_is_a_bad_record(
    registry: FakeRegistry, bad: Any, said: str
) -> None:
    """Nothing is rounded, cut off or replaced."""
    made = serializer(registry, schema=ROW)
    batch = pa.record_batch({"value": pa.array([GOOD, {**GOOD, **bad}], ROW_TYPE)})
    with pytest.raises(ValueError, match=said):
        made(batch)
    assert confluent(registry, made(batch.slice(0, 1))) == [GOOD]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"n": pa.string()}, "field=n type=string schema=int"),
        ({"at": pa.timestamp("us")}, "field=at type=timestamp.us. schema=timestamp.ms, tz=UTC"),
        ({"at": pa.int64()}, "field=at"),
        ({"more": pa.int64()}, "fields=more"),
        ({"n": None}, "field=n"),
    ],
    ids=str,
)
def test_a_column_of_another_type_is_no_bad_record(
    registry: FakeRegistry, changed: Any, said: str
) -> None:
    """Else each record would be skipped."""
    types = {field.name: field.type for field in ROW_TYPE} | changed
    fields = [pa.field(name, kind) for name, kind in types.items() if kind is not None]
    batch = pa.record_batch({"value": pa.array([{}], pa.struct(fields))})
    with pytest.raises(ConfigError, match=said):
        serializer(registry, schema=ROW)(batch)
    with pytest.raises(ConfigError, match="missing=value"):
        serializer(registry, schema=ROW)(pa.record_batch({"key": [1]}))
