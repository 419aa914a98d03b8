"""Deserializers: each record by itself, exactly, or an error; and how a source takes them."""

import datetime
import io
import pickle
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.records.serde.avro_records import AvroDeserializer, Framing
from sluice.connectors.kafka.records.serde.deserializing import (
    DeserializedColumn,
    Deserializer,
    last_headers,
)
from sluice.connectors.kafka.records.serde.json_records import JsonDeserializer
from sluice.runtime.errors import ConfigError
from sluice.runtime.functions.function_run import FunctionRun
from sluice.runtime.graph.job_graph import regions_of
from sluice.runtime.job.job import Job
from sluice.runtime.model.on_error import DeadLetters, Skip
from tests.kit.source.source_rows import source_rows

ORDER = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
UTC = datetime.UTC


def values(deserializer: Deserializer, *records: bytes | None) -> list[object]:
    # Through pickle, as it reaches an executor.
    found = pickle.loads(pickle.dumps(deserializer)).deserialize(pa.array(records, pa.binary()))
    assert found.type == deserializer.type
    found.validate(full=True)
    return cast(list[object], found.to_pylist())


# --- JSON -----------------------------------------------------------------------------------------


def test_json_objects_are_rows_of_the_schema() -> None:
    """What is missing is null, what is unknown is left out, a tombstone stays one."""
    found = values(
        JsonDeserializer(schema=ORDER),
        b'{"id": 1, "note": "a"}',
        b' {\n"id":2,\r\n"more":{"x":[1,{}]}} ',
        None,
        '{"note":"\\u00e4ä","id":-3}'.encode(),
    )
    assert found == [
        {"id": 1, "note": "a"},
        {"id": 2, "note": None},
        None,
        {"id": -3, "note": "ää"},
    ]


def test_json_values_of_every_type_are_exact() -> None:
    """Moments in their zone, decimals by their digits."""
    schema = pa.schema(
        [
            pa.field("at", pa.timestamp("ms", tz="UTC")),
            pa.field("price", pa.decimal128(6, 2)),
            pa.field("tags", pa.list_(pa.struct([pa.field("ok", pa.bool_())]))),
            pa.field("share", pa.float64()),
        ]
    )
    record = (
        b'{"at":"2024-02-29T12:00:00.250+01:00","price":12.30,"tags":[{"ok":true}],"share":0.5}'
    )
    assert values(JsonDeserializer(schema=schema), record) == [
        {
            "at": datetime.datetime(2024, 2, 29, 11, 0, 0, 250_000, tzinfo=UTC),
            "price": Decimal("12.30"),
            "tags": [{"ok": True}],
            "share": 0.5,
        }
    ]
    assert values(JsonDeserializer(schema=pa.int64()), b"5", b"null") == [5, None]
    assert values(JsonDeserializer(schema=ORDER)) == []


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize(
    ("text", "hour"),
    [("2024-03-01T12:00:00+02:00", 10), ("2024-03-01T12:00:00Z", 12), ("2024-03-01T12:00:00", 12)],
)
def test_a_moment_is_that_of_its_offset_and_without_one_utc(
    zone: str, text: str, hour: int
) -> None:
    """Whatever zone the schema shows it in."""
    (found,) = values(JsonDeserializer(schema=pa.timestamp("us", tz=zone)), f'"{text}"'.encode())
    assert found == datetime.datetime(2024, 3, 1, hour, tzinfo=UTC)


WALL = pa.timestamp("us")


@pytest.mark.parametrize("offset", ["+02:00", "-0530", "+00", "Z", "+00:00"])
@pytest.mark.parametrize(
    ("schema", "record"),
    [
        (WALL, '"%s"'),
        (pa.schema([("at", WALL)]), '{"at":"%s"}'),
        (pa.list_(pa.struct([("at", WALL)])), '[{"at":null},{"at":"%s"}]'),
    ],
    ids=["value", "field", "nested"],
)
def test_an_offset_has_no_place_in_a_time_without_a_zone(
    schema: Any, record: str, offset: str
) -> None:
    """As in Spark's from_json: taken off, or turned into UTC, it would be another time."""
    deserializer = JsonDeserializer(schema=schema)
    text = "2024-03-01T12:00:00.250"
    assert values(deserializer, (record % text).encode(), None)
    with pytest.raises((pa.ArrowInvalid, ValueError), match="offset"):
        values(deserializer, (record % text).encode(), (record % (text + offset)).encode())


