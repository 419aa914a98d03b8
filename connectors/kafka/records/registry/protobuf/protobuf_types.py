"""Protobuf messages as Arrow types. Pure.

One mapping serves Arrow and Spark: Spark has no unsigned numbers, so they become larger signed
ones, as with Spark's option ``upcast.unsigned.ints``.
"""

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from sluice.runtime.errors import ConfigError

__all__ = [
    "DURATION",
    "JSON_TYPES",
    "TIMESTAMP",
    "WRAPPERS",
    "arrow_type",
    "map_entry",
    "value_type",
]

TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
JSON_TYPES = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_F = FieldDescriptor
_SCALARS = {
    _F.TYPE_DOUBLE: pa.float64(),
    _F.TYPE_FLOAT: pa.float32(),
    _F.TYPE_BOOL: pa.bool_(),
    _F.TYPE_STRING: pa.string(),
    _F.TYPE_BYTES: pa.binary(),
    _F.TYPE_ENUM: pa.string(),
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), pa.int32()),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64), pa.int64()),
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_FIXED32), pa.int64()),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), pa.decimal128(20, 0)),
}


def arrow_type(message: Descriptor) -> pa.StructType:
    """Type of a message's values.

    Raises:
        ConfigError: it contains itself.
    """
    return _struct(message, ())


def value_type(field: FieldDescriptor) -> pa.DataType:
    """Type of one value of a field, also of a repeated one."""
    return _value(field, ())


def map_entry(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor] | None:
    """The fields of a map's keys and values; None: the field is no map."""
    found = field.message_type
    if found is None or not found.GetOptions().map_entry:
        return None
    return found.fields_by_name["key"], found.fields_by_name["value"]


def _struct(message: Descriptor, around: tuple[str, ...]) -> pa.StructType:
    if message.full_name in around:
        raise ConfigError(
            "a Protobuf message contains itself",
            {"message": message.full_name, "path": " > ".join((*around, message.full_name))},
            "Read such messages in a function of your own: Arrow has no such types.",
        )
    inside = (*around, message.full_name)
    return pa.struct([pa.field(each.name, _field(each, inside)) for each in message.fields])


def _field(field: FieldDescriptor, around: tuple[str, ...]) -> pa.DataType:
    entry = map_entry(field)
    if entry is not None:
        return pa.map_(_value(entry[0], around), _value(entry[1], around))
    found = _value(field, around)
    return pa.list_(found) if field.is_repeated else found


def _value(field: FieldDescriptor, around: tuple[str, ...]) -> pa.DataType:
    message = field.message_type
    if message is None:
        return _SCALARS[field.type]
    if message.full_name == TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    if message.full_name == DURATION:
        return pa.duration("us")
    if message.full_name in JSON_TYPES:
        return pa.string()
    if message.full_name in WRAPPERS:
        return _value(message.fields_by_name["value"], around)
    return _struct(message, around)
