"""JSON for a sink: a column of values as text, one by one."""

import json
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal

import pyarrow as pa

from runtime.errors import ConfigError

__all__ = ["JsonSerializer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSerializer:
    """A function for ``map_batches`` that makes a column the JSON of its values, for a Kafka sink.

    Null stays null: a tombstone. Moments are text of ISO 8601, decimals their digits as text, so
    that `JsonDeserializer` reads what it was. Bytes have no JSON, nor have NaN and infinities: a
    record with them fails, by the ``on_error`` of ``map_batches``.

    Attributes:
        column: ``value`` or ``key``.
    """

    column: str = "value"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """``batch`` with text in the place of the values."""
        at = batch.schema.get_field_index(self.column)
        if at < 0:
            raise ConfigError(
                "a serializer has no column to work on",
                {"column": self.column, "columns": ",".join(batch.schema.names)},
                "Let the function before it give this column.",
            )
        texts = [
            None if value is None else _ENCODER.encode(value)
            for value in batch.column(at).to_pylist()
        ]
        return batch.set_column(at, self.column, pa.array(texts, pa.string()))


def _plain(value: object) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} has no JSON")


_ENCODER = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain
)