def test_times_without_a_zone_are_read_as_they_stand() -> None:
    schema = pa.schema([pa.field("at", WALL, nullable=False), ("tags", pa.list_(pa.string()))])
    deserializer = JsonDeserializer(schema=schema)
    at = datetime.datetime(2024, 3, 1, 12, 0, 0, 250_000)  # noqa: DTZ001 - as it stands
    assert values(deserializer, b'{"at":"2024-03-01 12:00:00.25"}') == [{"at": at, "tags": None}]
    for bad in (
        b'{"at":null}',
        b"{}",
        b'{"at":1709294400}',
        b'{"at":"2024-03-01T12:00:00.1234567"}',
    ):
        with pytest.raises((pa.ArrowInvalid, ValueError)):
            values(deserializer, bad)


@pytest.mark.parametrize("number", ["1e39", "-1e39", "3.4028236e38"])
@pytest.mark.parametrize(
    ("schema", "record"),
    [
        (pa.float32(), "%s"),
        (pa.schema([("f", pa.float32()), ("d", pa.float64())]), '{"f":%s,"d":1e300}'),
        (pa.list_(pa.struct([("f", pa.float32())])), '[{"f":null},{"f":%s}]'),
    ],
    ids=["value", "field", "nested"],
)
def test_a_number_beyond_32_bits_is_an_error_and_no_infinity(
    schema: Any, record: str, number: str
) -> None:
    """Also beside an infinity that was written as one, which Spark reads, too."""
    deserializer = JsonDeserializer(schema=schema)
    good = [(record % text).encode() for text in ("3.4028235e38", "-Infinity", "1e-50")]
    assert len(values(deserializer, *good, None)) == 4
    with pytest.raises(ValueError, match="too large"):
        values(deserializer, *good, (record % number).encode())


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
@pytest.mark.parametrize(
    "number", [b"1.7976931348623159e308", b"1.8e308", b"-9e308", b"10E+308", b"9" * 310, b"1e999"]
)
def test_a_number_beyond_64_bits_is_an_error_and_no_infinity(
    kind: pa.DataType, number: bytes
) -> None:
    """Arrow has an error for a few of them only."""
    schema = pa.schema([("f", kind), ("tags", pa.list_(kind)), ("note", pa.string())])
    deserializer = JsonDeserializer(schema=schema)
    good = b'{"note":"\\"1.8e308","f":Infinity,"tags":[-Infinity,Inf,1e38]}'
    infinity = float("inf")
    (found,) = values(deserializer, good)
    assert cast(Any, found)["f"] == infinity
    assert cast(Any, found)["note"] == '"1.8e308'
    for bad in (good.replace(b"1e38", number), b'{"f":%b}' % number):
        with pytest.raises((pa.ArrowInvalid, ValueError), match=r"too (large|big)"):
            values(deserializer, good, bad)


def test_a_number_beyond_64_bits_in_an_unknown_field_is_nobodys() -> None:
    """Alone, and beside an infinity that was written, it is read as the schema says."""
    deserializer = JsonDeserializer(schema=pa.schema([("f", pa.float64())]))
    found = values(deserializer, b'{"f":1.5,"x":1.8e308}', b'{"f":Infinity,"x":[1.8e308]}')
    assert found == [{"f": 1.5}, {"f": float("inf")}]


def test_numbers_of_32_bits_are_rounded_once() -> None:
    """By way of 64 bits this one, just above the middle of two, would become the lower of them."""
    text = b"1.00000005960464477540"
    assert values(JsonDeserializer(schema=pa.float32()), text) == [1.0000001192092896]


