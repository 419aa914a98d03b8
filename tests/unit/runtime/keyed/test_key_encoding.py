"""Encoded keys: frozen by vectors, decodable, and in the order of the values."""

import datetime
import decimal

import pyarrow as pa
import pytest

from sluice.runtime.errors import ConfigError, DamagedCheckpointError
from sluice.runtime.keyed.key_encoding import decode, encode, key_schema

VECTORS = [
    (pa.string(), ["", "a", "é", None], ["01", "0161", "01c3a9", "00"]),
    (pa.binary(), [b"\x00\xff", None], ["0100ff", "00"]),
    (pa.int32(), [-1, 0, 7, None], ["017fffffffffffffff", "018000000000000000", "018000000000000007", "00"]),
    (pa.uint64(), [0, 2**64 - 1], ["010000000000000000", "01ffffffffffffffff"]),
    (pa.bool_(), [False, True], ["018000000000000000", "018000000000000001"]),
    (pa.timestamp("us", "UTC"), [datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)], ["018000000000000000"]),
    (pa.date32(), [datetime.date(1969, 12, 31)], ["017fffffffffffffff"]),
    (pa.decimal128(10, 2), [decimal.Decimal("-0.01")], ["017fffffffffffffffffffffffffffffff"]),
    (pa.float64(), [-1.0, -0.0, 0.0, float("nan")], ["01400fffffffffffff", "018000000000000000", "018000000000000000", "01fff8000000000000"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values", "expected"), VECTORS, ids=lambda v: str(v)[:20])
def test_keys_have_the_frozen_bytes(
    kind: pa.DataType, values: list[object], expected: list[str]
) -> None:
    """State of every job is found by these bytes: a change would orphan it."""
    made = encode(pa.array(values, kind))
    assert [key.hex() for key in made.to_pylist()] == expected


COLUMNS = {
    "text": pa.array(["b", None, "", "abc", "ß" * 40]),
    "large": pa.array(["b", None, "", "abc", "z"], pa.large_string()),
    "bytes": pa.array([b"", None, b"\0", b"\0\0", b"x"]),
    "fixed": pa.array([b"ab", None, b"\0\0", b"zz", b"qq"], pa.binary(2)),
    "i8": pa.array([-128, None, 127, 0, 1], pa.int8()),
    "u64": pa.array([0, None, 2**64 - 1, 5, 6], pa.uint64()),
    "i64": pa.array([-(2**63), None, 2**63 - 1, 0, -1]),
    "f32": pa.array([1.5, None, -2.25, 0.0, 1e30], pa.float32()),
    "bool": pa.array([True, None, False, True, False]),
    "ts": pa.array([1, None, -5, 0, 2], pa.timestamp("ns", "Europe/Berlin")),
    "t32": pa.array([1, None, 5, 0, 2], pa.time32("ms")),
    "d64": pa.array([86_400_000, None, 0, 0, -86_400_000], pa.date64()),
    "span": pa.array([1, None, -5, 0, 2], pa.duration("s")),
    "dec": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-99.99"), decimal.Decimal(0), decimal.Decimal(3)], pa.decimal128(20, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("sliced", [False, True])
def test_decoded_keys_are_the_columns_again(name: str, sliced: bool) -> None:
    column = COLUMNS[name].slice(1, 3) if sliced else COLUMNS[name]
    keys = encode(column)
    assert keys.null_count == 0
    (back,) = decode(keys, key_schema(column, [name]))
    assert back.type == column.type
    assert back.to_pylist() == column.to_pylist()
    (part,) = decode(keys.slice(1), key_schema(column, [name]))
    assert part.to_pylist() == column.to_pylist()[1:]


def test_keys_of_an_encoding_of_arrow_are_those_of_their_values() -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", None]))
    plain = pa.array(["a", "a", None])
    assert encode(runs) == encode(plain.dictionary_encode()) == encode(plain)
    assert key_schema(runs, ["k"]).types == [pa.string()]


def test_several_columns_are_one_key_each_with_its_length() -> None:
    """Without lengths, ("a", "bc") and ("ab", "c") would share their state."""
    pair = pa.array([{"x": "a", "y": "bc"}, {"x": "ab", "y": "c"}])
    assert [key.hex() for key in encode(pair).to_pylist()] == [
        "00000002" + "0161" + "00000003" + "016263",
        "00000003" + "016162" + "00000002" + "0163",
    ]
    keys = pa.StructArray.from_arrays(list(COLUMNS.values()), names=list(COLUMNS))
    made = encode(keys.slice(0, 4))
    back = decode(made, key_schema(keys, ["struct"]))
    assert [column.to_pylist() for column in back] == [
        column.to_pylist()[:4] for column in COLUMNS.values()
    ]


def test_a_struct_of_one_column_is_the_key_of_that_column() -> None:
    keys = pa.array([{"x": "a"}, {"x": None}, None])
    assert [key.hex() for key in encode(keys).to_pylist()] == ["0161", "00", "00"]
    (back,) = decode(encode(keys), key_schema(keys, []))
    assert back.to_pylist() == ["a", None, None]


@pytest.mark.parametrize("name", [n for n in COLUMNS if n not in ("f32", "text", "large")])
def test_bytes_sort_as_the_values_with_null_first(name: str) -> None:
    values = COLUMNS[name]
    by_bytes = sorted(zip(encode(values).to_pylist(), values.to_pylist(), strict=True))
    ordered = [value for _, value in by_bytes]
    assert ordered[0] is None
    assert ordered[1:] == sorted(ordered[1:])


def test_dictionaries_have_the_keys_of_their_values() -> None:
    values = pa.array(["a", None, "b", "a"])
    assert encode(values.dictionary_encode()).equals(encode(values))


def test_empty_columns_have_no_keys() -> None:
    for column in COLUMNS.values():
        empty = encode(column.slice(0, 0))
        assert len(empty) == 0
        assert decode(empty, key_schema(column, ["k"]))[0].type == column.type


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.null(), pa.decimal256(40, 0), pa.struct([])]
)
def test_other_types_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(ConfigError, match="not allowed for keys"):
        encode(pa.array([None], kind))


@pytest.mark.parametrize("damage", [b"", b"\x01\x00", b"\x00\x00"])
def test_damaged_keys_are_refused(damage: bytes) -> None:
    keys = pa.array([damage], pa.large_binary())
    with pytest.raises(DamagedCheckpointError, match="does not fit"):
        decode(keys, pa.schema([("k", pa.int64())]))
    with pytest.raises(DamagedCheckpointError, match="does not fit"):
        decode(keys, pa.schema([("k", pa.int64()), ("l", pa.int64())]))
