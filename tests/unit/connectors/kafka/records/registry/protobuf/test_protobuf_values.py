"""Protobuf messages as Arrow values and back: each type, with odd but legal input."""

import datetime
import math
import zoneinfo
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass

from sluice.connectors.kafka.records.registry.protobuf.protobuf_reading import MessageReader
from sluice.connectors.kafka.records.registry.protobuf.protobuf_resolution import (
    fields_never_absent,
)
from sluice.connectors.kafka.records.registry.protobuf.protobuf_schema import ProtobufSchema
from sluice.connectors.kafka.records.registry.protobuf.protobuf_types import arrow_type
from sluice.connectors.kafka.records.registry.protobuf.protobuf_writing import MessageWriter
from sluice.connectors.kafka.records.registry.registered_schema import RegisteredSchema
from sluice.runtime.errors import ConfigError

_UTC = zoneinfo.ZoneInfo("UTC")  # as Arrow has it

EVERY_TYPE = """
syntax = "proto3";
package shop;
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message All {
  enum Color { RED = 0; GREEN = 1; BLUE = -7; }
  message Part { int32 number = 1; optional string note = 2; }
  message Nothing {}
  double a_double = 1;
  float a_float = 2;
  int32 an_int32 = 3;
  int64 an_int64 = 4;
  uint32 a_uint32 = 5;
  uint64 a_uint64 = 6;
  sint32 a_sint32 = 7;
  sint64 a_sint64 = 8;
  fixed32 a_fixed32 = 9;
  fixed64 a_fixed64 = 10;
  sfixed32 a_sfixed32 = 11;
  sfixed64 a_sfixed64 = 12;
  bool a_bool = 13;
  string a_string = 14;
  bytes some_bytes = 15;
  Color color = 16;
  Part part = 17;
  Nothing nothing = 18;
  repeated int32 numbers = 19;
  repeated Part parts = 20;
  map<string, int64> counts = 21;
  map<int32, Part> by_number = 22;
  map<bool, Color> colors = 23;
  optional int32 perhaps = 24;
  oneof choice { string text = 25; Part other = 26; int64 number = 27; }
  google.protobuf.Timestamp at = 28;
  google.protobuf.Duration took = 29;
  google.protobuf.Struct object = 30;
  google.protobuf.Value json = 31;
  google.protobuf.ListValue list = 32;
  google.protobuf.Int64Value wrapped = 33;
  google.protobuf.UInt64Value wrapped_uint64 = 34;
  google.protobuf.StringValue wrapped_text = 35;
  google.protobuf.BytesValue wrapped_bytes = 36;
  repeated google.protobuf.Timestamp times = 37;
  map<string, google.protobuf.DoubleValue> doubles = 38;
}
"""


def _message(text: str, name: str | None = None) -> Any:
    return ProtobufSchema.of(RegisteredSchema(text=text, schema_type="PROTOBUF")).message(name)


def _proto3(fields: str) -> Any:
    """The first message, M, with these fields."""
    return _message(f'syntax = "proto3"; message M {{ {fields} }}', "M")


def _proto2(fields: str) -> Any:
    return _message(f'syntax = "proto2"; message M {{ {fields} }}', "M")


def _read(message: Any, *records: bytes, **settings: Any) -> list[Any]:
    found = MessageReader(message=message, **settings).read(records)
    assert found.type == arrow_type(message)
    found.validate(full=True)
    values: list[Any] = found.to_pylist()
    return values


def _made(message: Any, **fields: Any) -> bytes:
    data: bytes = GetMessageClass(message)(**fields).SerializeToString()
    return data


def _round_trip(message: Any, value: Any) -> Any:
    """Write a value that fits the message's Arrow type, and read it."""
    column = pa.array([value], arrow_type(message))
    (record,) = MessageWriter(message=message).write(column)
    assert record is not None
    (found,) = _read(message, record)
    return found


_ABSENT = {
    "a_double": 0.0, "a_float": 0.0, "an_int32": 0, "an_int64": 0, "a_uint32": 0,
    "a_uint64": Decimal(0), "a_sint32": 0, "a_sint64": 0, "a_fixed32": 0, "a_fixed64": Decimal(0),
    "a_sfixed32": 0, "a_sfixed64": 0, "a_bool": False, "a_string": "", "some_bytes": b"",
    "color": "RED", "numbers": [], "parts": [], "counts": [], "by_number": [], "colors": [],
    "times": [], "doubles": [],
}  # fmt: skip


