"""Arrow batches as the argument lists of ``produce``, with the columns of Spark's Kafka sink. Pure.

- ``key``: string or binary, optional.
- ``value``: string or binary, required.
- ``topic``: string, required unless the sink has a topic, which wins.
- ``partition``: int, optional; null: by key.
- ``headers``: array of struct of key string and value binary, optional.
- ``timestamp``, not in Spark's sink: timestamp, optional; null: now.

Other columns are ignored, as in Spark.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.arrow_leaves import column_index

__all__ = [
    "COLUMNS_USED",
    "HeaderParts",
    "ProduceArguments",
    "RecordColumns",
    "check_spark_columns",
]

COLUMNS_USED = frozenset({"headers", "key", "offset", "partition", "timestamp", "topic", "value"})
"""Columns that a sink reads; ``topic`` and ``offset`` also for errors about a source record."""

_UNASSIGNED = -1  # librdkafka: ask the partitioner
_NOW = 0  # librdkafka: stamp it when it is produced
_NO_TIMESTAMP = -1  # Kafka: the record has none
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_SECONDS = (-(_INT64_MAX // 1000), _INT64_MAX // 1000)  # that fit as milliseconds
_NO_SUCH_TIME = "Use times from 1970 to 292 million years later: Kafka has no others."

Header = tuple[str, bytes | None]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceArguments:
    """The arguments of ``produce`` for some rows, one iterable each, of which some repeat for ever.

    ``values`` has the rows' number; a None in ``headers`` means none.
    """

    topics: Iterable[str]
    values: list[bytes | None]
    keys: Iterable[bytes | None]
    partitions: Iterable[int]
    timestamps_ms: Iterable[int]
    headers: Iterable[list[Header] | None]

    def tail(self, start: int) -> "ProduceArguments":
        """The same without the first ``start`` rows."""

        def rest(column: Iterable[Any]) -> Any:  # noqa: ANN401 - any column
            return column[start:] if isinstance(column, list) else column

        return ProduceArguments(
            topics=rest(self.topics),
            values=self.values[start:],
            keys=rest(self.keys),
            partitions=rest(self.partitions),
            timestamps_ms=rest(self.timestamps_ms),
            headers=rest(self.headers),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Which columns of a schema hold what; checked. Made once per schema.

    Attributes:
        topic: the sink's own topic, which wins over a column.
        topic_column, key, partition, timestamp, headers: index of the column, or None.
        value: index of the column.
    """

    topic: str | None
    value: int
    topic_column: int | None
    key: int | None
    partition: int | None
    timestamp: int | None
    headers: int | None

    @classmethod
    def of(cls, schema: pa.Schema, topic: str | None) -> "RecordColumns":
        """Find and check the columns.

        Raises:
            ConfigError: a column is missing or has a wrong type, in Spark's words; or several
                columns have the name of one that the sink reads.
        """
        found = {name: index for index, name in enumerate(schema.names)}
        for name in COLUMNS_USED - {"offset"} - ({"topic"} if topic is not None else set()):
            column_index(schema, name)
        _check(
            {name: _spark_type(schema.field(index).type) for name, index in found.items()}, topic
        )
        timestamp = found.get("timestamp")
        if timestamp is not None and not pa.types.is_timestamp(schema.field(timestamp).type):
            timestamp = None  # not ours: Spark's sink has no such column
        return cls(
            topic=topic,
            value=found["value"],
            topic_column=None if topic is not None else found["topic"],
            key=found.get("key"),
            partition=found.get("partition"),
            timestamp=timestamp,
            headers=found.get("headers"),
        )

    def arguments(
        self, batch: pa.RecordBatch, partitions: pa.Array | None = None
    ) -> ProduceArguments:
        """The rows of a batch, order kept.

        Args:
            partitions: of each row, if known; used instead of the column.
        Raises:
            ConfigError: a topic is null, a partition negative, a timestamp before 1970.
        """
        topics, numbers = self.topics(batch), self.partitions(batch, partitions)
        stamps, headers = self.timestamps_ms(batch), self.header_parts(batch)
        return ProduceArguments(
            topics=itertools.repeat(self.topic or "") if topics is None else topics.to_pylist(),
            values=_bytes(batch.column(self.value)),
            keys=_repeat_none() if self.key is None else _bytes(batch.column(self.key)),
            partitions=itertools.repeat(_UNASSIGNED) if numbers is None else numbers.to_pylist(),
            timestamps_ms=itertools.repeat(_NOW) if stamps is None else stamps.tolist(),
            headers=_repeat_none() if headers is None else headers.lists(),
        )

    def topics(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return the topic of each row, none null; None: all go to the sink's topic."""
        if self.topic_column is None:
            return None
        column = batch.column(self.topic_column)
        if column.null_count:
            raise ConfigError(
                "null topic present in the data",
                {"column": "topic", "row": _first(pc.is_null(column))},
                "Fill the topic column, or give the sink a topic.",
            )
        return column

    def partitions(self, batch: pa.RecordBatch, known: pa.Array | None) -> pa.Array | None:
        """Return the partition of each row, -1: by key; None: by key for all.

        Args:
            known: partitions to use instead of the column.
        """
        if self.partition is None or batch.column(self.partition).type == pa.null():
            column = known
        else:
            column = batch.column(self.partition)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            _refuse_outside(column, (0, _INT32_MAX), "partition", "Null: by key.")
            # Cast, because -1 is not a value of an unsigned type.
            column = column.cast(pa.int32()) if known is None else known
        return None if column is None else column.fill_null(_UNASSIGNED)

    def timestamps_ms(self, batch: pa.RecordBatch) -> IntArray | None:
        """Return the timestamp of each row for ``produce``, 0: now; None: now for all."""
        if self.timestamp is None:
            return None
        column = batch.column(self.timestamp)
        # Floor, so that a time before 1970 is not rounded up into the valid range. In numbers:
        # Arrow's own rounding looks every timestamp up in the time zone, 30 times slower.
        ticks = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        if column.type.unit == "s":
            _refuse_outside(pa.array(ticks), _SECONDS, "timestamp", _NO_SUCH_TIME)
            millis: IntArray = ticks * 1000
        else:
            millis = ticks // _TICKS[column.type.unit]
        bounds = (_NO_TIMESTAMP, _INT64_MAX)
        _refuse_outside(pa.array(millis), bounds, "timestamp", _NO_SUCH_TIME)
        # librdkafka reads 0 as "now", so the first millisecond of 1970 becomes the second one.
        millis[millis == 0] = 1
        millis[millis == _NO_TIMESTAMP] = _NOW
        if column.null_count:
            millis[column.is_null().to_numpy(zero_copy_only=False)] = _NOW
        return millis

    def size(self, batch: pa.RecordBatch, row: int) -> int:
        """Bytes of a record's key and value."""
        one = batch.slice(row, 1)
        found = (_bytes(one.column(at))[0] for at in (self.key, self.value) if at is not None)
        return sum(len(content or b"") for content in found)

    def header_parts(self, batch: pa.RecordBatch) -> "HeaderParts | None":
        """Return the headers of all rows; None: no row has any.

        Raises:
            ConfigError: a header has no key.
        """
        if self.headers is None:
            return None
        column = batch.column(self.headers)
        if column.null_count == len(column):
            return None
        entries = column.flatten()  # of non-null rows alone, unlike `values`
        if len(entries) == 0:
            return None
        names, contents = entries.flatten()
        if names.null_count:
            raise ConfigError(
                "a header without a key is present in the data",
                {"column": "headers"},
                "Give each header a key: Kafka allows a null value, but no null key.",
            )
        lengths = pc.list_value_length(column).fill_null(0)
        return HeaderParts(lengths=lengths, names=names, values=contents)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderParts:
    """The headers of some rows.

    Attributes:
        lengths: how many each row has; shape (n,).
        names, values: of the headers of all rows, in order; no name is null.
    """

    lengths: pa.Array
    names: pa.Array
    values: pa.Array

    def lists(self) -> list[list[Header] | None]:
        """Per row; None: it has none.

        Raises:
            ConfigError: a name has a null character; confluent-kafka would send the part before it.
        """
        names = self.names.to_pylist()
        bad = next((entry for entry, name in enumerate(names) if "\0" in name), None)
        if bad is not None:
            ends = np.cumsum(self.lengths.to_numpy(zero_copy_only=False))
            raise ConfigError(
                "a header's name with a null character is present in the data",
                {"column": "headers", "row": int(np.searchsorted(ends, bad, side="right"))},
                "Set hotPath=native, or remove the header: the plain path would truncate its name.",
            )
        pairs = iter(list(zip(names, _bytes(self.values), strict=True)))
        return [list(itertools.islice(pairs, n)) or None for n in self.lengths.to_pylist()]


_TICKS: Mapping[str, int] = {"ms": 1, "us": 1_000, "ns": 1_000_000}  # per millisecond


def check_spark_columns(columns: Mapping[str, str], topic: str | None) -> None:
    """Check the columns of a Spark schema before the query runs.

    Args:
        columns: name to Spark's simple type text, such as ``binary``.
        topic: the sink's own topic.
    Raises:
        ConfigError: a column is missing or has a wrong type.
    """
    _check(columns, topic)


_HEADERS_TYPE = "array<struct<key:string,value:binary>>"
_TYPES: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": ("string", "binary", "void"),
    "value": ("string", "binary", "void"),
    "partition": ("int", "void"),
    "headers": (_HEADERS_TYPE, "void"),
}


