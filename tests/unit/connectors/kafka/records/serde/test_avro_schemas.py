"""Schemas of Avro: which have columns, and what is read by them."""

import io
from datetime import time
from decimal import Context, Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from sluice.connectors.kafka.records.serde.avro_columns import read_records
from sluice.connectors.kafka.records.serde.avro_records import AvroDeserializer
from sluice.connectors.kafka.records.serde.avro_resolution import reading
from sluice.connectors.kafka.records.serde.avro_types import AvroSchema, arrow_type
from sluice.connectors.kafka.records.serde.schema_ids import unframed_records
from sluice.runtime.errors import ConfigError
from tests.unit.connectors.kafka.records.serde.test_deserializers import values


def written_by(schema: Any, *rows: object) -> list[bytes]:
    """By fastavro itself."""
    parsed, found = fastavro.parse_schema(schema), []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        found.append(out.getvalue())
    return found


def record(**types: Any) -> dict[str, Any]:
    """The schema of a record with these fields, of a namespace."""
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return {"type": "record", "name": "row", "namespace": "shop", "fields": fields}


MONEY = {
    "type": "fixed",
    "name": "money",
    "size": 4,
    "logicalType": "decimal",
    "precision": 6,
    "scale": 2,
}


def test_a_decimal_of_fixed_size_is_known_by_its_name() -> None:
    """As any other type that has one."""
    schema = record(net=MONEY, gross="money", tax=["null", "shop.money"])
    row = {"net": Decimal("1.25"), "gross": Decimal("-9999.99"), "tax": None}
    again = {**row, "tax": Decimal("0.01")}
    deserializer = AvroDeserializer(schema=schema)
    assert {field.type for field in deserializer.type} == {pa.decimal128(6, 2)}
    assert values(deserializer, *written_by(schema, row, again)) == [row, again]


def test_a_null_may_be_written_out_in_a_union() -> None:
    """Avro knows two spellings of each plain type."""
    schema = record(note=[{"type": "null"}, "string"], none=[{"type": "null"}])
    rows = [{"note": None, "none": None}, {"note": "a", "none": None}]
    assert values(AvroDeserializer(schema=schema), *written_by(schema, *rows)) == rows


TIMES = record(
    ms=["null", {"type": "int", "logicalType": "time-millis"}],
    us={"type": "array", "items": {"type": "long", "logicalType": "time-micros"}},
)


def test_times_of_a_day_are_exact() -> None:
    """From its first to its last unit."""
    rows = [
        {"ms": time(), "us": [time(), time(23, 59, 59, 999_999)]},
        {"ms": time(23, 59, 59, 999_000), "us": []},
        {"ms": None, "us": [time(12, 0, 0, 1)]},
    ]
    assert values(AvroDeserializer(schema=TIMES), *written_by(TIMES, *rows)) == rows


@pytest.mark.parametrize(
    "bad",
    [
        {"ms": -1, "us": []},
        {"ms": 86_400_000, "us": []},
        {"ms": None, "us": [0, -1]},
        {"ms": None, "us": [86_400_000_000]},
    ],
    ids=str,
)
def test_a_time_that_no_day_has_is_an_error(bad: Any) -> None:
    """And not a time of the day before."""
    good = {"ms": 1, "us": [2]}
    numbers = record(ms=["null", "int"], us={"type": "array", "items": "long"})
    for rows in ([bad], [good, bad]):
        with pytest.raises(pa.ArrowInvalid, match="acceptable range"):
            values(AvroDeserializer(schema=TIMES), *written_by(numbers, *rows))


@pytest.mark.parametrize(
    ("plain", "logical", "kind"),
    [
        ("int", "date", pa.date32()),
        ("long", "timestamp-millis", pa.timestamp("ms", tz="UTC")),
        ("long", "timestamp-micros", pa.timestamp("us", tz="UTC")),
        ("long", "local-timestamp-millis", pa.timestamp("ms")),
        ("long", "local-timestamp-micros", pa.timestamp("us")),
    ],
)
def test_dates_and_timestamps_may_be_of_any_year(
    plain: str, logical: str, kind: pa.DataType
) -> None:
    """Also of those that Python's own calendar does not have."""
    largest = 2 ** (31 if plain == "int" else 63) - 1
    numbers = [0, largest, -largest - 1, 2_932_897, -719_163]
    column = pa.array(written_by(plain, *numbers), pa.binary())
    found = AvroDeserializer(schema={"type": plain, "logicalType": logical}).deserialize(column)
    assert found.equals(pa.array(numbers, pa.int32() if plain == "int" else pa.int64()).cast(kind))


@pytest.mark.parametrize(("precision", "number"), [(2, 100), (5, 10**5), (38, 10**38), (3, -1000)])
def test_a_decimal_beyond_its_precision_is_an_error_and_not_rounded(
    precision: int, number: int
) -> None:
    """The bytes of a decimal hold more digits than its schema says."""
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 1}
    fits = Decimal(10**precision - 1).scaleb(-1, Context(prec=precision))
    both = [fits, fits.copy_negate()]
    deserializer = AvroDeserializer(schema=decimal)
    assert values(deserializer, *written_by(decimal, *both)) == both
    with pytest.raises(pa.ArrowInvalid, match="precision"):
        values(deserializer, *written_by("bytes", number.to_bytes(17, signed=True)))


