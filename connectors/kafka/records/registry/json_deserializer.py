"""JSON records whose schemas are in a registry."""

from dataclasses import dataclass, field

import pyarrow as pa

from sluice.connectors.kafka.records.registry.json_schema import JsonSchema
from sluice.connectors.kafka.records.registry.schema_registry import SchemaRegistry
from sluice.connectors.kafka.records.serde.deserializing import HeaderDeserializer
from sluice.connectors.kafka.records.serde.json_records import JsonDeserializer
from sluice.connectors.kafka.records.serde.schema_ids import framed_records

__all__ = ["JsonRegistryDeserializer"]


@dataclass(frozen=True, kw_only=True)
class JsonRegistryDeserializer(HeaderDeserializer):
    """Reads JSON records that name a JSON Schema of a registry. Picklable.

    Each record names its writer's schema by an id: in the header ``__value_schema_id`` (or
    ``__key_schema_id``), else before the value. `JsonDeserializer` makes the columns: JSON Schema
    has no column types of its own. A record without a value is null.

    A record is bad if the registry does not have its id, if it breaks its writer's schema, or if
    its values do not fit ``schema``. A registry that does not answer fails the task instead.

    Attributes:
        registry: has the writers' schemas.
        schema, unknown_fields: of the column; see `JsonDeserializer`.
        validate: check each record against its writer's schema.
    Raises:
        ConfigError: JSON has no such type.
    """

    registry: SchemaRegistry
    schema: pa.Schema | pa.DataType
    unknown_fields: str = "ignore"
    validate: bool = True
    _reader: JsonDeserializer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        reader = JsonDeserializer(schema=self.schema, unknown_fields=self.unknown_fields)
        object.__setattr__(self, "_reader", reader)

    @property
    def type(self) -> pa.DataType:
        """Of the values."""
        return self._reader.type

    @property
    def needs_headers(self) -> bool:
        return True

    def deserialize(self, column: pa.Array, schema_ids: pa.Array | None = None) -> pa.Array:
        records = framed_records(column, schema_ids)
        data = memoryview(records.data)
        bounds = zip(records.starts.tolist(), records.ends.tolist(), strict=True)
        payloads = [data[start:end].tobytes() for start, end in bounds]
        for schema_id, written in self.registry.client().schemas(records.ids).items():
            written.require_no_rules("READ")
            schema = JsonSchema.of(written)
            for place in records.groups[schema_id].tolist() if self.validate else ():
                schema.require_valid(payloads[place])
        values: list[bytes | None] = [None] * len(column)
        for row, payload in zip(records.rows.tolist(), payloads, strict=True):
            values[row] = payload
        return self._reader.deserialize(pa.array(values, pa.binary()))
