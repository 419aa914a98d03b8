"""Avro records that are read column by column are those that fastavro reads one by one."""

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any
from unittest import mock

import fastavro
import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from sluice.connectors.kafka.records.serde import avro_lists
from sluice.connectors.kafka.records.serde.avro_columns import read_records
from sluice.connectors.kafka.records.serde.avro_encoding import encoded
from sluice.connectors.kafka.records.serde.avro_resolution import reading
from sluice.connectors.kafka.records.serde.avro_types import AvroSchema, arrow_type
from sluice.connectors.kafka.records.serde.schema_ids import unframed_records

_INT, _LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": _INT,
    "long": _LONG,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=4),
    "string": _TEXT,
}
_PROMOTED = [
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
]
_LOGICAL = [
    ({"type": "int", "logicalType": "date"}, _INT),
    ({"type": "int", "logicalType": "time-millis"}, st.integers(0, 86_399_999)),
    ({"type": "long", "logicalType": "timestamp-micros"}, _LONG),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        st.decimals(-99, 99, places=2),
    ),
    ({"type": "string", "logicalType": "uuid"}, _TEXT),
]


@dataclass(frozen=True)
class Pair:
    """A writer's and a reader's schema, and values of the writer."""

    written: Any
    read: Any
    values: st.SearchStrategy[Any]


def _same(kind: Any, values: st.SearchStrategy[Any]) -> Pair:
    return Pair(kind, kind, values)


@st.composite
def _pairs(draw: st.DrawFn, names: Iterator[int], depth: int = 2) -> Pair:
    leaf: st.SearchStrategy[Pair] = st.one_of(
        st.sampled_from(sorted(_PRIMITIVES)).map(lambda each: _same(each, _PRIMITIVES[each])),
        st.sampled_from(_LOGICAL).map(lambda each: _same(*each)),
        st.sampled_from(_PROMOTED).map(lambda each: Pair(*each, _PRIMITIVES[each[0]])),
        st.builds(_fixed, st.just(names), st.integers(0, 3)),
        _enums(names),
    )
    if not depth:
        return draw(leaf)
    inner = _pairs(names, depth - 1)
    return draw(
        st.one_of(
            leaf,
            inner.map(
                lambda p: Pair(_list(p.written), _list(p.read), st.lists(p.values, max_size=3))
            ),
            inner.map(
                lambda p: Pair(
                    _map(p.written), _map(p.read), st.dictionaries(_TEXT, p.values, max_size=3)
                )
            ),
            _unions(inner),
            _records(names, inner),
        )
    )


def _list(items: Any) -> Any:
    return {"type": "array", "items": items}


def _map(values: Any) -> Any:
    return {"type": "map", "values": values}


def _fixed(names: Iterator[int], size: int) -> Pair:
    schema = {"type": "fixed", "name": f"n{next(names)}", "size": size}
    return _same(schema, st.binary(min_size=size, max_size=size))


@st.composite
def _enums(draw: st.DrawFn, names: Iterator[int]) -> Pair:
    written = draw(st.lists(st.sampled_from("abcde"), min_size=1, unique=True))
    read = draw(st.lists(st.sampled_from("abcde"), min_size=1, unique=True))
    default = {"default": read[0]} if draw(st.booleans()) else {}
    named = {"type": "enum", "name": f"n{next(names)}"}
    reader = {**named, "symbols": read, **default}
    return Pair({**named, "symbols": written}, reader, st.sampled_from(written))


@st.composite
def _unions(draw: st.DrawFn, inner: st.SearchStrategy[Pair]) -> Pair:
    pair = draw(inner.filter(lambda p: not isinstance(p.written, list) and p.written != "null"))
    read, values = pair.read, pair.values
    written: Any = pair.written
    if draw(st.booleans()):
        written = draw(st.permutations([written, "null"]))
        values = st.none() | values
    if draw(st.booleans()) and not isinstance(read, list):
        read = draw(st.permutations([read, "null"]))
    return Pair(written, read, values)


@st.composite
def _records(draw: st.DrawFn, names: Iterator[int], inner: st.SearchStrategy[Pair]) -> Pair:
    name = f"n{next(names)}"
    written: list[Any] = []
    read: list[Any] = []
    values: dict[str, st.SearchStrategy[Any]] = {}
    for pair in draw(st.lists(inner, max_size=3)):
        field = f"f{next(names)}"
        what = draw(st.sampled_from(["kept", "renamed", "skipped"]))
        written.append({"name": field, "type": pair.written})
        values[field] = pair.values
        if what == "kept":
            read.append({"name": field, "type": pair.read})
        elif what == "renamed":
            read.append({"name": f"f{next(names)}", "type": pair.read, "aliases": [field]})
    if draw(st.booleans()):
        field = f"f{next(names)}"
        written.append({"name": field, "type": ["int", "null", _list("string"), "double"]})
        values[field] = st.one_of(_INT, st.none(), st.lists(_TEXT, max_size=2), st.just(0.5))
    for schema, default in draw(st.lists(st.sampled_from(_DEFAULTS), max_size=2)):
        read.append({"name": f"f{next(names)}", "type": schema, "default": default})
    read = draw(st.permutations(read))
    return Pair(
        {"type": "record", "name": name, "fields": written},
        {"type": "record", "name": name, "fields": read},
        st.fixed_dictionaries(values),
    )