BAD_JSON = [
    b"",
    b" ",
    b"\x00",
    b"{",
    b'{"id":1',
    b'{"id":1}x',
    b'{"id":1} {"id":2}',
    b'{"id":1},{"id":2}',
    b'{"id":1}\n{"id":2}',
    b'{"id":1}]}{"v":[{"id":2}',
    b'{"id":1}],"w":[{"id":2}',
    b'{"id":1}] , "w":0,"x":[2',
    b'{"id":1}\x00',
    b"5",
    b'[{"id":1}]',
    b"{}",
    b'{"id":null}',
    b'{"id":"1"}',
    b'{"id":1.5}',
    b'{"id":true}',
    b'{"id":9223372036854775808}',
    b'{"id":1,"id":2}',
    b'{"id":1,"note":2,"id":3}',
    b'{"id":1,"note":2,}',
    b'{"id":1,"note":2 "more":3}',
    b'{"id":1,"note":2}]}{"v":[{"id":2}',
    b'{"id":1,"note":%b' % (b"[" * 100_000),
    b'{"id":1,"note":"\xff"}',
    b'{"id":1,"note":"\\ud800"}',
    b'{"id":1,"note":"a\nb"}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("record", BAD_JSON, ids=lambda r: repr(r[:24]))
def test_a_json_record_that_is_none_is_an_error_wherever_it_stands(record: bytes) -> None:
    """Alone, and among good ones: none of which it may take along unnoticed."""
    deserializer = JsonDeserializer(schema=ORDER)
    for records in ([record], [b'{"id":1}', record, b'{"id":2}']):
        with pytest.raises((pa.ArrowInvalid, ValueError)):
            values(deserializer, *records)


@given(
    st.lists(
        st.one_of(
            st.sampled_from(BAD_JSON),
            st.sampled_from(
                [b'{"id":1}', b'{"id":2,"note":"x"}', b'{"id":3,"note":{"a":[]}}', None]
            ),
            st.binary(max_size=12),
            st.text('{}[]",:\n\\v1 ', max_size=12).map(str.encode),
        ),
        max_size=6,
    )
)
def test_json_records_never_change_each_other(records: list[bytes | None]) -> None:
    """All together they are what each is alone; or one of them is an error alone, too."""
    deserializer = JsonDeserializer(schema=ORDER)
    alone: list[object] = []
    fails = False
    for record in records:
        try:
            alone += values(deserializer, record)
        except (pa.ArrowInvalid, ValueError):
            fails = True
    try:
        together = values(deserializer, *records)
    except (pa.ArrowInvalid, ValueError):
        assert fails
    else:
        assert not fails
        assert together == alone


def test_unknown_json_fields_may_be_errors() -> None:
    """By choice."""
    strict = JsonDeserializer(schema=ORDER, unknown_fields="error")
    with pytest.raises(pa.ArrowInvalid, match="unexpected field"):
        values(strict, b'{"id":1,"more":2}')
    assert values(strict, b'{"id":1}') == [{"id": 1, "note": None}]
    with pytest.raises(ConfigError, match="unknown_fields=no"):
        JsonDeserializer(schema=ORDER, unknown_fields="no")


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.float16(), pa.date32(), pa.map_(pa.string(), pa.int8())], ids=str
)
def test_a_type_that_json_lacks_is_refused_by_its_field(kind: pa.DataType) -> None:
    """Before a job starts, not by each record."""
    inner = pa.struct([pa.field("inner", pa.list_(kind))])
    with pytest.raises(ConfigError, match=r"outer\.inner\[\]"):
        JsonDeserializer(schema=pa.schema([pa.field("outer", inner)]))


def test_two_fields_of_one_name_are_refused_at_any_depth() -> None:
    """The second would be null in every record; names that differ in case are two."""
    two = [pa.field("id", pa.int64()), pa.field("id", pa.string())]
    with pytest.raises(ConfigError, match=r"struct=\(the record\) fields=id"):
        JsonDeserializer(schema=pa.schema(two))
    nested = pa.list_(pa.struct([pa.field("rows", pa.list_(pa.struct(two)))]))
    with pytest.raises(ConfigError, match=r"struct=\[\]\.rows\[\] fields=id"):
        JsonDeserializer(schema=nested)
    cased = pa.schema([("id", pa.int64()), ("ID", pa.string())])
    assert values(JsonDeserializer(schema=cased), b'{"ID":"a"}') == [{"id": None, "ID": "a"}]


# --- Avro -----------------------------------------------------------------------------------------

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        },
        {"name": "state", "type": {"type": "enum", "name": "state", "symbols": ["NEW", "DONE"]}},
        {"name": "before", "type": ["null", "state"]},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "line",
                    "fields": [{"name": "sku", "type": "string"}],
                },
            },
        },
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "hash", "type": {"type": "fixed", "name": "hash", "size": 2}},
    ],
}
ROW: dict[str, Any] = {
    "id": 7,
    "at": datetime.datetime(2024, 1, 2, 3, 4, 5, 6_000, tzinfo=UTC),
    "price": Decimal("-1.25"),
    "state": "NEW",
    "before": None,
    "tags": {"a": 1},
    "lines": [{"sku": "x"}],
    "uuid": "89078543-13e4-4df7-ac07-9b4e77559e4d",
    "hash": b"\x00\xff",
}


