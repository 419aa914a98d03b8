"""`KafkaSplitReader`: reads exact ranges inside an executor, replayable."""

import contextlib
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sluice.connectors.kafka.client.client_tuning import HotPath, ReadSettings, read_settings
from sluice.connectors.kafka.client.confluent import (
    LOG_TRUNCATION,
    PARTITION_EOF,
    KafkaError,
    KafkaException,
    TopicPartition,
    translate,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.native.native_consumer import NativeConsumer
from sluice.connectors.kafka.records.columns import COLUMNS, ColumnBuilder
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.reader.consumers import PooledConsumer, process_pool
from sluice.connectors.kafka.source.reader.fetching import (
    BATCH_RECORDS,
    Event,
    Fetched,
    Fetcher,
    PlainFetcher,
)
from sluice.connectors.kafka.source.reader.native_fetching import NativeFetcher
from sluice.connectors.kafka.source.reader.ranges import (
    BoolArray,
    NewestTimestamps,
    RangeProgress,
    in_rounds,
    last_rows,
)
from sluice.connectors.kafka.source.reader.seek import place_of, seek_surely
from sluice.connectors.kafka.source.splits import LostRange, data_lost, key_of, log_truncated
from sluice.runtime.contracts import RecordsRead
from sluice.runtime.errors import StreamError, UnreachableError
from sluice.runtime.model.model import SplitRange
from sluice.runtime.model.task_memory import TaskMemory
from sluice.runtime.process.boot_clock import PauseTolerantClock
from sluice.runtime.process.gc_control import without_collector

__all__ = ["KafkaSplitReader", "Reading", "fetcher_of"]

log = logging.getLogger(__name__)

_FIRST_BATCH_RECORDS = 500  # their size is not known yet
_DEFAULT_SETTINGS = read_settings(TaskMemory(), {})
_IDLE_POLL_S = 0.1
_STALL_S = 1.0
_SEEK_S = 5.0  # for all that is assigned at once
_WATERMARKS_S = 10.0
_LONGEST_LOOK_S = 15.0  # with a question about a partition's ends, or a refused log-in
_OUT_OF_RANGE = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})
_ABSENT = frozenset(
    {"UNKNOWN_TOPIC_ID", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC"}
)
_FINAL = frozenset(
    {
        "TOPIC_AUTHORIZATION_FAILED",
        "UNKNOWN_TOPIC_ID",
        "UNKNOWN_TOPIC_OR_PART",
        # After these librdkafka may go on behind what it could not read: a gap like any other.
        "_BAD_COMPRESSION",
        "_BAD_MSG",
        "_FATAL",
        "_NOT_IMPLEMENTED",
        "_UNKNOWN_PARTITION",
        "_UNKNOWN_TOPIC",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSplitReader:
    """Implements `sluice.runtime.contracts.SplitReader`. Picklable; one thread of a Python worker.

    Attributes:
        connection: how to reach the brokers.
        columns: which columns to make, in order; fewer cost less.
        read_committed: isolation level.
        fail_on_data_loss: raise DataLostError for records that retention deleted, or skip them.
        no_progress_timeout_s: nothing at all for so long is an UnreachableError.
        settings: of consumers and batches, which bound what is in memory.
        hot_path: by compiled code or not.
    """

    connection: KafkaConnection
    columns: tuple[str, ...] = COLUMNS
    read_committed: bool = True
    fail_on_data_loss: bool = True
    no_progress_timeout_s: float = 120.0
    settings: ReadSettings = _DEFAULT_SETTINGS
    hot_path: HotPath = HotPath.AUTO

    def read(self, splits: Sequence[SplitRange]) -> Iterator[pa.RecordBatch]:
        """The records of each range in offset order.

        Raises:
            DataLostError: retention deleted a part of a range, or its log was truncated.
            UnreachableError: no progress in time.
            AuthenticationError, SourceChangedError: the brokers refuse the partition.
        """
        for together in in_rounds(splits):
            yield from self._read_together(together, None)

    def read_timed(
        self, splits: Sequence[SplitRange], tell: Callable[[SplitRange, int], None]
    ) -> Iterator[pa.RecordBatch]:
        """As `read`; see `sluice.runtime.contracts.TimedSplitReader`.

        What a range holds without a timestamp, or not as a record any more, does not count.
        """
        for together in in_rounds(splits):
            newest = NewestTimestamps(len(together))
            yield from self._read_together(together, newest)
            for slot, largest_ms in newest.known():
                tell(together[slot], largest_ms)

    def _read_together(
        self, splits: Sequence[SplitRange], newest: NewestTimestamps | None
    ) -> Iterator[pa.RecordBatch]:
        pooled = process_pool.borrow(
            self.connection,
            read_committed=self.read_committed,
            settings=self.settings,
            hot_path=self.hot_path,
        )
        try:
            with contextlib.closing(Reading(self, pooled, splits, newest)) as reading:
                yield from reading.batches()
        except (StreamError, KafkaException) as err:
            process_pool.discard(pooled)
            if isinstance(err, KafkaException):
                raise translate(err, {"splits": _names(splits)}) from err
            raise
        except BaseException:
            # The caller gave up; the consumer itself is sound.
            process_pool.give_back(pooled)
            raise
        process_pool.give_back(pooled)


class Reading:
    """One pass over ranges of different partitions, in one thread.

    Args:
        reader: what is read, and how.
        pooled: a consumer without assignment.
        splits: of different partitions.
        newest: told of the records' timestamps.
        follows: the ranges are open: there may be no record behind a position, for as long as
            that takes; and what became of a partition that is not there any more, or ends before
            the position, is judged where barriers are cut.
        read: by slot, how far an earlier pass has come that this one goes on from.
    """

    def __init__(
        self,
        reader: KafkaSplitReader,
        pooled: PooledConsumer,
        splits: Sequence[SplitRange],
        newest: NewestTimestamps | None,
        *,
        follows: bool = False,
        read: Mapping[int, RecordsRead] | None = None,
    ) -> None:
        self._follows = follows
        self._stalled_s: dict[int, float] = {}
        self._told: set[int] = set()
        self._read = dict(read or {})
        self._began = [split.start_offset for split in splits]
        self._unasked: set[int] = set()  # of whose place no leader was asked
        self._reader = reader
        self._newest = newest
        self._splits = splits
        self._pooled = pooled
        self._consumer = pooled.consumer
        self._progress = RangeProgress(splits)
        keys = [key_of(split) for split in splits]
        self._fetcher = fetcher_of(
            pooled,
            keys,
            ColumnBuilder(reader.columns, keys),
            batch_bytes=reader.settings.batch_bytes,
        )
        # A look that took longer than this stood still with its process.
        self._asked_s = PauseTolerantClock(time.monotonic, longest_step_s=_LONGEST_LOOK_S)
        self._open = len(splits)
        self._batch_records = _FIRST_BATCH_RECORDS
        self._moved_at_s = self._asked_s()
        self._last_error: KafkaError | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All records, up to the ends."""
        self.begin()
        while self._open:
            batch = self.next_batch()
            if batch is not None:
                yield batch
                # Time that the caller took is not the brokers' silence.
                self._moved_at_s = self._asked_s()

    def begin(self) -> None:
        """Let the consumer fetch; once, before `next_batch`."""
        self._pooled.learn(self._splits)
        places = [self._place(slot) for slot in range(len(self._splits))]
        self._consumer.assign(places)
        self._check(dict(enumerate(places)))
        self._moved_at_s = self._asked_s()  # until here nobody was asked for records

    def next_batch(self) -> pa.RecordBatch | None:
        """The next records; None where none came, or none was wanted."""
        self._try_stalled()
        with without_collector():
            batch = self._consumed()
        self._release_finished()
        return batch

    def position(self, slot: int) -> int:
        """The next offset to read of a split: behind the records of all batches so far."""
        return self._progress.position(slot)

    def read(self, slot: int) -> RecordsRead | None:
        """How far the records of a split came; None: none came."""
        return self._read.get(slot)

    def close(self) -> None:
        """Let go of what was taken and not handed out; before the consumer is closed."""
        self._fetcher.close()

    def _consumed(self) -> pa.RecordBatch | None:
        most = max(1, min(self._batch_records, self._progress.remaining))
        fetched = self._fetcher.fetch(most, None if self._follows else _IDLE_POLL_S)
        if fetched is None:
            self._refuse_silence()
            return None
        try:
            batch = self._batch(fetched)
        finally:
            fetched.close()
        # Afterwards: the records before a partition's end come with it, in one call.
        self._judge(fetched.events)
        return batch

    def _batch(self, fetched: Fetched) -> pa.RecordBatch | None:
        slots = fetched.slots
        if not len(slots):
            return None
        self._pooled.refusals.answered()
        wanted = self._progress.accept(slots, fetched.offsets)
        self._require_known_leaders(fetched, wanted)
        if wanted is not None and not wanted.any():
            return None
        batch = fetched.batch(wanted)
        if self._newest is not None:
            slots = slots if wanted is None else slots[wanted]
            self._newest.note(slots, fetched.timestamps_ms(wanted))
        self._moved_at_s = self._asked_s()
        self._fit(batch)
        return batch

    def _require_known_leaders(self, fetched: Fetched, wanted: BoolArray | None) -> None:
        """Refuse records of a later leader than the one that led when their range was defined.

        They have the offsets of records that are gone (KIP-320).
        """
        for slot, row in last_rows(fetched.slots, wanted).items():
            epoch = fetched.leader_epoch(row)
            first = self._first_epoch(fetched, wanted, slot)
            self._read[slot] = RecordsRead(int(fetched.offsets[row]) + 1, epoch, first)
            latest = None if self._follows else self._splits[slot].leader_epoch
            if epoch is not None and latest is not None and epoch > latest:
                raise log_truncated([self._rewritten(fetched, wanted, slot, latest)])

    def _first_epoch(self, fetched: Fetched, wanted: BoolArray | None, slot: int) -> int | None:
        """See `RecordsRead`. Once a record's leader is known, librdkafka asks each later one."""
        read = self._read.get(slot)
        if not self._follows or slot not in self._unasked:
            return None if read is None else read.first_epoch
        self._unasked.discard(slot)
        of_slot = fetched.slots == slot
        rows = np.flatnonzero(of_slot if wanted is None else of_slot & wanted)
        return fetched.leader_epoch(int(rows[0]))

    def _rewritten(
        self, fetched: Fetched, wanted: BoolArray | None, slot: int, latest: int
    ) -> LostRange:
        """Return the part of a range from its first record of a leader later than ``latest``."""
        of_slot = fetched.slots == slot
        rows = np.flatnonzero(of_slot if wanted is None else of_slot & wanted)
        later = rows[bisect_right(rows, latest, key=lambda row: fetched.leader_epoch(row) or 0) :]
        return self._lost(slot, int(fetched.offsets[later[0]]), self._end(slot))

    def _fit(self, batch: pa.RecordBatch) -> None:
        # Large records in large batches would need gigabytes.
        per_record = max(1, batch.nbytes // batch.num_rows)
        most = self._reader.settings.batch_bytes // per_record
        self._batch_records = max(1, min(BATCH_RECORDS, most))

    # --- what is not a record ----------------------------------------------------------------

    def _judge(self, events: Iterable[Event]) -> None:
        for event in events:
            error, slot = event.error, event.slot
            if slot is not None and error.code() == PARTITION_EOF:
                self._pooled.refusals.answered()
                if self._progress.move_to(slot, event.offset):
                    self._moved_at_s = self._asked_s()
                else:
                    self._refuse_silence()
            elif slot is not None and LOG_TRUNCATION in error.str():
                if self._follows or self._progress.position(slot) < self._end(slot):
                    self._refuse_other_log(slot)
            elif slot is not None and error.name() in _OUT_OF_RANGE:
                self._go_on_behind_loss(slot)
            elif slot is not None and self._follows and error.name() in _ABSENT:
                self._stall(slot)
            elif error.name() in _FINAL or error.fatal():
                where = {} if slot is None else {"split": self._splits[slot].name}
                raise translate(error, where)
            else:
                self._last_error = error
                log.debug("consumer reports: error=%s", error)

    def _go_on_behind_loss(self, slot: int) -> None:
        split, position, end = self._splits[slot], self._progress.position(slot), self._end(slot)
        partition = TopicPartition(split.topic, split.partition)
        held = self._consumer.get_watermark_offsets(partition, timeout=_WATERMARKS_S, cached=False)
        if self._follows and (held is None or position > held[1]):
            self._stall(slot)
            return
        if held is not None and position > held[1]:
            raise log_truncated([self._lost(slot, max(split.start_offset, held[1]), end)])
        read = self._read.get(slot)
        if held is not None and position < held[0]:
            self._skip_deleted(slot, min(held[0], end))
        elif self._follows and held is not None and self._records_end(slot) < held[0] <= position:
            # Deleted with its last record: the markers behind that, from which it would be asked.
            self._began[slot] = held[0]
            if read is not None:
                self._read[slot] = read._replace(end_offset=held[0])
        else:
            self._refuse_silence()  # refused again and again, it would be asked for ever
        self._stop(slot)
        self._go_on(slot)

    def _refuse_other_log(self, slot: int) -> None:
        """A new leader lacks records that have been read: since the last barrier, perhaps since an
        earlier one, then the next life begins where it is decided, and the driver judges that
        place; or of a range, which the next try reads of that leader alone."""
        position = self._progress.position(slot)
        raise UnreachableError(
            "records that were read are gone from their partition",
            {"split": self._splits[slot].name, "position": position},
            "What is not decided is read again. Was there an unclean leader election?",
        )

    def _place(self, slot: int) -> TopicPartition:
        """Where to go on. By the leader's epoch librdkafka checks, whenever there is a new leader,
        that a log is still the same; of a range every record is checked."""
        split = self._splits[slot]
        if not self._follows:
            return place_of(split, self._progress.position(slot), None)
        return place_of(split, self._records_end(slot), self._read.get(slot))

    def _records_end(self, slot: int) -> int:
        """Between there and the position lie markers only."""
        read = self._read.get(slot)
        return max(self._began[slot], 0 if read is None else read.end_offset)

    def _stall(self, slot: int) -> None:
        """Ask for it again later, unless a barrier has said by then what becomes of it."""
        split = self._splits[slot]
        if slot not in self._stalled_s:
            log.log(
                logging.DEBUG if slot in self._told else logging.WARNING,
                "nothing can be read there for now: split=%s",
                split.name,
            )
            self._told.add(slot)
            self._stop(slot)
        self._stalled_s[slot] = time.monotonic() + _STALL_S

    def _try_stalled(self) -> None:
        now_s = time.monotonic()
        for slot in [slot for slot, at_s in self._stalled_s.items() if now_s >= at_s]:
            del self._stalled_s[slot]
            self._go_on(slot)

    def _go_on(self, slot: int) -> None:
        place = self._place(slot)
        self._consumer.incremental_assign([place])
        self._check({slot: place})

    def _check(self, places: Mapping[int, TopicPartition]) -> None:
        """Nothing is read on of another log than the one that was read: what cannot be asked for
        that is not read for now. `_judge` hears of one that is another one."""
        until_s = time.monotonic() + _SEEK_S
        for slot, place in places.items():
            if place.leader_epoch is None:
                self._unasked.add(slot)
            elif not seek_surely(self._consumer, place, until_s=until_s):
                self._stall(slot)

    def _stop(self, *slots: int) -> None:
        """No more of these partitions, neither from the brokers nor of what is here already."""
        for slot in slots:
            self._fetcher.forget(slot)
        splits = (self._splits[slot] for slot in slots)
        self._consumer.incremental_unassign([TopicPartition(s.topic, s.partition) for s in splits])

    def _end(self, slot: int) -> int:
        return self._splits[slot].end_offset

    def _skip_deleted(self, slot: int, first: int) -> None:
        lost = self._lost(slot, self._progress.position(slot), first)
        if self._reader.fail_on_data_loss:
            raise data_lost([lost])
        log.warning(
            "records deleted by retention are skipped: records=%d range=%s",
            first - lost.start_offset,
            lost,
        )
        self._progress.move_to(slot, first)
        self._read[slot] = RecordsRead(first, None)

    def _lost(self, slot: int, start_offset: int, end_offset: int) -> LostRange:
        topic, partition = key_of(self._splits[slot])
        return LostRange(
            topic=topic, partition=partition, start_offset=start_offset, end_offset=end_offset
        )

    def _release_finished(self) -> None:
        finished = self._progress.finished()
        if not finished:
            return
        self._open -= len(finished)
        if self._open:
            # No more of these is fetched while the others are read.
            self._stop(*finished)

    def _refuse_silence(self) -> None:
        self._pooled.require_log_in(self._splits[0].topic)
        silent_s = self._asked_s() - self._moved_at_s
        if self._follows or silent_s < self._reader.no_progress_timeout_s:
            return
        raise UnreachableError(
            "the brokers gave no record, and no end of a partition, in time",
            {
                "splits": _names(self._splits),
                "servers": self._reader.connection.bootstrap_servers,
                "silent_s": round(silent_s),
                "last_error": self._last_error.name() if self._last_error else "none",
            },
            "Check that the partitions have leaders and can be reached from the executors. Where a "
            "log was cut off, the next start or cut says so.",
        )


def _names(splits: Sequence[SplitRange]) -> str:
    return " ".join(f"{s.name}[{s.start_offset},{s.end_offset})" for s in splits)


def fetcher_of(
    pooled: PooledConsumer,
    keys: Sequence[PartitionKey],
    builder: ColumnBuilder,
    *,
    batch_bytes: int,
) -> Fetcher:
    """What takes from this consumer's queue; a slot is an index into ``keys``."""
    if isinstance(pooled.consumer, NativeConsumer):
        return NativeFetcher(pooled.consumer, keys, builder, batch_bytes=batch_bytes)
    return PlainFetcher(pooled.consumer, keys, builder)
