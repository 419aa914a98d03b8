"""Protobuf messages as Arrow columns, field by field.

A value that Arrow's type cannot hold is an error. Maps are sorted by their keys, because a Protobuf
map has no order and a record must give the same row each time.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from sluice.connectors.kafka.records.registry.protobuf.protobuf_types import (
    DURATION,
    JSON_TYPES,
    TIMESTAMP,
    WRAPPERS,
    arrow_type,
    map_entry,
    value_type,
)

__all__ = ["MessageReader"]

# A field may have the name of a method: the methods are taken from a message without fields.
_HAS_FIELD = Empty.HasField
_LIST_FIELDS = Empty.ListFields
_IS_INITIALIZED = Empty.IsInitialized

_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799  # years 1 to 9999
_LONGEST_S = 315_576_000_000
_MICROS, _NANOS = 10**6, 10**9
_AT_ONCE = 1_000  # messages: more of them leave the processor's caches


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReader:
    """Reads records of one message type. Executor, one thread.

    Attributes:
        message: of the reader.
        never_absent: full names of fields that may be absent, and that the writer always has.
        unknown_fields: ``ignore`` or ``error``, for fields that the message does not have.
        nanoseconds: ``error`` or ``truncate``, for times that are no whole microseconds.
    """

    message: Descriptor
    never_absent: frozenset[str] = frozenset()
    unknown_fields: str = "ignore"
    nanoseconds: str = "error"

    @property
    def type(self) -> pa.StructType:
        """Type of the values."""
        return arrow_type(self.message)

    def read(self, records: Sequence[bytes]) -> pa.StructArray:
        """The values of serialized messages.

        Raises:
            ValueError, DecodeError: a record is no such message, or a value has no place in Arrow.
        """
        starts = range(0, len(records), _AT_ONCE)
        parts = [
            self._struct(self.message, self.parse(records[at : at + _AT_ONCE])) for at in starts
        ]
        return pa.concat_arrays(parts) if parts else pa.array([], self.type)

    def parse(self, records: Sequence[bytes]) -> list[Message]:
        """Serialized messages.

        Raises:
            ValueError, DecodeError: a record is no such message.
        """
        made = GetMessageClass(self.message)
        messages = [made.FromString(record) for record in records]
        for each in messages:
            if not _IS_INITIALIZED(each):
                raise ValueError(f"a {self.message.full_name} lacks a required field")
            self._require_known(self.message, each)
        return messages

    def _struct(self, kind: Descriptor, messages: Sequence[Message | None]) -> pa.StructArray:
        there = [each for each in messages if each is not None]
        wanted = arrow_type(kind)
        if not len(wanted):
            return pa.array([None if each is None else {} for each in messages], wanted)
        columns = [self._field(field, there) for field in kind.fields]
        made = pa.StructArray.from_arrays(columns, fields=list(wanted))
        if len(there) == len(messages):
            return made
        places = iter(range(len(there)))
        return made.take(
            pa.array([None if each is None else next(places) for each in messages], pa.int32())
        )

    def _field(self, field: FieldDescriptor, messages: Sequence[Message]) -> pa.Array:
        name = field.name
        entry = map_entry(field)
        if entry is not None:
            maps = [sorted(getattr(each, name).items(), key=_key) for each in messages]
            keys = self._values(entry[0], [key for each in maps for key, _ in each])
            items = self._values(entry[1], [item for each in maps for _, item in each])
            return pa.MapArray.from_arrays(_offsets(maps), keys, items)
        if field.is_repeated:
            lists = [getattr(each, name) for each in messages]
            values = self._values(field, [value for each in lists for value in each])
            return pa.ListArray.from_arrays(_offsets(lists), values)
        if field.has_presence and field.full_name not in self.never_absent:
            found = [getattr(m, name) if _HAS_FIELD(m, name) else None for m in messages]
        else:
            found = [getattr(each, name) for each in messages]
        return self._values(field, found)

    def _values(self, field: FieldDescriptor, values: Sequence[Any]) -> pa.Array:
        message, wanted = field.message_type, value_type(field)
        if message is not None:
            for each in values:
                if each is not None:
                    self._require_known(message, each)
        if field.enum_type is not None:
            names = _symbols(field.enum_type)
            # The number of an unknown symbol, as in Protobuf's JSON: no symbol begins with a digit.
            values = [None if v is None else names.get(v) or str(v) for v in values]
        elif message is None:
            pass
        elif message.full_name in WRAPPERS:
            inner = message.fields_by_name["value"]
            return self._values(inner, [None if v is None else v.value for v in values])
        elif message.full_name in (TIMESTAMP, DURATION):
            micros = self._timestamp if message.full_name == TIMESTAMP else self._duration
            return pa.array(_present(micros, values), pa.int64()).cast(wanted)
        elif message.full_name in JSON_TYPES:
            values = _present(_json_text, values)
        else:
            return self._struct(message, values)
        if pa.types.is_decimal(wanted):
            return pa.array(values, pa.uint64()).cast(wanted)
        return pa.array(values, wanted)

    def _require_known(self, kind: Descriptor, message: Message) -> None:
        """Refuse values that the parser put aside: of a known field, or with ``error`` all."""
        strict = self.unknown_fields == "error"
        for each in UnknownFieldSet(message):  # type: ignore[attr-defined]  # the stub lacks it
            field = kind.fields_by_number.get(each.field_number)
            if field is not None:
                raise ValueError(f"the field {field.full_name} has a value of another type")
            if strict:
                raise ValueError(f"{kind.full_name} has no field with number {each.field_number}")
        if strict and kind.is_extendable:
            for found, _ in _LIST_FIELDS(message):
                if found.is_extension:
                    raise ValueError(f"{kind.full_name} has the extension {found.full_name}")

    def _timestamp(self, value: Any) -> int:  # noqa: ANN401 - a message without a module
        if not (_FIRST_S <= value.seconds <= _LAST_S and 0 <= value.nanos < _NANOS):
            raise ValueError("a google.protobuf.Timestamp is out of its range")
        return int(value.seconds) * _MICROS + self._micros(value.nanos)

    def _duration(self, value: Any) -> int:  # noqa: ANN401 - a message without a module
        seconds, nanos = int(value.seconds), value.nanos
        if abs(seconds) > _LONGEST_S or abs(nanos) >= _NANOS or seconds * nanos < 0:
            raise ValueError("a google.protobuf.Duration is out of its range")
        return seconds * _MICROS + self._micros(nanos)

    def _micros(self, nanos: int) -> int:
        if nanos % 1000 and self.nanoseconds == "error":
            raise ValueError("a time has nanoseconds: set nanoseconds='truncate' to drop them")
        return int(math.copysign(abs(nanos) // 1000, nanos))


def _present(make: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    return [None if value is None else make(value) for value in values]


def _offsets(lists: Sequence[Any]) -> pa.Array:
    ends, at = [0], 0
    for each in lists:
        at += len(each)
        ends.append(at)
    return pa.array(ends, pa.int32())


def _key(entry: tuple[Any, Any]) -> Any:  # noqa: ANN401 - of a map
    return entry[0]


def _symbols(enum: EnumDescriptor) -> dict[int, str]:
    """By number; the first one of several symbols with one number."""
    return {value.number: value.name for value in reversed(enum.values)}


def _json_text(message: Message) -> str:
    """The JSON of a message for JSON values; its objects are sorted, because they have no order."""
    found = _JSON[message.DESCRIPTOR.name](message)
    return json.dumps(
        found, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def _json_value(value: Any) -> object:  # noqa: ANN401 - a message without a module
    kind = value.WhichOneof("kind")
    if kind is None:
        raise ValueError("a google.protobuf.Value has no value")
    if kind == "null_value":
        return None
    found = getattr(value, kind)
    return _JSON[found.DESCRIPTOR.name](found) if isinstance(found, Message) else found


def _json_object(value: Any) -> dict[str, object]:  # noqa: ANN401 - a message without a module
    return {name: _json_value(each) for name, each in value.fields.items()}


def _json_list(value: Any) -> list[object]:  # noqa: ANN401 - a message without a module
    return [_json_value(each) for each in value.values]


_JSON: dict[str, Callable[[Any], object]] = {
    "Struct": _json_object,
    "Value": _json_value,
    "ListValue": _json_list,
}