def avro(row: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), dict(row))
    return out.getvalue()


def test_avro_records_are_rows_of_their_schema() -> None:
    """Logical types as Arrow has them; a tombstone stays one."""
    expected = {**ROW, "tags": [("a", 1)]}
    again = {**ROW, "before": "DONE"}
    found = values(AvroDeserializer(schema=AVRO), avro(ROW), None, avro(again))
    assert found == [expected, None, {**expected, "before": "DONE"}]


@pytest.mark.parametrize("record", [b"", avro(ROW)[:9], avro(ROW) + b"\x00", b"\xff" * 40])
def test_an_avro_record_that_is_none_is_an_error(record: bytes) -> None:
    """Cut off, with bytes behind it, or anything else."""
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever fastavro raises is the record's
        values(AvroDeserializer(schema=AVRO), record)


NUMBER, GUID = b"\x00\x00\x00\x00\x09", b"\x01" + bytes(range(16))
FRAMED = AvroDeserializer(schema='{"type": "string"}', framing=Framing.CONFLUENT)


def test_confluents_framing_is_taken_off_and_nothing_else_for_it() -> None:
    """A number or a GUID, which is not looked up: the schema is given."""
    assert values(FRAMED, NUMBER + b"\x02a", GUID + b"\x02b") == ["a", "b"]
    for bad in (b"\x01\x00\x00\x00\x09\x02a", b"\x00\x00", b"", b"\x02a"):
        with pytest.raises(ValueError, match="schema id"):
            values(FRAMED, bad)


def framed_values(*records: tuple[bytes | None, list[tuple[str, bytes | None]] | None]) -> object:
    """As a source reads records with these values and headers."""
    headers = [None if h is None else [{"key": k, "value": v} for k, v in h] for _, h in records]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.record_batch(
        {
            "value": pa.array([v for v, _ in records], pa.binary()),
            "headers": pa.array(headers, kind),
        }
    )
    column = DeserializedColumn(column="value", deserializer=FRAMED)
    return cast(DeserializedColumn, pickle.loads(pickle.dumps(column)))(batch)["value"].to_pylist()


def test_a_schema_id_may_be_in_a_header_instead() -> None:
    """As newer writers of Confluent put it, among records of older ones; the last header counts."""
    name, other = "__value_schema_id", "__key_schema_id"
    found = framed_values(
        (NUMBER + b"\x02a", None),
        (b"\x02b", [(name, NUMBER)]),
        (b"\x02c", [("x", None), (name, b"none"), (name, GUID)]),
        (GUID + b"\x02d", [(other, NUMBER)]),
        (None, [(name, GUID)]),
        # It could be a record with an id before its value.
        (b"\x08\x00\x00\x00\x00", [(name, NUMBER)]),
    )
    assert found == ["a", "b", "c", "d", None, "\0\0\0\0"]
    assert framed_values((NUMBER + b"\x02a", [("x", b"")])) == ["a"]
    for bad in (b"", b"\x00\x00", NUMBER + b"\x00", b"\x02" * 5):
        with pytest.raises(ValueError, match="schema id"):
            framed_values((b"\x02a", [(name, bad)]))


@pytest.mark.parametrize("without", [{"include_headers": False}, {"columns": ["value"]}], ids=str)
def test_a_source_must_read_the_headers_that_may_hold_schema_ids(without: dict[str, Any]) -> None:
    """Else a bare value could pass for one with an id before it."""
    with pytest.raises(ConfigError, match="missing=headers"):
        source(value_deserializer=FRAMED, **without)
    plain = AvroDeserializer(schema='{"type": "string"}')
    assert source(value_deserializer=plain, **without).functions


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "JSONDecodeError"),
        ('{"type": "nothing"}', "nothing"),
        ('["int", "string"]', "union"),
        (
            '{"type":"record","name":"n","fields":[{"name":"next","type":["null","n"]}]}',
            "contains itself",
        ),
    ],
    ids=["text", "unknown", "union", "recursive"],
)
def test_an_avro_schema_without_columns_is_refused(schema: str, said: str) -> None:
    """Before a job starts."""
    with pytest.raises(ConfigError, match=said):
        AvroDeserializer(schema=schema)


