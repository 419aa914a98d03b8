"""Schemas of Avro: which have columns, and what is read by them."""

import io
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa

from connectors.kafka.serde import AvroDeserializer
from tests.unit.test_deserializers import values


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
