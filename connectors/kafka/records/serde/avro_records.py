"""Avro records with a schema that is given, with or without the header of schema registries."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sluice.connectors.kafka.records.serde.avro_columns import Node, read_records
from sluice.connectors.kafka.records.serde.avro_resolution import reading
from sluice.connectors.kafka.records.serde.avro_types import AvroSchema, arrow_type
from sluice.connectors.kafka.records.serde.deserializing import HeaderDeserializer
from sluice.connectors.kafka.records.serde.schema_ids import framed_records, unframed_records
from sluice.runtime.errors import ConfigError

__all__ = ["AvroDeserializer", "Framing", "given_schema"]


class Framing(enum.Enum):
    """The place of the schema id in a record. Sluice does not look the id up."""

    NONE = "none"
    CONFLUENT = "confluent"  # in its header `__value_schema_id` (`__key_…`), else before the value


@dataclass(frozen=True, kw_only=True)
class AvroDeserializer(HeaderDeserializer):
    """Reads one Avro value from each record. Picklable.

    Records, arrays, maps, unions of null and one type, and Arrow's logical types become columns of
    these types. An enum becomes its symbol, and other logical types become their plain values. A
    record without a value (a tombstone) is null. A time outside a day is an error. See
    ``docs/guide/kafka-source.md`` for other damaged bytes.

    Attributes:
        schema: of the writer, as JSON text or its value.
        framing: the place of the schema id in each record.
    Raises:
        ConfigError: the schema is invalid, or has types without a column.
    """

    schema: str | Mapping[str, Any]
    framing: Framing = Framing.NONE
    _type: pa.DataType = field(init=False, repr=False, compare=False)
    _node: Node = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        schema = given_schema(self.schema)
        object.__setattr__(self, "_type", arrow_type(schema))
        node = reading(schema, schema, bare_bytes=self.needs_headers)
        object.__setattr__(self, "_node", node)

    @property
    def type(self) -> pa.DataType:
        """Of the values."""
        return self._type

    @property
    def needs_headers(self) -> bool:
        return self.framing is Framing.CONFLUENT

    def deserialize(self, column: pa.Array, schema_ids: pa.Array | None = None) -> pa.Array:
        if self.needs_headers:
            records = framed_records(column, schema_ids)
        else:
            records = unframed_records(column)
        return read_records(records, dict.fromkeys(records.groups, self._node), self._type)


def given_schema(schema: str | Mapping[str, Any], named: Sequence[str] = ()) -> AvroSchema:
    """A schema that the user has given.

    Raises:
        ConfigError: it is invalid.
    """
    try:
        return AvroSchema(schema, named)
    except ValueError as err:
        raise ConfigError(
            "an Avro schema cannot be read",
            {"error": err},
            "Give the JSON of the schema that the records were written with.",
        ) from err
