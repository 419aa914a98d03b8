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
from sluice.connectors.kafka.records.serde.deserializing import HeaderDeserializer
from sluice.runtime.errors import ConfigError

__all__ = ["AvroDeserializer", "Framing"]

_ID_BYTES = {0: 5, 1: 17}
"""Bytes of a schema id by its first one: a number of four bytes, or a GUID."""


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

    @property
    def needs_headers(self) -> bool:
        return self.framing is Framing.CONFLUENT

    def deserialize(self, column: pa.Array, schema_ids: pa.Array | None = None) -> pa.Array:
        ids = [None] * len(column) if schema_ids is None else schema_ids.to_pylist()
        values = [
            None if record is None else self._value(record, schema_id)
            for record, schema_id in zip(column.to_pylist(), ids, strict=True)
        ]
        found = pa.array(values, self.type)
        found.validate(full=True)  # fastavro accepts any number as a time of day
        return found

    def _value(self, record: bytes, schema_id: bytes | None) -> object:
        start = 0
        if schema_id is not None:
            if _id_bytes(schema_id) != len(schema_id):
                raise ValueError("the header of a schema id has bytes after it")
        elif self.framing is Framing.CONFLUENT:
            start = _id_bytes(record)
        data = io.BytesIO(record)
        data.seek(start)
        value = fastavro.schemaless_reader(data, self._parsed, None)
        if data.tell() != len(record):
            raise ValueError("a record has bytes after its Avro value")
        return value


def _id_bytes(framed: bytes) -> int:
    """Length of the schema id at the start, in bytes."""
    found = _ID_BYTES.get(framed[0]) if framed else None
    if found is None or len(framed) < found:
        raise ValueError("a record has no schema id in a header or at its start")
    return found
