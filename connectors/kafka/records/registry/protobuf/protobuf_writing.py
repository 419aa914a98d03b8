"""Arrow columns as serialized Protobuf messages, field by field.

A value that the message cannot hold is an error, as is a null for a field that cannot be absent:
Protobuf would make it 0, an empty text or an empty list.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from sluice.connectors.kafka.records.registry.protobuf.protobuf_types import (
    DURATION,
    JSON_TYPES,
    TIMESTAMP,
    WRAPPERS,
    map_entry,
)
from sluice.runtime.errors import ConfigError

__all__ = ["MessageWriter"]

_SERIALIZE = Empty.SerializeToString  # a field may have the name of a method
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799  # years 1 to 9999
_LONGEST_S = 315_576_000_000
_NANOS = 10**9
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": _NANOS}
_F = FieldDescriptor
_UNSIGNED = {
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_FIXED32), pa.uint32()),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), pa.uint64()),
}
_CASTS = {
    _F.CPPTYPE_INT32: pa.int32(),
    _F.CPPTYPE_INT64: pa.int64(),
    _F.CPPTYPE_DOUBLE: pa.float64(),
    _F.CPPTYPE_FLOAT: pa.float32(),
    _F.CPPTYPE_BOOL: pa.bool_(),
}


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(is_binary or pa.types.is_fixed_size_binary(kind))


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0))


def _is_single(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) and kind.bit_width <= pa.float32().bit_width)


_FITS: dict[int, Callable[[pa.DataType], bool]] = {
    **dict.fromkeys((_F.CPPTYPE_INT32, _F.CPPTYPE_INT64), _is_whole),
    **dict.fromkeys((_F.CPPTYPE_UINT32, _F.CPPTYPE_UINT64), _is_whole),
    _F.CPPTYPE_DOUBLE: lambda kind: pa.types.is_floating(kind) or pa.types.is_integer(kind),
    _F.CPPTYPE_FLOAT: lambda kind: _is_single(kind) or pa.types.is_integer(kind),
    _F.CPPTYPE_BOOL: pa.types.is_boolean,
    _F.CPPTYPE_ENUM: lambda kind: _is_text(kind) or pa.types.is_integer(kind),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageWriter:
    """Writes records of one message type. Executor, one thread."""

    message: Descriptor

    def write(self, values: pa.Array) -> list[bytes | None]:
        """Serialized messages, None for null; the same values give the same bytes.

        Raises:
            ConfigError: a column has a type that its field does not have.
            ValueError, EncodeError: a value does not fit its field.
        """
        return [
            None if each is None else _SERIALIZE(each, deterministic=True)
            for each in _messages(self.message, values, self.message.full_name)
        ]


def _messages(kind: Descriptor, column: pa.Array, path: str) -> list[Message | None]:
    if not pa.types.is_struct(column.type):
        raise _unsuitable(path, column.type, "a struct with the fields of the message")
    fields = [_known(kind, name) for name in column.type.names]
    there = column.drop_null()  # the children of a null struct may hold anything
    children = there.flatten()
    for choice in kind.oneofs:
        names = {field.name for field in choice.fields}
        _require_one(
            choice.full_name, [c for f, c in zip(fields, children, strict=True) if f.name in names]
        )
    columns = [
        _field(field, child, f"{path}.{field.name}")
        for field, child in zip(fields, children, strict=True)
    ]
    rows: Iterable[tuple[Any, ...]] = zip(*columns, strict=True) if columns else [()] * len(there)
    made, names_ = GetMessageClass(kind), [field.name for field in fields]
    messages = iter([made(**dict(zip(names_, row, strict=True))) for row in rows])
    return [next(messages) if is_there else None for is_there in column.is_valid().to_pylist()]


def _known(kind: Descriptor, name: str) -> FieldDescriptor:
    found: FieldDescriptor | None = kind.fields_by_name.get(name)
    if found is None:
        raise ConfigError(
            "a column has a field that its Protobuf message does not have",
            {"message": kind.full_name, "field": name, "fields": ", ".join(kind.fields_by_name)},
            "Leave it out, or register a schema with it.",
        )
    return found


def _require_one(choice: str, members: Sequence[pa.Array]) -> None:
    for row in zip(*(member.is_valid().to_pylist() for member in members), strict=True):
        if sum(row) > 1:
            raise ValueError(f"several fields of the oneof {choice} have values")


def _field(field: FieldDescriptor, column: pa.Array, path: str) -> list[Any]:
    """The values of a field for each row; None: absent."""
    found: list[Any]
    if pa.types.is_null(column.type):
        found = [None] * len(column)
    elif (entry := map_entry(field)) is not None:
        found = _maps(entry, column, path)
    elif field.is_repeated:
        if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
            raise _unsuitable(path, column.type, "a list")
        found = _parts(column, _elements(field, column.flatten(), path))
    else:
        found = _values(field, column, path)
    if not field.has_presence and _has_null(found):
        raise ValueError(f"{path} is null, and its Protobuf field cannot be absent")
    return found


def _maps(entry: Sequence[FieldDescriptor], column: pa.Array, path: str) -> list[Any]:
    if not pa.types.is_map(column.type):
        raise _unsuitable(path, column.type, "a map")
    kinds = (("key", column.type.key_type), ("value", column.type.item_type))
    lists = column.cast(pa.list_(pa.struct(list(kinds))))  # its parts follow a slice
    keys, items = (
        _elements(field, part, path)
        for field, part in zip(entry, lists.flatten().flatten(), strict=True)
    )
    pairs = _parts(lists, list(zip(keys, items, strict=True)))
    found = [None if each is None else dict(each) for each in pairs]
    if any(each is not None and len(each) < len(p) for each, p in zip(found, pairs, strict=True)):
        raise ValueError(f"a map of {path} has one key twice")
    return found


def _elements(field: FieldDescriptor, column: pa.Array, path: str) -> list[Any]:
    found = _values(field, column, path)
    if _has_null(found):
        raise ValueError(f"{path} has a null in it, and Protobuf's lists and maps have none")
    return found


def _has_null(values: Iterable[Any]) -> bool:
    return any(value is None for value in values)


def _parts(lists: pa.Array, elements: Sequence[Any]) -> list[Any]:
    """The elements of each list; None where the list is null."""
    found, at = [], 0
    for length in lists.value_lengths().to_pylist():
        found.append(None if length is None else elements[at : at + length])
        at += length or 0
    return found


def _values(field: FieldDescriptor, column: pa.Array, path: str) -> list[Any]:
    kind = field.message_type
    if kind is None:
        return _scalars(field, column, path)
    if pa.types.is_null(column.type):
        return [None] * len(column)
    made = GetMessageClass(kind)
    if kind.full_name in WRAPPERS:
        inner = _scalars(kind.fields_by_name["value"], column, path)
        return [None if value is None else made(value=value) for value in inner]
    if kind.full_name == TIMESTAMP:
        if not pa.types.is_timestamp(column.type) or column.type.tz is None:
            raise _unsuitable(path, column.type, "a timestamp with a time zone")
        return _present(lambda at: made(**_moment(*at)), _ticks(column))
    if kind.full_name == DURATION:
        if not pa.types.is_duration(column.type):
            raise _unsuitable(path, column.type, "a duration")
        return _present(lambda at: made(**_duration(*at)), _ticks(column))
    if kind.full_name in JSON_TYPES:
        if not _is_text(column.type):
            raise _unsuitable(path, column.type, "text with JSON")
        return _present(lambda text: _json_message(made(), text), column.to_pylist())
    return list(_messages(kind, column, path))


def _scalars(field: FieldDescriptor, column: pa.Array, path: str) -> list[Any]:
    if pa.types.is_null(column.type):
        return [None] * len(column)
    if not _fits(field)(column.type):
        raise _unsuitable(path, column.type, f"values for {_name(field)}")
    enum = field.enum_type
    if enum is not None:
        return _present(lambda value: _number(enum, value), column.to_pylist())
    wanted = _UNSIGNED.get(field.type) or _CASTS.get(field.cpp_type)
    return list((column if wanted is None else column.cast(wanted)).to_pylist())


def _present(make: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    return [None if value is None else make(value) for value in values]


def _fits(field: FieldDescriptor) -> Callable[[pa.DataType], bool]:
    return {_F.TYPE_STRING: _is_text, _F.TYPE_BYTES: _is_bytes}.get(field.type) or _FITS[
        field.cpp_type
    ]


def _name(field: FieldDescriptor) -> str:
    name = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)  # type: ignore[arg-type]  # an int
    return name.removeprefix("TYPE_").lower()


def _number(enum: EnumDescriptor, value: str | int) -> int:
    """The number of a symbol. A number stands for itself, also as the text that a reader made."""
    symbol = enum.values_by_name.get(value) if isinstance(value, str) else None
    if symbol is not None:
        return int(symbol.number)
    number = int(value)
    if enum.is_closed and number not in enum.values_by_number:
        raise ValueError(f"the enum {enum.full_name} has no number {number}")
    return number


def _ticks(column: pa.Array) -> Iterable[tuple[int, int] | None]:
    """Seconds, rounded down, and nanoseconds."""
    per_second = _PER_SECOND[column.type.unit]
    for value in column.cast(pa.int64()).to_pylist():
        if value is None:
            yield None
        else:
            seconds, rest = divmod(value, per_second)
            yield seconds, rest * (_NANOS // per_second)


def _moment(seconds: int, nanos: int) -> dict[str, int]:
    if not _FIRST_S <= seconds <= _LAST_S:
        raise ValueError("a timestamp is outside of the years 1 to 9999")
    return {"seconds": seconds, "nanos": nanos}


def _duration(seconds: int, nanos: int) -> dict[str, int]:
    if seconds < 0 and nanos:  # both have one sign
        seconds, nanos = seconds + 1, nanos - _NANOS
    if abs(seconds) > _LONGEST_S:
        raise ValueError("a duration is longer than 10,000 years")
    return {"seconds": seconds, "nanos": nanos}


def _json_message(message: Any, text: str) -> Message:  # noqa: ANN401 - without a module
    value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_distinct)
    name = message.DESCRIPTOR.name
    wanted = {"Struct": dict, "ListValue": list}.get(name, object)
    if not isinstance(value, wanted):
        raise ValueError(f"JSON for a google.protobuf.{name} is a {type(value).__name__}")
    fills: dict[str, Callable[[Any, Any], None]]
    fills = {"Struct": _fill_object, "ListValue": _fill_list, "Value": _fill_value}
    fills[name](message, value)
    found: Message = message
    return found


def _fill_object(message: Any, value: dict[str, object]) -> None:  # noqa: ANN401 - see above
    message.SetInParent()
    for name, each in value.items():
        _fill_value(message.fields[name], each)


def _fill_list(message: Any, value: Sequence[object]) -> None:  # noqa: ANN401 - see above
    message.SetInParent()
    for each in value:
        _fill_value(message.values.add(), each)


def _fill_value(message: Any, value: object) -> None:  # noqa: ANN401 - see above
    if value is None:
        message.null_value = 0
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, str):
        message.string_value = value
    elif isinstance(value, dict):
        _fill_object(message.struct_value, value)
    elif isinstance(value, list):
        _fill_list(message.list_value, value)
    else:
        message.number_value = _double(value)


def _double(value: Any) -> float:  # noqa: ANN401 - int or float
    found = float(value)
    if not math.isfinite(found) or found != value:
        raise ValueError("a number of a JSON text is too large for a double")
    return found


def _refuse(constant: str) -> object:
    raise ValueError(f"JSON has no {constant}")


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a JSON object has one name twice")
    return found


def _unsuitable(path: str, kind: pa.DataType, wanted: str) -> ConfigError:
    return ConfigError(
        "a column has a type that its Protobuf field does not take",
        {"field": path, "type": str(kind), "wanted": wanted},
        "Cast the column before it is serialized.",
    )
