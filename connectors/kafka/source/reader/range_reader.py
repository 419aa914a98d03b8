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
from sluice.connectors.kafka.client.retry import Deadline
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
from sluice.connectors.kafka.source.reader.seek import resume_position, seek_with_retries
from sluice.connectors.kafka.source.splits import LostRange, data_lost, key_of, log_truncated
from sluice.runtime.contracts import RecordsRead
from sluice.runtime.errors import StreamError, UnreachableError
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.model.task_memory import TaskMemory
from sluice.runtime.process.gc_control import without_collector
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantClock

__all__ = ["KafkaSplitReader", "Reading", "fetcher_of"]

log = logging.getLogger(__name__)

_FIRST_BATCH_RECORDS = 500  # their size is not known yet
_DEFAULT_SETTINGS = read_settings(TaskMemory(), {})
_IDLE_POLL_S = 0.1
_STALL_S = 1.0
_SILENCE_S = 10.0  # without a record, until the client is watched
_SEEK_S = 5.0  # for all that is assigned at once
_WATERMARKS_S = 10.0
_LONGEST_STEP_S = 15.0  # with a watermark request, or a refused log-in
_OUT_OF_RANGE = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})
_ABSENT = frozenset(
    {"UNKNOWN_TOPIC_ID", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC"}
)
_FINAL = frozenset(
    {
        "TOPIC_AUTHORIZATION_FAILED",
        "UNKNOWN_TOPIC_ID",
        "UNKNOWN_TOPIC_OR_PART",
        # After these librdkafka may skip records that it could not read, without a report.
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
        no_progress_timeout_s: if the client fetches nothing for so long, aborted records included,
            that is an UnreachableError.
        settings: of consumers and batches; they bound the memory.
        hot_path: native or plain client.
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

        Records without a timestamp do not count.
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
        reader: columns, isolation level and settings.
        pooled: a consumer without assignment.
        splits: of different partitions.
        newest: collects the records' timestamps; None: they are not needed.
        follows: the ranges are open. There may be no record after a position for any time. The
            driver decides, at barriers, about a partition that was deleted, or that ends before the
            position.
        read: by slot, how far an earlier pass came that this one continues.
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
        self._paused: frozenset[int] = frozenset()
        self._warned: set[int] = set()
        self._read = dict(read or {})
        self._began = [split.start_offset for split in splits]
        self._unchecked: set[int] = set()  # slots whose position no leader has confirmed
        self._reader = reader
        self._newest = newest
        self._splits = splits
        self._pooled = pooled
        self._consumer = pooled.consumer
        self._progress = RangeProgress(splits)
        keys = [key_of(split) for split in splits]
        self._builder = ColumnBuilder(reader.columns, keys)
        self._keys = keys
        self._fetcher = self._open_fetcher()
        self._watch_after_s = self._silence_s = min(_SILENCE_S, reader.no_progress_timeout_s / 2)
        # A longer step means that the process was paused.
        self._clock_s = PauseTolerantClock(time.monotonic, longest_step_s=_LONGEST_STEP_S)
        self._open = len(splits)
        self._batch_records = _FIRST_BATCH_RECORDS
        self._moved_at_s = self._clock_s()
        self._last_error: KafkaError | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All records, up to the ends."""
        self.begin()
        while self._open:
            batch = self.next_batch()
            if batch is not None:
                yield batch
                # The caller's time is not the brokers' time.
                self._moved_at_s = self._clock_s()

    def begin(self) -> None:
        """Let the consumer fetch; once, before `next_batch`."""
        self._assign(range(len(self._splits)))
        self._moved_at_s = self._clock_s()  # no request for records before this

    def _assign(self, slots: Sequence[int]) -> None:
        self._pooled.learn([self._splits[slot] for slot in slots])
        places = {slot: self._resume_position(slot) for slot in slots}
        self._consumer.assign(list(places.values()))
        self._check(places)

    def _open_fetcher(self) -> Fetcher:
        batch_bytes = self._reader.settings.batch_bytes
        return fetcher_of(self._pooled, self._keys, self._builder, batch_bytes=batch_bytes)

    def next_batch(self) -> pa.RecordBatch | None:
        """Return the next records; None: no record came, or none was wanted."""
        self._try_stalled()
        with without_collector():
            batch = self._consumed()
        self._release_finished()
        return batch

    def pause(self, slots: Iterable[int]) -> None:
        """Stop fetching these slots, and resume all other ones after their last records."""
        open_slots, before = frozenset(self._progress.unfinished()), self._paused
        self._paused = paused = frozenset(slots) & open_slots
        begun = [
            slot for slot in sorted(paused - before) if self._stalled_s.pop(slot, None) is None
        ]
        if begun:
            self._stop(*begun)
        for slot in sorted((before - paused) & open_slots):
            self._resume(slot)

    def position(self, slot: int) -> int:
        """Return the next offset to read of a split: after the records of all batches so far."""
        return self._progress.position(slot)

    def active(self) -> list[int]:
        """Return the slots of which the client has fetched something since the last call, or waits
        for a quota: perhaps aborted records, which it does not return."""
        positions = {self._keys[n]: self.position(n) for n in self._progress.unfinished()}
        moved = self._pooled.fetched.moved(positions)
        return [slot for slot, key in enumerate(self._keys) if key in moved]

    def read(self, slot: int) -> RecordsRead | None:
        """Return how far the records of a split came; None: no record came."""
        return self._read.get(slot)

    def close(self) -> None:
        """Free fetched records that no batch holds, before the consumer is closed."""
        self._fetcher.close()

    def _consumed(self) -> pa.RecordBatch | None:
        most = max(1, min(self._batch_records, self._progress.remaining))
        fetched = self._fetcher.fetch(most, None if self._follows else _IDLE_POLL_S)
        if fetched is None:
            self._require_progress()
            return None
        try:
            batch = self._batch(fetched)
        finally:
            fetched.close()
        # Afterwards: the records before a partition's end come with it, in one call.
        self._handle_events(fetched.events)
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
        self._moved_at_s = self._clock_s()
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
        """See `RecordsRead`. After the first record, librdkafka checks each later leader."""
        read = self._read.get(slot)
        if not self._follows or slot not in self._unchecked:
            return None if read is None else read.first_epoch
        self._unchecked.discard(slot)
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

    # --- events ------------------------------------------------------------------------------

    def _handle_events(self, events: Iterable[Event]) -> None:
        for event in events:
            error, slot = event.error, event.slot
            if slot in self._paused:
                continue  # a report from before the pause; the next fetch repeats it
            if slot is not None and error.code() == PARTITION_EOF:
                self._pooled.refusals.answered()
                if self._progress.move_to(slot, event.offset):
                    self._moved_at_s = self._clock_s()
                else:
                    self._require_progress()
            elif slot is not None and LOG_TRUNCATION in error.str():
                if self._follows or self._progress.position(slot) < self._end(slot):
                    self._refuse_truncated_log(slot)
            elif slot is not None and error.name() in _OUT_OF_RANGE:
                self._resume_after_refusal(slot)
            elif slot is not None and self._follows and error.name() in _ABSENT:
                self._stall(slot)
            elif error.name() in _FINAL or error.fatal():
                where = {} if slot is None else {"split": self._splits[slot].name}
                raise translate(error, where)
            else:
                self._last_error = error
                log.debug("consumer reports: error=%s", error)

    def _resume_after_refusal(self, slot: int) -> None:
        split, position, end = self._splits[slot], self._progress.position(slot), self._end(slot)
        partition = TopicPartition(split.topic, split.partition)
        bounds = self._consumer.get_watermark_offsets(
            partition, timeout=_WATERMARKS_S, cached=False
        )
        if self._follows and (bounds is None or position > bounds[1]):
            self._stall(slot)
            return
        if bounds is not None and position > bounds[1]:
            raise log_truncated([self._lost(slot, max(split.start_offset, bounds[1]), end)])
        read = self._read.get(slot)
        if bounds is not None and position < bounds[0]:
            self._skip_deleted(slot, min(bounds[0], end))
        elif (
            self._follows and bounds is not None and self._records_end(slot) < bounds[0] <= position
        ):
            # Retention deleted the last record and markers after it, where reading would resume.
            self._began[slot] = bounds[0]
            if read is not None:
                self._read[slot] = read._replace(end_offset=bounds[0])
        else:
            self._require_progress()  # the position may be refused for ever
        self._stop(slot)
        self._resume(slot)

    def _refuse_truncated_log(self, slot: int) -> None:
        """Refuse a new leader that lacks records which this pass has read.

        The next attempt starts at the last decision, where the driver checks the position. A range
        is read again, from the new leader only.
        """
        position = self._progress.position(slot)
        raise UnreachableError(
            "a new leader lacks records that the task has read",
            {"split": self._splits[slot].name, "position": position},
            "Check for an unclean leader election; undecided records are read again.",
        )

    def _resume_position(self, slot: int) -> TopicPartition:
        """Return where to resume.

        For a stream, librdkafka checks each new leader by the position's leader epoch. For a range,
        this class checks every record.
        """
        split = self._splits[slot]
        if not self._follows:
            return resume_position(split, self._progress.position(slot), None)
        return resume_position(split, self._records_end(slot), self._read.get(slot))

    def _records_end(self, slot: int) -> int:
        """Return the end of the last record: only markers follow, up to the position."""
        read = self._read.get(slot)
        return max(self._began[slot], 0 if read is None else read.end_offset)

    def _stall(self, slot: int) -> None:
        """Stop fetching a partition, and try again in a second."""
        split = self._splits[slot]
        if slot not in self._stalled_s:
            log.log(
                logging.DEBUG if slot in self._warned else logging.WARNING,
                "a partition cannot be read at the moment: split=%s",
                split.name,
            )
            self._warned.add(slot)
            self._stop(slot)
        self._stalled_s[slot] = time.monotonic() + _STALL_S

    def _try_stalled(self) -> None:
        now_s = time.monotonic()
        for slot in [slot for slot, at_s in self._stalled_s.items() if now_s >= at_s]:
            del self._stalled_s[slot]
            self._resume(slot)

    def _resume(self, slot: int) -> None:
        place = self._resume_position(slot)
        self._consumer.incremental_assign([place])
        self._check({slot: place})

    def _check(self, places: Mapping[int, TopicPartition]) -> None:
        """Make librdkafka check that the logs are still the ones that were read.

        A partition that cannot be checked yet is stalled. `_handle_events` gets a truncation.
        """
        deadline = Deadline(_SEEK_S)
        for slot, place in places.items():
            if place.leader_epoch is None:
                self._unchecked.add(slot)
            elif not seek_with_retries(self._consumer, place, deadline=deadline):
                self._stall(slot)

    def _stop(self, *slots: int) -> None:
        """Stop these partitions, and free their fetched records."""
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
            # Do not fetch more of finished ranges while other ranges are read.
            self._stop(*finished)

    def _require_progress(self) -> None:
        self._pooled.require_log_in(self._splits[0].topic)
        if self._follows:
            return
        if self.active():
            self._moved_at_s = self._clock_s()
        waited_s = self._clock_s() - self._moved_at_s
        if waited_s < self._reader.no_progress_timeout_s:
            if waited_s >= self._watch_after_s and not self._pooled.key.reports:
                self._watch_after_s = waited_s + self._silence_s
                self._watch()
            return
        raise UnreachableError(
            "the brokers sent nothing of the partitions in time",
            {
                "splits": _names(self._splits),
                "servers": self._reader.connection.bootstrap_servers,
                "waited_s": round(waited_s),
                "last_error": self._last_error.name() if self._last_error else "none",
            },
            "Check that the partitions have leaders and can be reached from the executors. After a "
            "truncation of a log, the next start or barrier raises DataLostError.",
        )

    def _watch(self) -> None:
        """Find out whether the client is busy with aborted records."""
        self._release_finished()  # a new client is not assigned them
        slots = self._progress.unfinished()
        if self._pooled.watch([self._splits[slot] for slot in slots]):
            self._fetcher.close()
            self._consumer = self._pooled.consumer
            self._fetcher = self._open_fetcher()
            self._assign(slots)


def _names(splits: Sequence[SplitRange]) -> str:
    return " ".join(f"{s.name}[{s.start_offset},{s.end_offset})" for s in splits)


def fetcher_of(
    pooled: PooledConsumer,
    keys: Sequence[PartitionKey],
    builder: ColumnBuilder,
    *,
    batch_bytes: int,
) -> Fetcher:
    """Return the fetcher of this consumer; a slot is an index into ``keys``."""
    if isinstance(pooled.consumer, NativeConsumer):
        return NativeFetcher(pooled.consumer, keys, builder, batch_bytes=batch_bytes)
    return PlainFetcher(pooled.consumer, keys, builder)