def _all(**fields: Any) -> dict[str, Any]:
    message = _message(EVERY_TYPE)
    return dict.fromkeys((each.name for each in message.fields), None) | _ABSENT | fields


def test_an_empty_record_has_the_values_of_absent_fields() -> None:
    """Fields that cannot be absent are 0 or empty, as in all languages; the rest is null."""
    assert _read(_message(EVERY_TYPE), b"") == [_all()]


@pytest.mark.parametrize(
    "fields",
    [
        {"a_double": -0.0},
        {"a_double": 5e-324, "a_float": math.inf},
        {"a_float": 16777216.0, "an_int32": -(2**31), "an_int64": -(2**63)},
        {"an_int32": 2**31 - 1, "an_int64": 2**63 - 1, "a_uint32": 2**32 - 1},
        {"a_uint64": Decimal(2**64 - 1), "a_fixed64": Decimal(2**63), "a_fixed32": 2**31},
        {"a_sint32": -(2**31), "a_sint64": -(2**63), "a_sfixed32": -1, "a_sfixed64": -1},
        {"a_bool": True, "a_string": "\0é\U0001f600", "some_bytes": b"\0\xff"},
        {"color": "BLUE"},
        {"color": "99"},
        {"color": "-3"},
        {"part": {"number": 0, "note": None}},
        {"part": {"number": -1, "note": ""}, "nothing": {}},
        {"numbers": [0, -1, 2**31 - 1], "parts": [{"number": 1, "note": "a"}] * 2},
        {"counts": [("", -1), ("b", 2)], "by_number": [(-1, {"number": 0, "note": None})]},
        {"colors": [(False, "GREEN"), (True, "99")]},
        {"perhaps": 0},
        {"text": ""},
        {"other": {"number": 0, "note": None}},
        {"number": 0},
        {"at": datetime.datetime(1, 1, 1, tzinfo=_UTC)},
        {"at": datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=_UTC)},
        {"at": datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=_UTC)},
        {"took": datetime.timedelta(microseconds=-1)},
        {"took": datetime.timedelta(seconds=-315_576_000_000)},
        {"took": datetime.timedelta(0)},
        {"object": '{"a":[1.5,null,true,{"b":"x"}],"z":{}}', "json": "null", "list": "[]"},
        {"json": "-0.0"},
        {"json": '"\\u0000é"', "list": "[9007199254740992.0]"},
        {"wrapped": 0, "wrapped_uint64": Decimal(2**64 - 1), "wrapped_text": ""},
        {"wrapped_bytes": b"", "doubles": [("a", 0.0), ("b", -1.5)]},
        {"times": [datetime.datetime(1970, 1, 1, tzinfo=_UTC)]},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_a_value_is_read_as_it_was_written(fields: dict[str, Any]) -> None:
    """And each absent field stays absent."""
    found = _round_trip(_message(EVERY_TYPE), _all(**fields))
    assert repr(found) == repr(_all(**fields))  # -0.0 equals 0.0, and False equals 0


def test_nan_stays_nan() -> None:
    assert math.isnan(_round_trip(_message(EVERY_TYPE), _all(a_float=math.nan))["a_float"])


def test_null_structs_are_null_records_and_rows_keep_their_order() -> None:
    """Also in a slice of a column: its parts have values outside of it."""
    message = _proto3("repeated int32 n = 1; map<string, int32> m = 2;")
    rows = [{"n": [i, i], "m": [(str(i), i)]} if i % 2 else None for i in range(6)]
    column = pa.array(rows, arrow_type(message))[1:5]
    written = MessageWriter(message=message).write(column)
    assert [each is None for each in written] == [False, True, False, True]
    assert _read(message, *(each for each in written if each is not None)) == [rows[1], rows[3]]


def test_the_same_rows_give_the_same_bytes() -> None:
    """The order of a map's entries does not count."""
    message = _proto3("map<string, int32> m = 1;")
    entries = [(str(i), i) for i in range(20)]
    one, other = MessageWriter(message=message).write(
        pa.array([{"m": entries}, {"m": entries[::-1]}], arrow_type(message))
    )
    assert one == other
    assert _read(message, one or b"") == [{"m": sorted(entries)}]


