"""`KafkaStreamingReader`: reads partitions without an end, ahead of the task that polls."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from sluice.connectors.kafka.client.confluent import KafkaException, translate
from sluice.connectors.kafka.source.reader.consumers import PooledConsumer, process_pool
from sluice.connectors.kafka.source.reader.range_reader import KafkaSplitReader, Reading
from sluice.runtime.contracts import RecordsRead, RecordStream, StreamingReader
from sluice.runtime.model.splits import SplitKey, SplitRange

__all__ = ["KafkaRecordStream", "KafkaStreamingReader"]

_NO_END = 1 << 48  # the sum over all partitions is an int64, too


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaStreamingReader(StreamingReader):
    """Implements `sluice.runtime.contracts.StreamingReader`. Picklable.

    Attributes:
        reader: how records are read and made into columns.
    """

    reader: KafkaSplitReader

    @property
    def no_progress_timeout_s(self) -> float:
        return self.reader.no_progress_timeout_s

    def follow(
        self, splits: Sequence[SplitRange], ends: Mapping[SplitKey, int] | None
    ) -> "KafkaRecordStream":
        stream = KafkaRecordStream(self.reader, ends or {})
        stream.restart_at(splits)
        return stream


class KafkaRecordStream(RecordStream):
    """Implements `RecordStream`: one consumer, which fetches ahead in the background.

    Executor, one thread.
    """

    def __init__(self, reader: KafkaSplitReader, ends: Mapping[SplitKey, int]) -> None:
        self._reader = reader
        self._ends = ends
        self._pooled: PooledConsumer | None = None
        self._splits: tuple[SplitRange, ...] = ()
        self._reading: Reading | None = None
        self._read_before: dict[SplitKey, RecordsRead] = {}

    def poll(self) -> pa.RecordBatch | None:
        if self._reading is None:
            return None  # the region has no split yet
        try:
            return self._reading.next_batch()
        except KafkaException as err:
            splits = ",".join(split.name for split in self._splits)
            raise translate(err, {"splits": splits}) from err

    def positions(self) -> Mapping[SplitKey, int]:
        if self._reading is None:
            return {split.key: split.start_offset for split in self._splits}
        # Records after an end are skipped: another read returns them.
        return {
            split.key: min(self._reading.position(slot), self._end(split))
            for slot, split in enumerate(self._splits)
        }

    def active(self) -> frozenset[SplitKey]:
        slots = [] if self._reading is None else self._reading.active()
        return frozenset(self._splits[slot].key for slot in slots)

    def pause(self, splits: Collection[SplitKey]) -> None:
        if self._reading is not None:
            self._reading.pause(n for n, split in enumerate(self._splits) if split.key in splits)

    def records_read(self) -> Mapping[SplitKey, RecordsRead]:
        if self._reading is None:
            return self._read_before
        found = {split.key: self._reading.read(slot) for slot, split in enumerate(self._splits)}
        return self._read_before | {key: read for key, read in found.items() if read is not None}

    def restart_at(self, splits: Sequence[SplitRange]) -> None:
        """See `sluice.runtime.contracts.RecordStream`.

        Uses a new consumer: the queue of the old one may hold records of the old positions, which
        would count as progress.
        """
        at, read = self.positions(), self.records_read()
        self.close()
        self._splits = tuple(splits)
        self._read_before = {
            split.key: read[split.key]
            for split in splits
            if split.key in read
            and read[split.key].end_offset <= split.start_offset <= at[split.key]
        }
        if not splits:
            return
        self._pooled = process_pool.borrow(
            self._reader.connection,
            read_committed=self._reader.read_committed,
            settings=self._reader.settings,
            follows=True,
            hot_path=self._reader.hot_path,
        )
        self._reading = Reading(
            self._reader,
            self._pooled,
            [replace(split, end_offset=self._end(split)) for split in splits],
            None,
            follows=True,
            # The driver has not checked records since the last barrier: the log must be the same.
            # When an attempt begins, the driver checks its positions at the first barrier.
            read={
                slot: self._read_before[split.key]
                for slot, split in enumerate(splits)
                if split.key in self._read_before
            },
        )
        self._reading.begin()

    def _end(self, split: SplitRange) -> int:
        return max(split.start_offset, self._ends.get(split.key, _NO_END))

    def close(self) -> None:
        """See `RecordStream`. The consumer is discarded: its queue may hold records."""
        pooled, self._pooled = self._pooled, None
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()
        if pooled is not None:
            process_pool.discard(pooled)
