"""Avro records with a schema that is given, with or without the header of schema registries."""

import enum
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import fastavro
import pyarrow as pa

from sluice.connectors.kafka.records.serde.avro_types import arrow_type, plain_schema
from sluice.runtime.errors import ConfigError

__all__ = ["AvroDeserializer", "Framing"]

_CONFLUENT_BYTES = 5


class Framing(enum.Enum):
    """The header before the Avro value."""

    NONE = "none"
    CONFLUENT = "confluent"  # a zero byte, and four of the schema's id, which is not looked up


@dataclass(frozen=True, kw_only=True)
class AvroDeserializer:
    """Reads one Avro value from each record. Picklable.

    Records, arrays, maps, unions of null and one type, and Arrow's logical types become columns of
    these types. An enum becomes its symbol, and other logical types become their plain values. A
    record without a value (a tombstone) is null. A time outside a day is an error. See
    ``docs/guide/kafka-source.md`` for other damaged bytes.

    Attributes:
        schema: of the writer, as JSON text or its value.
        framing: the header of each record.
    Raises:
        ConfigError: the schema is invalid, or has types without a column.
    """

    schema: str | Mapping[str, Any]
    framing: Framing = Framing.NONE
    _given: Any = field(init=False, repr=False, compare=False)
    _parsed: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            given = json.loads(self.schema) if isinstance(self.schema, str) else self.schema
            parsed = fastavro.parse_schema(plain_schema(given))
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as err:
            raise ConfigError(
                "an Avro schema cannot be read",
                {"error": f"{type(err).__name__}: {err}"},
                "Give the JSON of the schema that the records were written with.",
            ) from err
        arrow_type(given)
        object.__setattr__(self, "_given", given)
        object.__setattr__(self, "_parsed", parsed)

    @cached_property
    def type(self) -> pa.DataType:
        """Of the values."""
        return arrow_type(self._given)

    def deserialize(self, column: pa.Array) -> pa.Array:
        """See `sluice.connectors.kafka.records.serde.deserializing.Deserializer`."""
        values = [None if record is None else self._value(record) for record in column.to_pylist()]
        found = pa.array(values, self.type)
        found.validate(full=True)  # fastavro accepts any number as a time of day
        return found

    def _value(self, record: bytes) -> object:
        start = 0
        if self.framing is Framing.CONFLUENT:
            if len(record) < _CONFLUENT_BYTES or record[0] != 0:
                raise ValueError("a record does not begin with a zero byte and a schema id")
            start = _CONFLUENT_BYTES
        data = io.BytesIO(record)
        data.seek(start)
        value = fastavro.schemaless_reader(data, self._parsed, None)
        if data.tell() != len(record):
            raise ValueError("a record has bytes after its Avro value")
        return value
