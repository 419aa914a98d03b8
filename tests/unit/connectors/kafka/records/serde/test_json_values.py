"""JSON that is odd but legal: any value in a string field, fields twice, nulls around required ones."""

import json
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pytest

from sluice.connectors.kafka.records.serde.json_records import JsonDeserializer
from sluice.connectors.kafka.records.serde.record_json import json_texts
from sluice.runtime.errors import ConfigError
from tests.unit.connectors.kafka.records.serde.test_deserializers import ORDER, values

WALL = pa.timestamp("us")
TEXTS = pa.schema(
    [
        pa.field("t", pa.string()),
        pa.field("l", pa.list_(pa.string())),
        pa.field("s", pa.struct([pa.field("t", pa.string()), pa.field("n", pa.int64())])),
    ]
)


@pytest.mark.parametrize("unknown", ["ignore", "error"])
@pytest.mark.parametrize(
    "text",
    [
        "7",
        "-1.50e3",
        "true",
        '{"x": 1, "y": ["ä", "\\u00e4\\n"]}',
        "[1 ,2]",
        "{}",
        '"a\\u0000b"',
        "null",
    ],
)
def test_a_string_field_takes_the_json_of_any_value(text: str, unknown: str) -> None:
    """Character for character, at any depth; null stays null."""
    expected = json.loads(text) if text[0] in '"n' else text
    deserializer = JsonDeserializer(schema=TEXTS, unknown_fields=unknown)
    record = f' {{"t": {text} , "l":[{text},"x",{text}],\n"s":{{"n":1,"t":{text}}}}} '
    assert values(deserializer, b"{}", record.encode(), None) == [
        {"t": None, "l": None, "s": None},
        {"t": expected, "l": [expected, "x", expected], "s": {"t": expected, "n": 1}},
        None,
    ]
    assert values(JsonDeserializer(schema=pa.string()), text.encode()) == [expected]


def test_a_type_that_json_lacks_can_be_read_as_text() -> None:
    """As the refusal of a map advises."""
    with pytest.raises(ConfigError, match="read other types as strings"):
        JsonDeserializer(schema=pa.schema([("tags", pa.map_(pa.string(), pa.int64()))]))
    tags = JsonDeserializer(schema=pa.schema([("tags", pa.string())]))
    assert values(tags, b'{"tags":{"a":1,"a":2}}') == [{"tags": '{"a":1,"a":2}'}]


def test_a_field_twice_is_an_error_by_its_name_if_the_schema_has_it() -> None:
    """No value is chosen; a field that nobody reads may stand there as often as it likes."""
    deserializer = JsonDeserializer(schema=ORDER)
    for record in (b'{"id":1,"id":1}', b'{"id":1,"note":null,"note":7}'):
        with pytest.raises(ValueError, match=r"Column\(/(id|note)\) was specified twice"):
            values(deserializer, record)
    twice = b'{"id":1,"other":2,"other":"a","deep":{"a":1,"a":2}}'
    assert values(deserializer, twice, b'{"id":2,"note":2,"x":1,"x":1}') == [
        {"id": 1, "note": None},
        {"id": 2, "note": "2"},
    ]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.int64(), "-9223372036854775808", -(2**63)),
        (pa.uint64(), "18446744073709551615", 2**64 - 1),
        (pa.int8(), "-0", 0),
        (pa.float64(), "-0.0", "-0.0"),
        (pa.float64(), "5e-324", 5e-324),
        (pa.float64(), "NaN", "nan"),
        (pa.decimal128(38, 0), "9" * 38, Decimal("9" * 38)),
        (pa.decimal128(38, 38), "-1e-38", Decimal("-1e-38")),
        (pa.decimal128(5, 2), '"1.2"', Decimal("1.20")),
        (pa.string(), '"\\u0000\\ud83d\\ude00\U0001f600"', "\0\U0001f600\U0001f600"),
        (pa.string(), f'"{"x" * 3_000_000}"', "x" * 3_000_000),
        (WALL, '"9999-12-31T23:59:59.999999"', "9999-12-31 23:59:59.999999"),
        (WALL, '"0001-01-01"', "0001-01-01 00:00:00"),
        (pa.timestamp("us", tz="UTC"), '"1600-02-29T00:00:00+01:00"', "1600-02-28 23:00:00+00:00"),
        (pa.struct([]), '{"x":1}', {}),
        (
            pa.list_(pa.struct([("", pa.bool_())])),
            '[null,{},{"":true}]',
            [None, {"": None}, {"": True}],
        ),
        (pa.struct([("a", pa.int8()), ("A", pa.int8())]), '{"A":1,"a":2}', {"a": 2, "A": 1}),
    ],
    ids=lambda value: str(value)[:24],
)
def test_odd_but_legal_json_is_exact(kind: pa.DataType, text: str, expected: object) -> None:
    """The ends of each range, and values that hold nothing."""
    (found,) = values(JsonDeserializer(schema=kind), text.encode())
    assert found == expected or str(found) == expected


CHANGE = pa.struct([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


@pytest.mark.parametrize(
    ("kind", "good", "bad", "place"),
    [
        (CHANGE, "null", '{"name":"x"}', "c.id"),
        (pa.list_(CHANGE), '[null,{"id":1}]', '[{"id":1},{"id":null}]', r"c\[\].id"),
        (pa.struct([pa.field("in", CHANGE)]), '{"in":null}', '{"in":{}}', "c.in.id"),
        (pa.list_(pa.field("item", pa.int8(), nullable=False)), "[]", "[1,null]", r"c\[\]"),
    ],
    ids=str,
)
def test_a_field_must_be_there_only_if_its_struct_is(
    kind: pa.DataType, good: str, bad: str, place: str
) -> None:
    """As in change events, whose row before an insert is null; the error names the field."""
    deserializer = JsonDeserializer(schema=pa.schema([pa.field("c", kind)]))
    found = values(deserializer, b"{}", f'{{"c":{good}}}'.encode())
    assert [cast(Any, row)["c"] is None for row in found] == [True, good == "null"]
    with pytest.raises(ValueError, match=f"the field {place} is null or missing"):
        values(deserializer, f'{{"c":{good}}}'.encode(), f'{{"c":{bad}}}'.encode())


def test_a_map_becomes_an_object() -> None:
    """At any depth, as Spark's ``to_json`` writes it, and not a list of pairs."""
    kind = pa.map_(pa.string(), pa.struct([("n", pa.map_(pa.large_string(), pa.int64()))]))
    maps = pa.array([[("a", {"n": [("b", 1), ("c", None)]}), ("d", None)], [], None], kind)
    assert json_texts(maps) == ['{"a":{"n":{"b":1,"c":null}},"d":null}', "{}", None]
    assert json_texts(pa.nulls(1, pa.map_(pa.int8(), pa.int8()))) == [None]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.map_(pa.string(), pa.int64()), [("a", 1), ("a", 2)]),
        (pa.map_(pa.int64(), pa.int64()), [(1, 2)]),
        (pa.list_(pa.map_(pa.date32(), pa.int64())), [[]]),
        (pa.struct([("i", pa.month_day_nano_interval())]), {"i": (1, 2, 3)}),
    ],
    ids=["twice", "numbers", "days", "interval"],
)
def test_what_json_does_not_hold_is_no_other_value(kind: pa.DataType, value: object) -> None:
    with pytest.raises(ValueError, match="has no JSON"):
        json_texts(pa.array([value], kind))
