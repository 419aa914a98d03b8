"""Reads a repartition topic: messages become rows with their partition. Executor."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice.connectors.kafka.repartition.repartition_messages import Message, decoded
from sluice.runtime.contracts import (
    KEY_COLUMN,
    PARTITION_COLUMN,
    SIDE_COLUMN,
    JobTopic,
    RecordsRead,
    RecordStream,
    SplitReader,
    StreamingReader,
)
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.splits import SplitKey, SplitRange

__all__ = ["RepartitionReader", "RepartitionStreamingReader", "merged"]


def merged(messages: Sequence[Message], *, sides: int) -> pa.RecordBatch | None:
    """The rows of messages as one batch, in order; None: there are none.

    Raises:
        ConfigError: their columns have types that do not fit together.
    """
    found = [message for message in messages if message.rows is not None]
    rows = [message.rows for message in found if message.rows is not None]
    if not rows:
        return None
    batch = _concatenated(rows)
    keys = batch.column(KEY_COLUMN)
    batch = batch.drop_columns([KEY_COLUMN])
    counts = [each.num_rows for each in rows]
    if sides > 1:
        numbers = np.repeat(np.array([m.origin.side for m in found], np.int8), counts)
        batch = batch.append_column(SIDE_COLUMN, pa.array(numbers))
    partitions = np.repeat(np.array([m.partition for m in found], np.int32), counts)
    return batch.append_column(KEY_COLUMN, keys).append_column(
        PARTITION_COLUMN, pa.array(partitions)
    )


def _concatenated(rows: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if all(each.schema.equals(rows[0].schema) for each in rows):
        return pa.concat_batches(rows)
    try:  # of two sides, or of a function whose columns depend on its rows
        whole = pa.concat_tables(
            [pa.Table.from_batches([each]) for each in rows], promote_options="permissive"
        )
    except pa.ArrowException as err:
        raise ConfigError(
            "the rows of a repartition topic have columns that do not fit together",
            {"schemas": " | ".join(dict.fromkeys(_types(each.schema) for each in rows))},
            "Give columns of one name one type, on both sides of a join and in all batches.",
        ) from err
    return whole.combine_chunks().to_batches()[0]


def _types(schema: pa.Schema) -> str:
    return ",".join(f"{field.name}:{field.type}" for field in schema if field.name != KEY_COLUMN)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionReader(SplitReader):
    """Implements `SplitReader`. Picklable.

    Attributes:
        inner: reads the topic's records.
        name: of the topic.
        topic: its partitions, and which messages this run reads.
        sides: of the topic: 1 or 2.
    """

    inner: SplitReader
    name: str
    topic: JobTopic
    sides: int

    def read(self, splits: Sequence[SplitRange]) -> Iterator[pa.RecordBatch]:
        for records in self.inner.read(splits):
            rows = self.rows_of(records)
            if rows is not None:
                yield rows

    def rows_of(self, records: pa.RecordBatch) -> pa.RecordBatch | None:
        """The rows in records of the topic, without those of batches that were rewound."""
        lineage = self.topic.lineage
        messages = [
            message
            for message in decoded(records, self.name)
            if message.origin.batch.attempt_id < 0
            or lineage.has(
                message.origin.batch.region,
                message.origin.batch.attempt_id,
                message.origin.batch.batch_id,
            )
        ]
        return merged(messages, sides=self.sides)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionStreamingReader(StreamingReader):
    """Implements `StreamingReader`. Picklable.

    Attributes:
        inner: reads the topic's records.
        reader: makes rows of them.
    """

    inner: StreamingReader
    reader: RepartitionReader

    @property
    def no_progress_timeout_s(self) -> float:
        return self.inner.no_progress_timeout_s

    def follow(
        self, splits: Sequence[SplitRange], ends: Mapping[SplitKey, int] | None
    ) -> RecordStream:
        return _RepartitionStream(self.inner.follow(splits, ends), self.reader)


class _RepartitionStream(RecordStream):
    """Implements `RecordStream`. Executor, one thread."""

    def __init__(self, inner: RecordStream, reader: RepartitionReader) -> None:
        self._inner = inner
        self._reader = reader

    def poll(self) -> pa.RecordBatch | None:
        records = self._inner.poll()
        return None if records is None else self._reader.rows_of(records)

    def restart_at(self, splits: Sequence[SplitRange]) -> None:
        self._inner.restart_at(splits)

    def positions(self) -> Mapping[SplitKey, int]:
        return self._inner.positions()

    def active(self) -> frozenset[SplitKey]:
        return self._inner.active()

    def records_read(self) -> Mapping[SplitKey, RecordsRead]:
        return self._inner.records_read()

    def close(self) -> None:
        self._inner.close()
