"""Kafka messages as Arrow columns, with the names and types of Spark's ``kafka`` source.

The hot path of reading: each column is one pass over the messages, and only wanted ones are made.
"""

import itertools
import operator
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.connectors.kafka.client.confluent import Message
from sluice.runtime.errors import ConfigError

__all__ = [
    "COLUMNS",
    "HEADERS",
    "ColumnBuilder",
    "columns_with",
    "header_pairs",
    "headers_of",
    "schema_ddl",
    "schema_of",
    "times_of",
    "timestamps_ms",
]

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""Columns without headers, in Spark's order."""

HEADERS = "headers"

_MOST_MS = np.iinfo(np.int64).max // 1000
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    HEADERS: pa.list_(pa.field("element", _HEADER)),
}
_DDL = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp_ltz",  # an instant, whatever the session takes "timestamp" for
    "timestampType": "int",
    HEADERS: "array<struct<key:string,value:binary>>",
}

# For a name that it cannot decode, the C client returns a result and leaves an exception pending. A
# call that the interpreter has specialised does not check for one: it would be raised later.
_HEADERS_OF = operator.methodcaller("headers")

IntArray = npt.NDArray[np.int64]
_Pairs = list[tuple[str, bytes | None]]


def columns_with(*, headers: bool) -> tuple[str, ...]:
    """All columns, with or without headers."""
    return (*COLUMNS, HEADERS) if headers else COLUMNS


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Arrow schema of these columns.

    Raises:
        ConfigError: there is no such column.
    """
    unknown = [name for name in columns if name not in _TYPES]
    if unknown:
        raise ConfigError(
            "the Kafka source has no such column",
            {"columns": ",".join(unknown)},
            f"Choose from {', '.join(_TYPES)}.",
        )
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


def schema_ddl(columns: Sequence[str]) -> str:
    """Spark DDL of these columns, in quotes: a session may have reserved ``offset``."""
    return ", ".join(f"`{name}` {_DDL[name]}" for name in columns)


class ColumnBuilder:
    """Builds batches of chosen columns. Executor; one per read.

    Args:
        columns: names, in the order wanted.
        keys: topic and partition of each slot; a slot is an index into the splits being read.
    """

    def __init__(self, columns: Sequence[str], keys: Sequence[tuple[str, int]]) -> None:
        self.schema = schema_of(columns)
        self._columns = tuple(columns)
        self._timed = bool({"timestamp", "timestampType"} & set(columns))
        self._partitions = np.array([partition for _, partition in keys], np.int32)
        self._topics = pa.array([topic for topic, _ in keys], pa.string())
        self._one_topic = len({topic for topic, _ in keys}) == 1
        self._repeated = pa.nulls(0, pa.string())

    def build(
        self, messages: Sequence[Message], slots: IntArray, offsets: IntArray
    ) -> pa.RecordBatch:
        """One batch; row i is message i."""
        content: dict[str, pa.Array] = {}
        if "key" in self._columns:
            content["key"] = pa.array(list(map(Message.key, messages)), pa.binary())
        if "value" in self._columns:
            content["value"] = pa.array(list(map(Message.value, messages)), pa.binary())
        if HEADERS in self._columns:
            content[HEADERS] = _headers(list(map(header_pairs, messages)))
        if self._timed:
            flat = _kinds_and_times(messages)
            content |= times_of(flat[0::2], flat[1::2])
        return self.assemble(content, slots, offsets)

    def assemble(
        self, content: Mapping[str, pa.Array], slots: IntArray, offsets: IntArray
    ) -> pa.RecordBatch:
        """One batch of the records' contents and positions."""
        made = dict(content)
        for name in self._columns:
            if name == "topic":
                made[name] = self._topic(slots)
            elif name == "partition":
                made[name] = pa.array(self._partitions[slots])
            elif name == "offset":
                made[name] = pa.array(offsets)
        return pa.RecordBatch.from_arrays(
            [made[name] for name in self._columns], schema=self.schema
        )

    def key_at(self, slot: int) -> tuple[str, int]:
        """Topic and partition of a slot."""
        return self._topics[slot].as_py(), int(self._partitions[slot])

    def _topic(self, slots: IntArray) -> pa.Array:
        if not self._one_topic:
            return self._topics.take(pa.array(slots))
        if len(self._repeated) < len(slots):
            self._repeated = pa.repeat(self._topics[0], len(slots))
        return self._repeated[: len(slots)]


def timestamps_ms(messages: Sequence[Message]) -> IntArray:
    """Return the timestamp of each message; -1: it has none."""
    flat = _kinds_and_times(messages)
    found: IntArray = np.where(flat[0::2] == 0, -1, flat[1::2])
    return found


def _kinds_and_times(messages: Sequence[Message]) -> IntArray:
    pairs = itertools.chain.from_iterable(map(Message.timestamp, messages))
    return np.fromiter(pairs, np.int64, 2 * len(messages))


def times_of(kinds: npt.NDArray[np.integer], times_ms: IntArray) -> dict[str, pa.Array]:
    """The two columns of librdkafka's timestamps.

    Spark counts microseconds: a time that does not fit, as of a producer that sent nanoseconds, is
    the last one that does.
    """
    # librdkafka: 0 none, 1 create, 2 append; Java and Spark: -1, 0, 1.
    kinds = (kinds - 1).astype(np.int32)
    micros = pa.array(times_ms.clip(-_MOST_MS, _MOST_MS) * 1000).view(_TYPES["timestamp"])
    return {"timestamp": micros, "timestampType": pa.array(kinds)}


def header_pairs(message: Message) -> _Pairs | None:
    """Names and values; ConfigError for a name that is not UTF-8."""
    try:
        found: _Pairs | None = _HEADERS_OF(message)
    except (SystemError, UnicodeDecodeError) as err:  # the C client raises the first one
        raise ConfigError(
            "a record has a header whose name is not UTF-8",
            {
                "topic": message.topic(),
                "partition": message.partition(),
                "offset": message.offset(),
            },
            "Read without headers: a column of strings cannot hold this name.",
        ) from err
    return found


def _headers(lists: Sequence[_Pairs | None]) -> pa.Array:
    if not any(lists):
        return headers_of(len(lists), None)
    # As in Spark, a record without headers has null, not an empty list.
    lengths = [len(pairs) if pairs else 0 for pairs in lists]
    missing = pa.array([not pairs for pairs in lists])
    flat = [pair for pairs in lists if pairs for pair in pairs]
    entries = pa.StructArray.from_arrays(
        [pa.array([k for k, _ in flat], pa.string()), pa.array([v for _, v in flat], pa.binary())],
        fields=list(_HEADER),
    )
    bounds = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    return pa.ListArray.from_arrays(bounds, entries, type=_TYPES[HEADERS], mask=missing)


def headers_of(
    count: int,
    parts: tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], pa.Array, pa.Array] | None,
) -> pa.Array:
    """The column of headers from its parts; None: no record has any.

    Args:
        parts: bounds of each row's entries, which rows have some (as bits), names, values.
    """
    if parts is None:
        return pa.nulls(count, _TYPES[HEADERS])
    bounds, validity, names, values = parts
    entries = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
    buffers = [pa.py_buffer(validity), pa.py_buffer(bounds)]
    return pa.Array.from_buffers(_TYPES[HEADERS], count, buffers, children=[entries])
