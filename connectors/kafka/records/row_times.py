"""The event time of Kafka's records: their timestamp, a header, a column, or a user's function."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.connectors.kafka.records.columns import HEADERS
from sluice.connectors.kafka.records.serde.deserializing import last_headers
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.event_time import (
    KAFKA_TIME,
    EventTime,
    Header,
    times_ms,
    within_reach,
)

__all__ = ["KafkaRowTimes", "columns_for"]

_DIGITS = r"^-?\d{1,18}$"
_INT64_BYTES = 8
_POSITION = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaRowTimes:
    """Implements `sluice.runtime.contracts.RowTimes`. Picklable as far as a function is.

    Attributes:
        of: see `EventTime`.
    """

    of: str | Header | Callable[[pa.RecordBatch], pa.Array]

    def __call__(self, batch: pa.RecordBatch) -> pa.Int64Array:
        """See `RowTimes`.

        Raises:
            ConfigError: the column is missing, or its type is none of a time.
        """
        of = self.of
        if of == KAFKA_TIME:
            found = times_ms(batch.column("timestamp"), rows=batch.num_rows, name="timestamp")
            return pc.if_else(pc.less(found, 0), None, found)  # Kafka: -1, the record has none
        if isinstance(of, Header):
            return _header_times(batch.column(HEADERS), of)
        if isinstance(of, str):
            return times_ms(_column(batch, of), rows=batch.num_rows, name=of)
        return times_ms(of(batch), rows=batch.num_rows, name="the function of EventTime")


def columns_for(time: EventTime | None, read: Sequence[str]) -> tuple[str, ...]:
    """The columns that event time needs of the reader.

    Raises:
        ConfigError: ``time`` is no `EventTime`, or the source does not read one of them.
    """
    if time is None:
        return ()
    if not isinstance(time, EventTime):
        raise ConfigError(
            "the time of a source is no EventTime",
            {"time": repr(time)},
            'Write time=EventTime("kafka"), with strategy=BoundedOutOfOrderness("5 s") to change '
            "the delay.",
        )
    needed: tuple[str, ...] = _POSITION
    if time.of == KAFKA_TIME:
        needed += ("timestamp",)
    elif isinstance(time.of, Header):
        needed += (HEADERS,)
    elif isinstance(time.of, str):
        needed += (time.of.partition(".")[0] if time.of not in read else time.of,)
    else:
        needed += tuple(read)  # the function may read any of them
    missing = [name for name in needed if name not in read]
    if missing:
        raise ConfigError(
            "event time needs a column that the source does not read",
            {"columns": ",".join(missing), "of": time.of},
            "Add it to columns, set include_headers=True for a header, or name a column of the "
            'source, such as "timestamp" or "value.at".',
        )
    return tuple(dict.fromkeys(needed))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """The column of that name, or the field of a struct."""
    if name in batch.schema.names:
        return batch.column(name)
    first, *fields = name.split(".")
    try:
        found = batch.column(first)
        for field in fields:
            found = pc.struct_field(found, field)
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as err:
        raise ConfigError(
            "the rows lack the column of their event time",
            {"column": name, "columns": ",".join(batch.schema.names)},
            "Name a column of the source's rows in EventTime, or a field such as value.at.",
        ) from err
    return found


def _header_times(headers: pa.Array, header: Header) -> pa.Int64Array:
    """A header that is missing, or is no number, gives no time."""
    values = last_headers(headers, header.name)
    if values is None:
        return pa.nulls(len(headers), pa.int64())
    if header.encoding == "int64":
        is_time = np.asarray(pc.fill_null(pc.equal(pc.binary_length(values), _INT64_BYTES), False))
        found = np.zeros(len(values), np.int64)
        whole = b"".join(value for value in values.filter(pa.array(is_time)).to_pylist())
        found[is_time] = np.frombuffer(whole, ">i8")
        return within_reach(pa.array(found, mask=~is_time))
    texts = _texts(values)
    is_time = pc.match_substring_regex(texts, _DIGITS)
    return within_reach(pc.cast(pc.if_else(is_time, texts, None), pa.int64()))


def _texts(values: pa.BinaryArray) -> pa.StringArray:
    """The values as text; null: not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_decoded(value) for value in values.to_pylist()], pa.string())


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
