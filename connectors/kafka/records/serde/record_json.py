"""JSON for a sink: a column of values as text, one by one."""

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.arrow_leaves import column_index, leaves

__all__ = ["JsonSerializer", "json_texts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSerializer:
    """A function for ``map_batches`` that makes a column the JSON of its values, for a Kafka sink.

    Null stays null: a tombstone, also where a record that holds ``null`` was read. Moments are text
    of ISO 8601, decimals their digits as text, so that `JsonDeserializer` reads what it was. Maps
    are objects. Bytes have no JSON, nor have NaN, infinities, intervals, times of a day with
    nanoseconds, and maps with a key twice or with other keys than text: a record with them fails,
    by the ``on_error`` of ``map_batches``.

    Attributes:
        column: ``value`` or ``key``.
    """

    column: str = "value"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``batch`` with text instead of the values."""
        at = column_index(batch.schema, self.column)
        if at is None:
            raise ConfigError(
                "a serializer has no column to work on",
                {"column": self.column, "columns": ",".join(batch.schema.names)},
                "Return this column from the function before it.",
            )
        texts = pa.array(json_texts(batch.column(at)), pa.string())
        return batch.set_column(at, self.column, texts)


def json_texts(column: pa.Array) -> list[str | None]:
    """The JSON of each value, None for null; see `JsonSerializer`."""
    if len(column) > column.null_count:
        _require_json(column.type)
    _require_microseconds(column)
    try:
        values = column.to_pylist(maps_as_pydicts="strict")
    except KeyError as err:
        raise ValueError("a map with a key twice has no JSON") from err
    return [None if value is None else _ENCODER.encode(value) for value in values]


def _require_json(kind: pa.DataType) -> None:
    """Refuse types whose Python values the encoder would take for lists or texts."""
    if pa.types.is_interval(kind):
        raise ValueError("an interval has no JSON")
    if pa.types.is_map(kind):
        key = kind.key_type
        if not (pa.types.is_string(key) or pa.types.is_large_string(key)):
            raise ValueError("a map with other keys than text has no JSON")
        _require_json(kind.item_type)
    else:
        for at in range(kind.num_fields):
            _require_json(kind.field(at).type)


def _require_microseconds(column: pa.Array) -> None:
    """Refuse times of day with nanoseconds: Python's have microseconds only."""
    for leaf in leaves(column):
        if leaf.type == pa.time64("ns"):
            micros = leaf.cast(pa.time64("us"), safe=False)
            if pc.any(pc.not_equal(micros.cast(leaf.type), leaf)).as_py():
                raise ValueError("a time of a day with nanoseconds has no JSON")


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        offset = value.utcoffset()
        if offset is not None and offset % timedelta(minutes=1):
            value = value.astimezone(UTC)  # ISO 8601 has no seconds in an offset, nor has Arrow
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} has no JSON")


_ENCODER = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain
)
