"""Schemas of Avro: which have columns, and what is read by them."""

import io
from datetime import time
from decimal import Context, Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from sluice.connectors.kafka.records.serde.avro_records import AvroDeserializer
from sluice.runtime.errors import ConfigError
from tests.unit.connectors.kafka.records.serde.test_deserializers import values


def written(schema: Any, *rows: object) -> list[bytes]:
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
    assert values(deserializer, *written(schema, row, again)) == [row, again]


def test_a_null_may_be_written_out_in_a_union() -> None:
    """Avro knows two spellings of each plain type."""
    schema = record(note=[{"type": "null"}, "string"], none=[{"type": "null"}])
    rows = [{"note": None, "none": None}, {"note": "a", "none": None}]
    assert values(AvroDeserializer(schema=schema), *written(schema, *rows)) == rows


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
    assert values(AvroDeserializer(schema=TIMES), *written(TIMES, *rows)) == rows


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
            values(AvroDeserializer(schema=TIMES), *written(numbers, *rows))


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
    column = pa.array(written(plain, *numbers), pa.binary())
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
    assert values(deserializer, *written(decimal, *both)) == both
    with pytest.raises(pa.ArrowInvalid, match="precision"):
        values(deserializer, *written("bytes", number.to_bytes(17, signed=True)))


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
    assert values(AvroDeserializer(schema=schema), *written(schema, *rows)) == expected


def test_an_avro_record_with_two_fields_of_one_name_is_refused() -> None:
    """Avro has no such schema, though fastavro takes it."""
    inner = record(a="int")
    inner["fields"] *= 2
    with pytest.raises(ConfigError, match=r"record=shop\.row fields=a"):
        AvroDeserializer(schema={"type": "array", "items": inner})