def test_values_that_hold_nothing_are_read() -> None:
    """Records without fields, fixed types without bytes, empty maps, lists and texts."""
    nothing = {"type": "record", "name": "nothing", "fields": []}
    schema = record(
        a=nothing,
        b=["null", "nothing"],
        c={"type": "fixed", "name": "none", "size": 0},
        d={"type": "map", "values": "nothing"},
        e={"type": "array", "items": "null"},
        f="string",
    )
    rows: list[dict[str, Any]] = [
        {"a": {}, "b": {}, "c": b"", "d": {}, "e": [], "f": ""},
        {"a": {}, "b": None, "c": b"", "d": {"": {}}, "e": [None, None], "f": "\0\U0001f600"},
    ]
    expected = [{**row, "d": list(row["d"].items())} for row in rows]
    assert values(AvroDeserializer(schema=schema), *written_by(schema, *rows)) == expected


def test_an_avro_record_with_two_fields_of_one_name_is_refused() -> None:
    """Avro has no such schema, though fastavro takes it."""
    inner = record(a="int")
    inner["fields"] *= 2
    with pytest.raises(ConfigError, match=r"record=shop\.row fields=a"):
        AvroDeserializer(schema={"type": "array", "items": inner})


@pytest.mark.parametrize("rows", [1, 40])
def test_lists_and_maps_may_come_in_blocks(rows: int) -> None:
    """With or without the bytes of each block; also in fields that the reader skips."""
    items = b"\x02\x06" + b"\x03\x04\x08\x0a" + b"\x00"  # [3], then two of two bytes: 4 and 5
    texts = b"\x01\x08\x02a\x02b" + b"\x02\x02c\x00" + b"\x00"  # {a: b}, {c: }
    schema = record(
        a={"type": "array", "items": "int"}, m={"type": "map", "values": "string"}, end="string"
    )
    found = values(AvroDeserializer(schema=schema), *[items + texts + b"\x02z"] * rows)
    assert found == [{"a": [3, 4, 5], "m": [("a", "b"), ("c", "")], "end": "z"}] * rows
    written, read = AvroSchema(schema), AvroSchema(record(end="string"))
    column = unframed_records(pa.array([items + texts + b"\x02z"] * rows))
    ends = read_records(column, {None: reading(written, read)}, arrow_type(read))
    assert ends.to_pylist() == [{"end": "z"}] * rows


def test_a_writer_may_have_types_that_contain_themselves_where_the_reader_skips_them() -> None:
    """A list of a chain and a tree."""
    chain = {"name": "next", "type": ["null", "shop.row"]}
    tree = {"name": "parts", "type": {"type": "array", "items": "shop.row"}}
    written = record(id="int")
    written["fields"] += [chain, tree]
    leaf: dict[str, Any] = {"id": 2, "next": None, "parts": []}
    row = {"id": 1, "next": leaf, "parts": [leaf, {"id": 3, "next": leaf, "parts": [leaf]}]}
    writer, reader = AvroSchema(written), AvroSchema(record(id="long"))
    column = pa.array(written_by(written, row, leaf))
    node = reading(writer, reader)
    found = read_records(unframed_records(column), {None: node}, arrow_type(reader))
    assert found.to_pylist() == [{"id": 1}, {"id": 2}]


def test_defaults_are_those_of_the_specification() -> None:
    """Bytes are written as the characters of Latin-1, decimals as these bytes."""
    reader = record(
        raw="bytes", cost={"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}
    )
    inner = {"type": "record", "name": "in", "fields": [{"name": "x", "type": "int", "default": 7}]}
    reader["fields"] += [{"name": "inner", "type": inner, "default": {}}]
    reader["fields"][0]["default"], reader["fields"][1]["default"] = "\xff\0", "\xff\x01"
    node = reading(AvroSchema(record()), read := AvroSchema(reader))
    found = read_records(unframed_records(pa.array([b"", b""])), {None: node}, arrow_type(read))
    assert (
        found.to_pylist() == [{"raw": b"\xff\0", "cost": Decimal("-25.5"), "inner": {"x": 7}}] * 2
    )


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("timestamp-millis", "timestamp-micros"),
        ("timestamp-millis", "local-timestamp-millis"),
        ("time-micros", "timestamp-micros"),
    ],
)
def test_times_of_other_units_are_refused(written: str, read: str) -> None:
    """The number would be another time."""
    schemas = [AvroSchema({"type": "long", "logicalType": each}) for each in (written, read)]
    column = unframed_records(pa.array([b"\x02"]))
    with pytest.raises(ValueError, match=f"does not take {written} as {read}"):
        read_records(column, {None: reading(*schemas)}, arrow_type(schemas[1]))


@pytest.mark.parametrize(
    ("schema", "bad"),
    [
        ("boolean", b"\x02"),
        ("int", b"\x80\x80\x80\x80\x10"),
        ("long", b"\xff" * 9 + b"\x02"),
        ("long", b"\xff" * 10 + b"\x00"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, b"\x02"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, b"\x01"),
        (["null", "int"], b"\x04"),
        (["null", "int"], b"\x01"),
        ("string", b"\x01"),
        ("string", b"\x02\xff"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00"),
        ({"type": "array", "items": "double"}, b"\x02\x00\x00"),
    ],
    ids=str,
)
def test_bytes_that_are_no_value_are_an_error(schema: Any, bad: bytes) -> None:
    """Alone, and before a record that is good."""
    deserializer = AvroDeserializer(schema=schema)
    for records in ([bad], [bad, b"\x00"]):
        with pytest.raises(ValueError, match=r"a (record|number|boolean|list)|out of range|UTF8"):
            deserializer.deserialize(pa.array(records, pa.binary()))


def test_a_length_moves_nothing_back() -> None:
    """A negative length of a skipped text would let its bytes be read twice."""
    written, read = AvroSchema(record(a="string", b="int")), AvroSchema(record(b="int"))
    column = unframed_records(pa.array([b"\x01"]))
    with pytest.raises(ValueError, match="impossible length"):
        read_records(column, {None: reading(written, read)}, arrow_type(read))