# --- in a source ----------------------------------------------------------------------------------


def source(**settings: Any) -> KafkaSource:
    return KafkaSource(bootstrap_servers="b:1", topics=["in"], name="orders", **settings)


def job_of(made: KafkaSource) -> Job:
    job = Job("j", cast(Any, None), checkpoint_dir="/c")
    job.source(made).sink(
        KafkaSink(bootstrap_servers="b:1", topic="out", transactional_id_prefix="p")
    )
    return job


def run(functions: Sequence[Any], batch: pa.RecordBatch) -> tuple[list[object], list[Any], Any]:
    letters: list[Any] = []
    made = FunctionRun(functions, job_name="j")
    rows = [
        value
        for each in made.applied(iter([batch]), lambda topic, rows: letters.append((topic, rows)))
        for value in each.column("value").to_pylist()
    ]
    return rows, letters, made


def test_poison_bytes_go_by_the_sources_policy_with_their_position() -> None:
    """As any function's: the original bytes are in the dead letter, whatever the key became."""
    made = source(
        key_deserializer=JsonDeserializer(schema=pa.string()),
        value_deserializer=JsonDeserializer(schema=ORDER),
        on_error=DeadLetters(topic="dead"),
    )
    (region,) = regions_of(job_of(made).spec.pipelines, [False])[1]
    assert region.functions is not None
    assert [function.name for function in region.functions] == ["orders-key", "orders-value"]
    assert region.dead_letter_sink is not None
    batch = source_rows(b'{"id":1}', b"poison", b'{"id":2}', first_offset=40)
    keys = pa.array([b'"k0"', b'"k1"', b"k2"], pa.binary())
    batch = batch.set_column(batch.schema.get_field_index("key"), "key", keys)
    rows, letters, made_run = run(region.functions, batch)
    assert rows == [{"id": 1, "note": None}]
    ((topic, dead),) = letters
    assert topic == "dead"
    assert dead.column("key").to_pylist() == [b'"k1"', b"k2"]
    assert dead.column("value").to_pylist() == [b"poison", b'{"id":2}']
    headers = [
        dict(map(tuple, (e.values() for e in row))) for row in dead.column("headers").to_pylist()
    ]
    assert [h["sluice.operator"] for h in headers] == [b"orders-value", b"orders-key"]
    assert [h["sluice.source.offset"] for h in headers] == [b"41", b"42"]
    counts = {f.name: made_run.counts[f.operator_id] for f in region.functions}
    assert (counts["orders-key"].dead_lettered, counts["orders-value"].dead_lettered) == (1, 1)


def test_a_source_without_deserializers_has_no_functions() -> None:
    """And its records cost nothing more."""
    (region,) = regions_of(job_of(source()).spec.pipelines, [False])[1]
    assert region.functions == ()


def test_what_makes_no_sense_is_refused_where_it_is_written() -> None:
    """A policy without a function, a column that is not read, a transform behind."""
    with pytest.raises(ConfigError, match="needs a deserializer"):
        source(on_error=Skip())
    deserializer = JsonDeserializer(schema=ORDER)
    with pytest.raises(ConfigError, match="missing=value"):
        source(value_deserializer=deserializer, columns=["key"])
    job = Job("j", cast(Any, None), checkpoint_dir="/c")
    with pytest.raises(ConfigError, match="from_json"):
        job.source(source(value_deserializer=deserializer)).transform(lambda frame: frame)


@pytest.mark.parametrize("part", [slice(0, 6), slice(1, 5), slice(4, 4)], ids=str)
def test_the_last_header_of_a_name_counts(part: slice) -> None:
    """Of each record, whatever stands before it in the column."""
    lists = [
        [("id", b"a"), ("x", b"b"), ("id", b"c")],
        None,
        [("x", b"d")],
        [("id", None)],
        [],
        [("id", b"e")],
    ]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    made = [found and [{"key": k, "value": v} for k, v in found] for found in lists]
    expected = [b"c", None, None, None, None, b"e"]
    found = last_headers(pa.array(made, kind)[part], "id")
    assert (found is None) == (part == slice(4, 4))
    assert found is None or found.to_pylist() == expected[part]
    assert last_headers(pa.array(made, kind), "y") is None
