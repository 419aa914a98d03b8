"""Avro lists without bytes of their own, damaged lists, and values that a type cannot hold."""

import time
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.kafka.records.serde.avro_columns import read_records
from sluice.connectors.kafka.records.serde.avro_encoding import encoded
from sluice.connectors.kafka.records.serde.avro_resolution import reading
from sluice.connectors.kafka.records.serde.avro_types import AvroSchema, arrow_type
from sluice.connectors.kafka.records.serde.schema_ids import unframed_records
from sluice.registry import AvroRegistryDeserializer, SchemaRegistry
from sluice.runtime.errors import ConfigError
from tests.unit.connectors.kafka.records.serde.test_avro_schemas import record, written_by

FEW, MANY = 1, 20
MILLION = b"\x80\x89\x7a"
NULLS = {"type": "array", "items": "null"}
EMPTY = {"type": "record", "name": "empty", "fields": []}


def read(written: Any, rows: list[bytes], wanted: Any = None) -> list[Any]:
    """The values of records."""
    writer = AvroSchema(written)
    reader = writer if wanted is None else AvroSchema(wanted)
    records = unframed_records(pa.array(rows, pa.binary()))
    found: list[Any] = read_records(
        records, {None: reading(writer, reader)}, arrow_type(reader)
    ).to_pylist()
    return found


def test_a_skipped_list_of_empty_records_may_be_long() -> None:
    schema = record(empties={"type": "array", "items": EMPTY}, x="int")
    rows = written_by(schema, {"empties": [{}] * 50, "x": 3})
    assert read(schema, rows, record(x="int")) == [{"x": 3}]


@pytest.mark.parametrize("count", [FEW, MANY])
def test_the_number_of_records_does_not_decide_on_a_list_of_nulls(count: int) -> None:
    schema = {"type": "array", "items": NULLS}
    rows = written_by(schema, [[None] * 1_000])
    assert read(schema, rows * count) == [[[None] * 1_000]] * count


@pytest.mark.parametrize("count", [FEW, MANY])
def test_the_number_of_records_does_not_decide_on_a_wrong_block_size(count: int) -> None:
    """As fastavro, Sluice does not need the bytes that a block states."""
    schema = {"type": "array", "items": {"type": "array", "items": "string"}}
    row = bytes([2, 1, 16, 2]) + b"a" + bytes([0, 0])
    assert read(schema, [row] * count) == [[["a"]]] * count


def test_a_number_without_an_end_costs_no_time() -> None:
    began_s = time.process_time()
    with pytest.raises(ValueError, match="64 bits"):
        read({"type": "array", "items": "string"}, [b"\x02" + b"\xff" * 1_000_000])
    assert time.process_time() - began_s < 10  # a minute, if each byte made the number longer


def test_many_blocks_of_nothing_take_no_memory() -> None:
    assert len(read(NULLS, [MILLION + b"\0"])[0]) == 1_000_000
    with pytest.raises(ValueError, match="more items"):
        read(NULLS, [MILLION * 100 + b"\0"])


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_a_number_above_any_float_is_refused(is_dictionary: bool) -> None:
    infinite = encoded(AvroSchema("float"), pa.array([float("inf"), 1.5, float("nan")]))
    assert infinite.to_pylist()[0] == b"\0\0\x80\x7f"
    values = pa.array([1.0, 1e300])
    with pytest.raises(ValueError, match="above any float"):
        encoded(AvroSchema("float"), values.dictionary_encode() if is_dictionary else values)


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ({"type": "record", "name": "inner", "fields": [{"name": "i", "type": "int"}]}, {}),
        ({"type": "enum", "name": "state", "symbols": ["NEW"]}, "PAID"),
        ("int", "1"),
        ("int", 2**40),
        ("bytes", 1),
    ],
)
def test_a_wrong_default_is_no_fault_of_a_record(kind: Any, default: object) -> None:
    schema = {**EMPTY, "fields": [{"name": "x", "type": kind, "default": default}]}
    with pytest.raises(ConfigError, match=r"[dD]efault"):
        AvroRegistryDeserializer(
            registry=SchemaRegistry(url="http://localhost:1"), reader_schema=schema
        )