def _check(columns: Mapping[str, str], topic: str | None) -> None:
    _require_no_other_case(columns, topic)
    if topic is None and "topic" not in columns:
        raise ConfigError(
            "a topic is required when there is no topic column",
            {"columns": ",".join(columns)},
            "Give the sink a topic, or the data a column named topic.",
        )
    if "value" not in columns:
        raise ConfigError(
            "the required column value is missing",
            {"columns": ",".join(columns)},
            "Select the record's value as a string or binary column named value.",
        )
    for name, allowed in _TYPES.items():
        if name == "topic" and topic is not None:
            continue
        if name in columns and columns[name] not in allowed:
            kinds = " or ".join(kind for kind in allowed if kind != "void")
            raise ConfigError(
                f"column {name} must be of type {kinds}",
                {"column": name, "type": columns[name]},
                f"Cast it to {kinds}.",
            )


def _require_no_other_case(columns: Mapping[str, str], topic: str | None) -> None:
    """Spark takes ``Key`` for ``key``, and its sink leaves it out: records would have no key."""
    for name in columns:
        meant = name.lower()
        is_used = meant in _TYPES and not (meant == "topic" and topic is not None)
        if is_used and name != meant and meant not in columns:
            raise ConfigError(
                "a column differs from a sink column in case only",
                {"column": name, "sink_column": meant},
                f"Rename it to {meant} ({name} AS {meant}), or to another name to leave it out.",
            )