class TestWhatAReaderRefuses:
    """Bad records: their value would change, or vanish."""

    @pytest.mark.parametrize(
        ("record", "why"),
        [
            (b"\x08", "parsing"),
            (b"\x0a\x05ab", "parsing"),
            (b"\x72\x01\xff", "parsing"),  # a_string is no UTF-8
            (b"\x19\0\0\0\0\0\0\0\0", "another type"),  # an_int32 as eight bytes
        ],
    )
    def test_damaged_records(self, record: bytes, why: str) -> None:
        with pytest.raises(Exception, match=f"(?i){why}"):
            _read(_message(EVERY_TYPE), record)

    def test_a_time_with_nanoseconds(self) -> None:
        """Unless the user says that they may go."""
        message = _message(EVERY_TYPE)
        record = _made(message, at={"seconds": -1, "nanos": 999_999_999})
        with pytest.raises(ValueError, match="nanoseconds='truncate'"):
            _read(message, record)
        (found,) = _read(message, record, nanoseconds="truncate")
        assert found["at"] == datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, datetime.UTC)

    def test_a_negative_duration_is_truncated_towards_zero(self) -> None:
        message = _message(EVERY_TYPE)
        (found,) = _read(message, _made(message, took={"nanos": -1999}), nanoseconds="truncate")
        assert found["took"] == datetime.timedelta(microseconds=-1)

    @pytest.mark.parametrize(
        "fields",
        [
            {"at": {"seconds": 253_402_300_800}},
            {"at": {"nanos": -1}},
            {"at": {"nanos": 1_000_000_000}},
            {"took": {"seconds": 1, "nanos": -1000}},
            {"took": {"seconds": 315_576_000_001}},
        ],
    )
    def test_times_outside_of_their_range(self, fields: Any) -> None:
        message = _message(EVERY_TYPE)
        with pytest.raises(ValueError, match="out of its range"):
            _read(message, _made(message, **fields))

    @pytest.mark.parametrize(
        ("value", "why"), [({}, "no value"), ({"number_value": math.nan}, "not JSON compliant")]
    )
    def test_values_that_json_does_not_have(self, value: Any, why: str) -> None:
        message = _message(EVERY_TYPE)
        with pytest.raises(ValueError, match=why):
            _read(message, _made(message, json=value))

    def test_a_number_that_a_closed_enum_does_not_have(self) -> None:
        """Protobuf's parser puts it aside, as if the field were absent."""
        message = _proto2("enum E { A = 0; } optional E e = 1; map<int32, E> m = 2;")
        for record in (b"\x08\x07", b"\x12\x04\x08\x01\x10\x07"):
            with pytest.raises(ValueError, match="has a value of another type"):
                _read(message, record)

    def test_a_required_field_that_is_absent(self) -> None:
        message = _proto2("message N { required int32 r = 1; } optional N n = 1;")
        with pytest.raises(ValueError, match="lacks a required field"):
            _read(message, b"\x0a\x00")

    def test_text_that_is_no_utf8_in_proto2(self) -> None:
        with pytest.raises(ValueError, match="not a utf8 string"):
            _read(_proto2("optional string s = 1;"), b"\x0a\x01\xff")

    def test_unknown_fields_if_told_so(self) -> None:
        """By default they are ignored, as by each of Protobuf's readers."""
        message = _proto3("message N { int32 i = 1; } int32 i = 1; N n = 2;")
        for record in (b"\x08\x01\x50\x01", b"\x08\x01\x12\x02\x50\x01"):
            assert _read(message, record)[0]["i"] == 1
            with pytest.raises(ValueError, match="no field with number 10"):
                _read(message, record, unknown_fields="error")

    def test_extensions_if_told_so(self) -> None:
        text = """syntax = "proto2"; message M { extensions 10 to 20; optional int32 i = 1; }
            extend M { optional int32 x = 10; }"""
        message = _message(text)
        assert _read(message, b"\x50\x01") == [{"i": None}]
        with pytest.raises(ValueError, match="has the extension x"):
            _read(message, b"\x50\x01", unknown_fields="error")


