"""The messages of a repartition topic: an Arrow IPC stream with rows of one partition.

The value is a stream of one record batch; null marks a copy that is done. The header
``sluice-batch`` names the batch of the writing region, as JSON. The format is described in
docs/internals/repartition-topics.md.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.connectors.kafka.records.columns import schema_of
from sluice.runtime.contracts import JobTopic
from sluice.runtime.errors import SourceChangedError
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.model.state.key_groups import key_groups, partition_of_groups

__all__ = [
    "COLUMNS_READ",
    "HEADER",
    "KEY_COLUMN",
    "MESSAGE_BYTES",
    "Message",
    "MessageOrigin",
    "decoded",
    "messages_of",
    "partition_slices",
    "partitions_of_keys",
    "records_of",
    "with_keys",
    "without_keys",
]

HEADER = "sluice-batch"
KEY_COLUMN = "__key"
"""large_binary, the last column of the rows in a message: their encoded keys."""
_KEYS = b"sluice.keys"
"""Metadata of the rows' schema: the serialised schema of the keys."""
MESSAGE_BYTES = 900_000
"""A message is not made larger, unless one row is: brokers take 1 MiB by default."""
COLUMNS_READ = ("value", "partition", "offset", "headers")
_VERSION = 1
_WRITTEN = schema_of(("value", "partition", "headers"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOrigin:
    """The origin of a message.

    Attributes:
        batch: that wrote it.
        side: of a topic with two: 0 left, 1 right.
        is_copied: another job's batch wrote it, and a restore has copied it.
    """

    batch: BatchKey
    side: int = 0
    is_copied: bool = False

    def encode(self) -> bytes:
        """The header's value."""
        batch = self.batch
        found: list[Any] = [_VERSION, batch.region, batch.attempt_id, batch.batch_id, self.side]
        return json.dumps([*found, int(self.is_copied)], separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> "MessageOrigin":
        """The inverse of `encode`; ValueError: it is none."""
        version, region, attempt_id, batch_id, side, copied = json.loads(value)
        if version != _VERSION:
            raise ValueError(f"version {version}")
        return cls(
            batch=BatchKey(region=str(region), attempt_id=int(attempt_id), batch_id=int(batch_id)),
            side=int(side),
            is_copied=bool(copied),
        )


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was read: its offset, its origin, and its rows, if it has any."""

    partition: int
    offset: int
    origin: MessageOrigin
    rows: pa.RecordBatch | None


def with_keys(
    rows: pa.RecordBatch, keys: pa.LargeBinaryArray, key_schema: pa.Schema
) -> pa.RecordBatch:
    """Rows as messages hold them."""
    metadata = {**(rows.schema.metadata or {}), _KEYS: key_schema.serialize().to_pybytes()}
    return rows.append_column(KEY_COLUMN, keys).replace_schema_metadata(metadata)


def without_keys(
    rows: pa.RecordBatch,
) -> tuple[pa.RecordBatch, pa.LargeBinaryArray, pa.Schema]:
    """The inverse of `with_keys`; KeyError: these are no such rows."""
    metadata = dict(rows.schema.metadata or {})
    key_schema = pa.ipc.read_schema(pa.py_buffer(metadata.pop(_KEYS)))
    keys, plain = rows.column(KEY_COLUMN), rows.drop_columns([KEY_COLUMN])
    return plain.replace_schema_metadata(metadata or None), keys, key_schema


def partitions_of_keys(keys: pa.LargeBinaryArray, topic: JobTopic) -> npt.NDArray[np.int32]:
    """The partition of each key."""
    return partition_of_groups(
        key_groups(keys, topic.max_parallelism),
        partitions=topic.partitions,
        max_parallelism=topic.max_parallelism,
    )


def partition_slices(
    rows: pa.RecordBatch, partitions: npt.NDArray[np.int32]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each partition, in order."""
    order = np.argsort(partitions, kind="stable")
    ordered = partitions[order]
    found, starts = np.unique(ordered, return_index=True)
    rows = rows.take(pa.array(order))
    bounds = pairwise([*starts.tolist(), len(ordered)])
    for partition, (start, end) in zip(found.tolist(), bounds, strict=True):
        yield partition, rows.slice(start, end - start)


def messages_of(rows: pa.RecordBatch, *, limit_bytes: int = MESSAGE_BYTES) -> Iterator[bytes]:
    """The values of messages with these rows, in order; each is within the limit if it has more
    than one row."""
    rows = _compacted(rows)
    count = -(-rows.nbytes // limit_bytes)
    if count > 1 and rows.num_rows > 1:
        yield from _parts(rows, min(count, rows.num_rows), limit_bytes)
        return
    with pa.BufferOutputStream() as out:
        with pa.ipc.new_stream(out, rows.schema) as stream:
            stream.write_batch(rows)
        value = out.getvalue()
    if value.size > limit_bytes and rows.num_rows > 1:
        yield from _parts(rows, 2, limit_bytes)
    else:
        yield value.to_pybytes()


def _compacted(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Without values of dictionaries that no row has: each message has its dictionaries whole."""
    for at, column in enumerate(rows.columns):
        if pa.types.is_dictionary(column.type) and len(column.dictionary) > len(column):
            places = column.indices.cast(pa.int64()).fill_null(0).to_numpy()
            used, indices = np.unique(places, return_inverse=True)
            nulls = column.indices.is_null().to_numpy(zero_copy_only=False)
            made = pa.DictionaryArray.from_arrays(
                pa.array(indices, column.type.index_type, mask=nulls),
                column.dictionary.take(pa.array(used)),
                ordered=column.type.ordered,
            )
            rows = rows.set_column(at, rows.schema.field(at), made)
    return rows


def _parts(rows: pa.RecordBatch, count: int, limit_bytes: int) -> Iterator[bytes]:
    bounds = np.linspace(0, rows.num_rows, count + 1).astype(int).tolist()
    for start, end in pairwise(bounds):
        if end > start:
            yield from messages_of(rows.slice(start, end - start), limit_bytes=limit_bytes)


def records_of(
    values: list[bytes | None], partitions: list[int], origin: MessageOrigin
) -> pa.RecordBatch:
    """Kafka records of these messages, in the columns of a sink."""
    header = [{"key": HEADER, "value": origin.encode()}]
    return pa.RecordBatch.from_pydict(
        {"value": values, "partition": partitions, "headers": [header] * len(values)},
        schema=_WRITTEN,
    )


def _rows_in(value: pa.BinaryScalar) -> pa.RecordBatch | None:
    if not value.is_valid:
        return None
    with pa.ipc.open_stream(value.as_buffer()) as stream:
        rows = stream.read_next_batch()
    without_keys(rows)  # raises for rows without keys
    return rows


def decoded(records: pa.RecordBatch, topic: str) -> Iterator[Message]:
    """The messages in records of the columns `COLUMNS_READ`.

    Raises:
        SourceChangedError: a record is no message of this format.
    """
    values, partitions, offsets, headers = (records.column(name) for name in COLUMNS_READ)
    for row in range(records.num_rows):
        partition, offset = partitions[row].as_py(), offsets[row].as_py()
        try:
            pairs = {pair["key"]: pair["value"] for pair in headers[row].as_py() or ()}
            origin = MessageOrigin.decode(pairs[HEADER])
            rows = _rows_in(values[row])
        except (KeyError, TypeError, ValueError, StopIteration, pa.ArrowException) as err:
            raise SourceChangedError(
                "a repartition topic holds a record that Sluice has not written",
                {"topic": topic, "partition": partition, "offset": offset, "reason": repr(err)},
                "Let no other program write to this topic. Restore the job from a savepoint into a "
                "new checkpoint directory: it gets a topic of its own.",
            ) from err
        yield Message(partition, offset, origin, rows)