def _spark_type(kind: pa.DataType) -> str:
    """Spark's simple text of an Arrow type, as far as the sink's columns need it."""
    is_ = pa.types
    if is_.is_dictionary(kind):
        return _spark_type(kind.value_type)
    if is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind):
        return "string"
    if is_.is_integer(kind):
        # Python functions make int64 where Spark makes int: both hold a partition.
        return "int"
    if is_.is_null(kind):
        return "void"
    if is_.is_list(kind) or is_.is_large_list(kind):
        return f"array<{_spark_type(kind.value_type)}>"
    if is_.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return f"struct<{','.join(f'{f.name}:{_spark_type(f.type)}' for f in fields)}>"
    binary = is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_binary_view(kind)
    return "binary" if binary or is_.is_fixed_size_binary(kind) else str(kind)


def _bytes(column: pa.Array) -> list[bytes | None]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_binary(column.type) and not pa.types.is_null(column.type):
        column = column.cast(pa.large_binary())  # of a string: its UTF-8, without a copy
    values: list[bytes | None] = column.to_pylist()
    return values


def _refuse_outside(column: pa.Array, bounds: tuple[int, int], name: str, remedy: str) -> None:
    least, most = bounds
    found = pc.min_max(column).as_py()
    if found["min"] is None or (found["min"] >= least and found["max"] <= most):
        return
    # In Python: Arrow compares numbers of 64 bits without a sign only below 2**63.
    values = enumerate(column.to_pylist())
    row, value = next((n, v) for n, v in values if v is not None and not least <= v <= most)
    raise ConfigError(
        f"a {name} in the data is not valid",
        {"column": name, name: value, "row": row},
        remedy,
    )


def _first(mask: pa.Array) -> int:
    row: int = pc.index(mask.fill_null(False), True).as_py()
    return row


def _repeat_none() -> Iterator[None]:
    return itertools.repeat(None)