class TestWhatAWriterRefuses:
    """Values that a message does not hold."""

    @pytest.mark.parametrize(
        ("fields", "value", "kind", "why"),
        [
            ("int32 f = 1;", 2**31, pa.int64(), "not in range"),
            ("uint32 f = 1;", -1, pa.int64(), "not in range"),
            ("uint64 f = 1;", Decimal(2**64), pa.decimal128(21, 0), "not in range|out of bounds"),
            ("int64 f = 1;", Decimal(2**63), pa.decimal128(20, 0), "not in range|out of bounds"),
            ("double f = 1;", 2**53 + 1, pa.int64(), "not in range"),
            ("float f = 1;", 2**24 + 1, pa.int64(), "not in range"),
            ("int32 f = 1;", None, pa.int32(), "cannot be absent"),
            ("string f = 1;", None, pa.null(), "cannot be absent"),
            ("repeated int32 f = 1;", None, pa.list_(pa.int32()), "cannot be absent"),
            ("repeated int32 f = 1;", [None], pa.list_(pa.int32()), "has a null in it"),
            ("map<string, int32> f = 1;", None, pa.map_(pa.string(), pa.int32()), "cannot be absent"),
            ("map<string, int32> f = 1;", [("a", None)], pa.map_(pa.string(), pa.int32()), "has a null in it"),
            ("map<string, int32> f = 1;", [("a", 1), ("a", 2)], pa.map_(pa.string(), pa.int32()), "one key twice"),
            ("enum E { A = 0; } E f = 1;", "B", pa.string(), "invalid literal"),
        ],
    )  # fmt: skip
    def test_values(self, fields: str, value: Any, kind: pa.DataType, why: str) -> None:
        column = pa.array([{"f": value}], pa.struct([("f", kind)]))
        with pytest.raises(ValueError, match=why):
            MessageWriter(message=_proto3(fields)).write(column)

    @pytest.mark.parametrize(
        ("fields", "kind"),
        [
            ("float f = 1;", pa.float64()),
            ("int32 f = 1;", pa.float64()),
            ("int32 f = 1;", pa.string()),
            ("string f = 1;", pa.int32()),
            ("string f = 1;", pa.binary()),
            ("bytes f = 1;", pa.string()),
            ("bool f = 1;", pa.int32()),
            ("int32 f = 1;", pa.bool_()),
            ("repeated int32 f = 1;", pa.int32()),
            ("map<string, int32> f = 1;", pa.list_(pa.int32())),
            ("message N {} N f = 1;", pa.int32()),
            ("int32 g = 1;", pa.int32()),
        ],
    )
    def test_types(self, fields: str, kind: pa.DataType) -> None:
        """At once, also where all values are null: the job is wrong, no record is."""
        column = pa.array([{"f": None}], pa.struct([("f", kind)]))
        with pytest.raises(ConfigError, match=r"a column has a (type|field) that its Protobuf"):
            MessageWriter(message=_proto3(fields)).write(column)

    def test_a_time_without_a_zone(self) -> None:
        message = _message(EVERY_TYPE)
        column = pa.array([{"at": None}], pa.struct([("at", pa.timestamp("us"))]))
        with pytest.raises(ConfigError, match="a timestamp with a time zone"):
            MessageWriter(message=message).write(column)

    def test_two_members_of_a_oneof(self) -> None:
        """Protobuf would keep the last one."""
        message = _proto3("oneof o { int32 a = 1; string b = 2; }")
        column = pa.array([{"a": 0, "b": ""}], pa.struct([("a", pa.int32()), ("b", pa.string())]))
        with pytest.raises(ValueError, match=r"several fields of the oneof M\.o"):
            MessageWriter(message=message).write(column)

    def test_a_number_that_a_closed_enum_does_not_have(self) -> None:
        message = _proto2("enum E { A = 0; } optional E e = 1;")
        column = pa.array([{"e": "7"}], pa.struct([("e", pa.string())]))
        with pytest.raises(ValueError, match="has no number 7"):
            MessageWriter(message=message).write(column)

    @pytest.mark.parametrize(
        "text", ["9007199254740993", "1e999", "NaN", '{"a":1,"a":2}', "[1", '"\\ud800"']
    )
    def test_json_that_a_value_does_not_hold(self, text: str) -> None:
        column = pa.array([{"json": text}], pa.struct([("json", pa.string())]))
        with pytest.raises(ValueError, match=r"."):
            MessageWriter(message=_message(EVERY_TYPE)).write(column)

    def test_a_required_field_that_is_absent(self) -> None:
        column = pa.array([{"r": None}], pa.struct([("r", pa.int32())]))
        with pytest.raises(Exception, match="required"):
            MessageWriter(message=_proto2("required int32 r = 1;")).write(column)