_DEFAULTS: list[Any] = [
    (["null", "string"], None),
    (["int", "null"], 3),
    ("string", "d\u00e9"),
    ("double", 1),
    ("bytes", "a\u0000"),
    (_list("long"), [1, 2]),
    (_map("boolean"), {"a": True}),
]


def _by_fastavro(records: list[bytes], written: Any, read: Any) -> list[Any]:
    writer, reader = (fastavro.parse_schema(_numbers(schema)) for schema in (written, read))
    return [fastavro.schemaless_reader(io.BytesIO(record), writer, reader) for record in records]


def _numbers(schema: Any) -> Any:
    """Without the logical types that fastavro limits to Python's calendar."""
    if isinstance(schema, list):
        return [_numbers(each) for each in schema]
    if isinstance(schema, Mapping):
        kept = schema.get("logicalType") == "decimal"
        return {k: _numbers(v) for k, v in schema.items() if kept or k != "logicalType"}
    return schema


def _outcome(read: Callable[[], pa.Array]) -> Any:
    try:
        return read()
    except Exception:  # noqa: BLE001 - fastavro has many
        return "error"


def _read(column: pa.Array, written: AvroSchema, read: AvroSchema) -> pa.Array:
    nodes = {None: reading(written, read)}
    return read_records(unframed_records(column), nodes, arrow_type(read))


@pytest.fixture(params=[0, 16], ids=["item by item", "record by record"])
def _lists(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways to read the lists of a few records."""
    with mock.patch.object(avro_lists, "_FEW_ROWS", request.param):
        yield


@pytest.mark.usefixtures("_lists")
@given(st.data())
def test_columns_are_what_fastavro_reads(data: st.DataObject) -> None:
    """For each pair of schemas that Avro resolves; and both refuse the same records."""
    pair = data.draw(_pairs(count()))
    values = data.draw(st.lists(pair.values, max_size=4))
    writer = fastavro.parse_schema(pair.written)
    records: list[bytes | None] = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, writer, value)
        records.append(out.getvalue())
    written, read = AvroSchema(pair.written), AvroSchema(pair.read)
    kind = arrow_type(read)
    expected = _outcome(
        lambda: pa.array(
            _by_fastavro([r for r in records if r is not None], pair.written, pair.read), kind
        )
    )
    column = pa.array(records, pa.binary())
    found = _outcome(lambda: _read(column, written, read))
    event("refused" if expected == "error" else "read")
    if isinstance(expected, str) or isinstance(found, str):
        assert isinstance(expected, str) == isinstance(found, str), (expected, found)
    else:
        assert found.type == kind
        assert found.equals(expected), (found.to_pylist(), expected.to_pylist())
        again = encoded(read, found)
        assert again.null_count == found.null_count
        assert _read(again, read, read).equals(found)
        texts = again.drop_null().to_pylist()
        by_fastavro = pa.array(_by_fastavro(texts, pair.read, pair.read), kind)
        assert by_fastavro.equals(found.drop_null())


@pytest.mark.usefixtures("_lists")
@given(st.data())
def test_a_damaged_record_does_not_change_its_neighbours(data: st.DataObject) -> None:
    """A column is read as its records one by one, or not at all."""
    pair = data.draw(_pairs(count()))
    writer, records = fastavro.parse_schema(pair.written), []
    for value in data.draw(st.lists(pair.values, min_size=1, max_size=3)):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, writer, value)
        records.append(out.getvalue())
    hurt = data.draw(st.integers(0, len(records) - 1))
    cut = data.draw(st.integers(0, len(records[hurt])))
    records[hurt] = records[hurt][:cut] + data.draw(st.binary(max_size=12))
    written, read = AvroSchema(pair.written), AvroSchema(pair.read)

    def of(*some: bytes) -> pa.Array:
        return _outcome(lambda: _read(pa.array(some, pa.binary()), written, read))

    alone, together = [of(each) for each in records], of(*records)
    if any(isinstance(each, str) for each in alone):
        assert isinstance(together, str)
    else:
        assert together.equals(pa.concat_arrays(alone)) or "nan" in str(together)
