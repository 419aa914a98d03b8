"""Avro records whose schemas are in a registry."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from sluice.connectors.kafka.records.registry.registered_schema import (
    RegisteredSchema,
    UnknownSchemaError,
)
from sluice.connectors.kafka.records.registry.schema_registry import SchemaRegistry
from sluice.connectors.kafka.records.serde.avro_columns import Node, read_records
from sluice.connectors.kafka.records.serde.avro_records import given_schema
from sluice.connectors.kafka.records.serde.avro_resolution import reading, require_defaults
from sluice.connectors.kafka.records.serde.avro_types import AvroSchema, arrow_type
from sluice.connectors.kafka.records.serde.deserializing import HeaderDeserializer
from sluice.connectors.kafka.records.serde.schema_ids import framed_records

__all__ = ["AvroRegistryDeserializer"]


@dataclass(frozen=True, kw_only=True)
class AvroRegistryDeserializer(HeaderDeserializer):
    """Reads records of any number of Avro schemas as values of one schema. Picklable.

    Each record names its writer's schema by an id: in the header ``__value_schema_id`` (or
    ``__key_schema_id``), else before the value. The values become those of ``reader_schema`` by
    Avro's schema resolution: aliases, defaults, promotions. A record without a value is null.

    A record is bad if the registry does not have its id, or if the reader's schema does not take
    it. A registry that does not answer fails the task instead.

    Attributes:
        registry: has the writers' schemas.
        reader_schema: of the column: JSON text, its value, or ``registry.latest(subject)``.
    Raises:
        ConfigError: the reader's schema is invalid, or has types without a column.
    """

    registry: SchemaRegistry
    reader_schema: str | Mapping[str, Any] | RegisteredSchema
    _reader: AvroSchema = field(init=False, repr=False, compare=False)
    _type: pa.DataType = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = self.reader_schema
        if isinstance(given, RegisteredSchema):
            reader = given_schema(given.text, [text for _, text in given.named])
        else:
            reader = given_schema(given)
        object.__setattr__(self, "_reader", reader)
        object.__setattr__(self, "_type", arrow_type(reader))
        require_defaults(reader)

    @property
    def type(self) -> pa.DataType:
        """Of the values."""
        return self._type

    @property
    def needs_headers(self) -> bool:
        return True

    def deserialize(self, column: pa.Array, schema_ids: pa.Array | None = None) -> pa.Array:
        records = framed_records(column, schema_ids)
        schemas = self.registry.client().schemas(records.ids)
        nodes = {each: _node(schema, self._reader) for each, schema in schemas.items()}
        return read_records(records, nodes, self._type)


@lru_cache(maxsize=1_000)
def _node(written: RegisteredSchema, reader: AvroSchema) -> Node:
    if written.schema_type != "AVRO":
        raise UnknownSchemaError(f"the schema with id {written.name} is of {written.schema_type}")
    written.require_no_rules("READ")
    writer = AvroSchema(written.text, [text for _, text in written.named])
    return reading(writer, reader, bare_bytes=True)
