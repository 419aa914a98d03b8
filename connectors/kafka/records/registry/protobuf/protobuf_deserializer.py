"""Protobuf records whose schemas are in a registry."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from google.protobuf.descriptor import Descriptor

from sluice.connectors.kafka.records.registry.protobuf.message_indexes import read_indexes
from sluice.connectors.kafka.records.registry.protobuf.protobuf_reading import MessageReader
from sluice.connectors.kafka.records.registry.protobuf.protobuf_resolution import (
    fields_never_absent,
)
from sluice.connectors.kafka.records.registry.protobuf.protobuf_schema import ProtobufSchema
from sluice.connectors.kafka.records.registry.protobuf.protobuf_types import arrow_type
from sluice.connectors.kafka.records.registry.registered_schema import RegisteredSchema
from sluice.connectors.kafka.records.registry.schema_registry import SchemaRegistry
from sluice.connectors.kafka.records.serde.deserializing import HeaderDeserializer
from sluice.connectors.kafka.records.serde.schema_ids import (
    FramedRecords,
    SchemaId,
    framed_records,
    split_header_ids,
)
from sluice.runtime.errors import ConfigError

__all__ = ["ProtobufRegistryDeserializer"]

_CHOICES = {"unknown_fields": ("ignore", "error"), "nanoseconds": ("error", "truncate")}


@dataclass(frozen=True, kw_only=True)
class ProtobufRegistryDeserializer(HeaderDeserializer):
    """Reads records of any number of Protobuf schemas as values of one message. Picklable.

    Each record names its writer's schema and message: in the header ``__value_schema_id`` (or
    ``__key_schema_id``), else before the value. The reader's message has the same full name; its
    fields are found by number. A field that may be absent, and is, becomes null. A record without a
    value is null.

    A record is bad if the registry does not have its id, or if the reader's message would change a
    value. A registry that does not answer fails the task instead.

    Attributes:
        registry: has the writers' schemas.
        reader_schema: of the column: its ``.proto`` text, or ``registry.latest(subject)``.
        message: full name of the message in it; None: the first one.
        unknown_fields: ``ignore`` fields that the message does not have, or make them an ``error``.
        nanoseconds: a time that is no whole microsecond is an ``error``, or ``truncate`` it.
    Raises:
        ConfigError: the reader's schema is invalid or has no such message, or the message contains
            itself.
    """

    registry: SchemaRegistry
    reader_schema: str | RegisteredSchema
    message: str | None = None
    unknown_fields: str = "ignore"
    nanoseconds: str = "error"
    _type: pa.DataType = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ConfigError(
                    "a setting of a deserializer has a value that does not exist",
                    {name: getattr(self, name), "known": ", ".join(known)},
                    "Use one of the known values.",
                )
        object.__setattr__(self, "_type", arrow_type(self._reader()))

    @property
    def type(self) -> pa.DataType:
        """Of the values."""
        return self._type

    @property
    def needs_headers(self) -> bool:
        return True

    def deserialize(self, column: pa.Array, schema_ids: pa.Array | None = None) -> pa.Array:
        heads, tails = split_header_ids(schema_ids)
        records = framed_records(column, heads)
        schemas = self.registry.client().schemas(records.ids)
        reader = self._reader()
        places: list[int] = []
        parts: list[pa.Array] = []
        for (schema_id, indexes), group in _by_message(records, tails).items():
            never_absent = _never_absent(schemas[schema_id], indexes, reader)
            made = MessageReader(
                message=reader,
                never_absent=never_absent,
                unknown_fields=self.unknown_fields,
                nanoseconds=self.nanoseconds,
            )
            places += group.places
            parts.append(made.read(group.payloads))
        order: list[int | None] = [None] * len(column)
        for at, place in enumerate(places):
            order[records.rows[place]] = at
        return pa.concat_arrays([*parts, pa.array([], self.type)]).take(pa.array(order, pa.int64()))

    def _reader(self) -> Descriptor:
        given = self.reader_schema
        if isinstance(given, str):
            given = RegisteredSchema(text=given, schema_type="PROTOBUF")
        return ProtobufSchema.of(given).message(self.message)


@dataclass(slots=True)
class _Group:
    """Records of one message of one schema."""

    places: list[int]
    payloads: list[bytes]


def _by_message(
    records: FramedRecords, tails: Sequence[bytes | None] | None
) -> dict[tuple[SchemaId, tuple[int, ...]], _Group]:
    """The records by their schema and by the indexes of their message in it.

    Args:
        tails: what follows the id in each row's header.
    """
    found: dict[tuple[SchemaId, tuple[int, ...]], _Group] = {}
    data = memoryview(records.data)
    starts, ends, rows = (each.tolist() for each in (records.starts, records.ends, records.rows))
    for schema_id, places in records.groups.items():
        if schema_id is None:
            raise AssertionError("framed records have ids")
        for place in places.tolist():
            payload = data[starts[place] : ends[place]].tobytes()
            tail = None if tails is None else tails[rows[place]]
            if tail is None:
                indexes, end = read_indexes(payload)
                payload = payload[end:]
            else:
                indexes, end = read_indexes(tail)
                if end < len(tail):
                    raise ValueError("the header of a schema id has bytes after it")
            group = found.setdefault((schema_id, indexes), _Group([], []))
            group.places.append(place)
            group.payloads.append(payload)
    return found


def _never_absent(
    written: RegisteredSchema, indexes: tuple[int, ...], reader: Descriptor
) -> frozenset[str]:
    schema = ProtobufSchema.of(written)
    written.require_no_rules("READ")
    writer = schema.at(indexes)
    if writer.full_name != reader.full_name:
        raise ValueError(f"a record is a {writer.full_name}, not a {reader.full_name}")
    return fields_never_absent(writer, reader)