class TestNames:
    """Fields with the names of methods, of Python's words and of others' classes."""

    def test_odd_names(self) -> None:
        names = ["HasField", "ListFields", "SerializeToString", "IsInitialized", "class", "self"]
        names += ["DESCRIPTOR", "FromString", "Clear"]
        fields = " ".join(f"optional int32 {name} = {i + 1};" for i, name in enumerate(names))
        value = dict(zip(names, [0, None, 2, 3, 4, 5, 6, 7, None], strict=True))
        assert _round_trip(_proto2(fields), value) == value
        assert _round_trip(_proto3(fields), value) == value

    def test_a_group_is_a_struct(self) -> None:
        message = _proto2("optional group Item = 1 { optional int32 x = 2; }")
        assert _round_trip(message, {"item": {"x": 1}}) == {"item": {"x": 1}}

    def test_the_first_of_several_symbols_with_one_number(self) -> None:
        text = "enum E { option allow_alias = true; A = 0; B = 0; } E e = 1;"
        assert _round_trip(_proto3(text), {"e": "B"}) == {"e": "A"}

    def test_a_message_that_contains_itself_has_no_type(self) -> None:
        with pytest.raises(ConfigError, match=r"contains itself .*M > N > M"):
            arrow_type(_message('syntax = "proto3"; message M { N n = 1; } message N { M m = 1; }'))


class TestAnotherSchemaOfTheReader:
    """The writer's message and the reader's differ."""

    @pytest.mark.parametrize(
        ("written", "read", "value", "found"),
        [
            ("int32 f = 1;", "int64 g = 1;", {"f": -1}, {"g": -1}),
            ("uint32 f = 1;", "int64 f = 1;", {"f": 2**32 - 1}, {"f": 2**32 - 1}),
            ("sint32 f = 1;", "sint64 f = 1;", {"f": -5}, {"f": -5}),
            ("bool f = 1;", "int32 f = 1;", {"f": True}, {"f": 1}),
            ("string f = 1;", "bytes f = 1;", {"f": "é"}, {"f": "é".encode()}),
            ("int32 f = 1;", "repeated int32 f = 1;", {"f": 3}, {"f": [3]}),
            ("int32 f = 1; int32 g = 2;", "int32 f = 1;", {"g": 3}, {"f": 0}),
            ("int32 f = 1;", "int32 f = 1; optional string n = 2;", {"f": 3}, {"f": 3, "n": None}),
            ("int32 f = 1;", "optional int32 f = 1;", {"f": 0}, {"f": 0}),
            ("optional int32 f = 1;", "optional int32 f = 1;", {}, {"f": None}),
            ("optional int32 f = 1;", "int32 f = 1;", {}, {"f": 0}),
        ],
    )  # fmt: skip
    def test_readable(self, written: str, read: str, value: Any, found: Any) -> None:
        """A field that cannot be absent is not: its 0 is no null, also if the reader's may be."""
        writer, reader = _proto3(written), _proto3(read)
        never_absent = fields_never_absent(writer, reader)
        assert _read(reader, _made(writer, **value), never_absent=never_absent) == [found]

    @pytest.mark.parametrize(
        ("written", "read"),
        [
            ("int64 f = 1;", "int32 f = 1;"),
            ("int32 f = 1;", "uint32 f = 1;"),
            ("int32 f = 1;", "sint32 f = 1;"),
            ("fixed64 f = 1;", "double f = 1;"),
            ("fixed32 f = 1;", "sfixed32 f = 1;"),
            ("uint64 f = 1;", "int64 f = 1;"),
            ("repeated int32 f = 1;", "int32 f = 1;"),
            ("int64 f = 1;", "bool f = 1;"),
            ("map<string, int32> f = 1;", "repeated bytes f = 1;"),
            ("message N { int64 i = 1; } N f = 1;", "message N { int32 i = 1; } N f = 1;"),
            ("message N { int64 i = 1; } N f = 1;", "bytes f = 1;"),
        ],
    )
    def test_not_readable(self, written: str, read: str) -> None:
        with pytest.raises(ValueError, match="another type in the reader's schema"):
            fields_never_absent(_proto3(written), _proto3(read))
