"""The loop of a continuous task: read, apply, write; a barrier ends the epoch at its position."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from sluice.runtime.continuous.checkpoint_client import CheckpointClient, EndedEpoch
from sluice.runtime.continuous.task_messages import EpochResult
from sluice.runtime.continuous.task_time import TaskTime
from sluice.runtime.contracts import Clock, ContinuousWriter, RecordsRead, RecordStream
from sluice.runtime.contracts.keyed import BarrierTime
from sluice.runtime.errors import IllegalTransitionError, UnreachableError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.functions.function_run import FunctionRun
from sluice.runtime.functions.function_states import FunctionStates
from sluice.runtime.functions.split_clocks import SplitClocks
from sluice.runtime.functions.stage_timer import StageTimer
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.keyed.keyed_run import KeyedRun
from sluice.runtime.keyed.keyed_task import EndedState, KeyedTask
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import Barrier, BatchKey, SplitKey, SplitRange
from sluice.runtime.model.timestamps import later
from sluice.runtime.process.failed_tasks import note_ranges
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantClock

__all__ = ["EpochScope", "OpenWriters", "TaskLoop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochScope:
    """The facts about an epoch when it begins.

    Attributes:
        batch: its identity.
        checkpoint_id: of the checkpoint that it will probably join.
        committed_batch: see `sluice.runtime.contracts.TaskScope`.
    """

    batch: BatchKey
    checkpoint_id: int
    committed_batch: int


_FEW_RECORDS = 1_000
_FEW_BYTES = 100_000  # large records come in batches of few, however many wait
# A poll of few records costs as much as one of many. A barrier ends a pause, and its epoch has the
# records that have arrived by then, so a longer pause does not delay them.
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.25
_PAUSES = 4  # in an epoch, about
_LONGEST_POLL_GAP_S = 5.0  # between two polls for records; in a longer gap the task did other work

OpenWriters = Callable[[EpochScope], TaskWriters[ContinuousWriter]]


@dataclass(slots=True)
class _Epoch:
    """The epoch that is being written: its start offsets, its writers, and the time it took."""

    batch: BatchKey
    starts: Mapping[SplitKey, int]
    writers: TaskWriters[ContinuousWriter]
    functions: FunctionRun | KeyedRun
    timer: StageTimer
    paused: tuple[SplitKey, ...] = ()


@dataclass(frozen=True, slots=True)
class _EndedEpoch(EndedEpoch):
    """Implements `sluice.runtime.continuous.checkpoint_client.EndedEpoch`."""

    epoch: _Epoch
    checkpoint_id: int
    ranges: tuple[SplitRange, ...]
    clock: Clock
    operator_states: tuple[StateEntry, ...]
    keyed: EndedState | None

    def pre_commit(self) -> EpochResult:
        epoch, keyed = self.epoch, self.keyed
        epoch.timer.enter("flush_s")
        try:
            # While the file is written, the brokers take the epoch's last records.
            keyed_state = None if keyed is None else keyed.write(epoch.batch)
            committables = epoch.writers.pre_commit()
        except BaseException:
            epoch.writers.abort()  # it is not acknowledged, and never will be
            raise
        return EpochResult(
            batch=epoch.batch,
            checkpoint_id=self.checkpoint_id,
            ranges=self.ranges,
            committables=committables,
            counts=tuple(epoch.functions.counts.items()),
            examples=tuple(epoch.functions.examples.items()),
            failed_rows=tuple(epoch.functions.failed_rows.items()),
            decide_by_s=epoch.writers.decide_by_s,
            stages=epoch.timer.times(),
            paused=epoch.paused,
            operator_states=self.operator_states,
            keyed_state=keyed_state,
            due=None if keyed is None else keyed.due,
            key_samples=() if keyed is None else keyed.key_samples,
        )

    def commit(self, *, timeout_s: float) -> tuple[str, ...]:
        """See `EndedEpoch.commit`: one sink after the other."""
        deadline_s = self.clock() + timeout_s
        return tuple(
            operator_id
            for operator_id, writer in self.epoch.writers.writers.items()
            if writer.commit(timeout_s=max(0.0, deadline_s - self.clock()))
        )

    def release(self) -> None:
        for writer in self.epoch.writers.writers.values():
            writer.release()

    def abort(self) -> None:
        self.epoch.writers.abort()


class TaskLoop:
    """One attempt of a region, in one task. Executor, the task's thread.

    As soon as the sinks have all records of an epoch, the next epoch begins, with a producer of its
    own. The client meanwhile pre-commits and acknowledges the ended one (`CheckpointClient`).
    Records become visible only after the epochs before them: the coordinator decides in order, and
    an abort ends the attempt with all its open epochs (`continuous-order`).

    The barrier says where an epoch begins. A split that was assigned to the region begins there.
    The coordinator may have another position for a split, or may have assigned it to another
    region. Then the task aborts its epoch and reads it again from the barrier's positions.

    Args:
        region, attempt_id: the attempt.
        stream: of the region's splits, at their first position; the caller closes it.
        client: to the coordinator, not started yet.
        open_writers: for a new epoch.
        functions: made for each epoch, since they count its records.
        states: of these functions; None: they have none.
        keyed: keyed functions and their state, with that of the stream's splits; None: none. It
            makes the run of each epoch then.
        begins_after: newest checkpoint when the attempt began.
        clocks: of the pipeline's source; None: its rows have no event time.
        leaders: leader epochs of the splits at the attempt's begin, as far as they are known.
        no_progress_timeout_s: if nothing of a split is fetched for so long, though barriers say
            that it has records, the task ends. Time in functions and sinks does not count.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        region: str,
        attempt_id: int,
        *,
        stream: RecordStream,
        client: CheckpointClient,
        open_writers: OpenWriters,
        functions: Callable[[], FunctionRun],
        states: FunctionStates | None = None,
        keyed: KeyedTask | None = None,
        begins_after: int,
        clocks: SplitClocks | None = None,
        leaders: Mapping[SplitKey, int] | None = None,
        no_progress_timeout_s: float = 120.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self._no_progress_timeout_s = no_progress_timeout_s
        self._clock = clock
        self._reading_clock = PauseTolerantClock(clock, longest_step_s=_LONGEST_POLL_GAP_S)
        self._stalled: dict[SplitKey, tuple[int, float]] = {}
        self._region = region
        self._attempt_id = attempt_id
        self._stream = stream
        self._client = client
        self._open_writers = open_writers
        self._functions = functions if keyed is None else keyed.begin_epoch
        self._states = states or FunctionStates(())
        self._keyed = keyed
        self._last_checkpoint_id = begins_after
        self._leaders = dict(leaders or {})
        self._time = TaskTime(stream, clocks)
        self._barrier: Barrier | None = None
        self._began_s = clock()
        self._pause_s = _SHORTEST_PAUSE_S
        self._next_batch_id = 0
        self._epoch = self._begin(stream.positions())

    def run(self) -> None:
        """Until the attempt is stopped.

        Raises:
            StreamError: the task cannot continue; its unacknowledged records never become visible.
        """
        self._client.start()
        try:
            while not self._client.is_over:
                if not self.step():  # a batch of few records costs what one of many does
                    self._client.wait(self._pause_s)
        finally:
            try:
                self._epoch.writers.abort()
            finally:
                self._client.close()

    def step(self) -> bool:
        """Poll for a barrier and for records, write the records, and end the epoch for a barrier.

        Records that arrive with a barrier belong to its epoch: in the next one they would be late
        by a whole interval.

        Returns whether the batch was large, so that more records may be there.
        """
        self._reading_clock()  # each poll is a step of this clock
        barrier = self._client.take_barrier()
        if barrier is not None:
            self._barrier = self._adopt(barrier)
            self._time.note_barrier(barrier)
        if self._states.broadcasts.waits:
            return False  # a barrier brings the first version
        if self._barrier is None and self._keyed is not None and self._keyed.is_full:
            return False  # the next barrier makes room
        timer = self._epoch.timer
        timer.enter("read_s")
        batch = self._stream.poll()
        timer.enter(None)
        if batch is not None:
            self._client.has_read = True
            self._write(batch)
            self._time.align()
        if self._barrier is not None:
            self._require_progress(self._barrier)
            if self._has_read(self._barrier) and not self._rereads_markers(self._barrier):
                self._end(self._barrier)
                self._barrier = None
        return batch is not None and not _is_small(batch)

    def _write(self, batch: pa.RecordBatch) -> None:
        epoch = self._epoch
        write_dead_letter = epoch.writers.write_dead_letter
        self._write_made(epoch.functions.applied(iter((batch,)), write_dead_letter))

    def _write_made(self, output: Iterator[pa.RecordBatch]) -> None:
        """Write the output of the epoch's functions."""
        epoch = self._epoch
        timer = epoch.timer
        timer.enter("function_s")
        try:
            for made in output:
                timer.enter("write_s")
                epoch.writers.write(made)
                timer.enter("function_s")
        except Exception as err:
            note_ranges(err, self._ranges_read())  # the batch may not have its offsets
            raise
        timer.enter(None)

    def _ranges_read(self) -> str:
        """The epoch's ranges up to here, as text."""
        at = self._stream.positions()
        return ",".join(
            f"{topic}-{partition}[{start},{at[source_id, topic, partition]})"
            for (source_id, topic, partition), start in self._epoch.starts.items()
        )

    # --- barriers -----------------------------------------------------------------------------

    def _adopt(self, barrier: Barrier) -> Barrier:
        """Read the barrier's splits, from its start offsets."""
        starts = {split.key: split.start_offset for split in barrier.splits}
        known, new_state = self._epoch.starts, barrier.new_state
        if not self._states.broadcasts.has(barrier.broadcasts):
            self._states.adopt(barrier.broadcasts)
            if self._client.has_read:
                self._read_again(barrier)  # with the tables that all regions use
                return barrier
        is_replaced = new_state is not None and any(s.key in known for s in new_state.splits)
        if starts == known and not is_replaced:
            return barrier
        if known.items() <= starts.items() and not is_replaced:
            restarts = {**starts, **self._after_records()}
            self._adopt_state(barrier)
            self._time.restart_at([_from(s, restarts[s.key]) for s in barrier.splits])
            self._epoch.starts = starts
        else:
            # Also for a split that begins at a later offset, or has another state: another region
            # may have had it meanwhile, and what it read is decided.
            self._read_again(barrier)
        return barrier

    def _adopt_state(self, barrier: Barrier) -> None:
        """Load the keyed state of new splits, and drop that of splits that have left."""
        if self._keyed is not None:
            failpoint("before-state-adopted")
            self._keyed.adopt(barrier.splits, barrier.new_state)
            failpoint("after-state-adopted")

    def _after_records(self) -> dict[SplitKey, int]:
        """The positions for a new consumer: just after the epoch's last records.

        The new consumer reads the markers after them again. A new leader's log may have records at
        those offsets, and a position after the markers would skip them.
        """
        read = self._stream.records_read()
        return {
            key: max(start, read[key].end_offset) if key in read else start
            for key, start in self._epoch.starts.items()
        }

    def _rereads_markers(self, barrier: Barrier) -> bool:
        """Whether to read markers again that the barrier's leader may not have.

        That leader was elected since the last barrier. The driver has checked its log up to the
        epoch's start, and will not check the markers inside the epoch. So a consumer that knows the
        new leader reads them again.
        """
        at, ends, leaders = self._stream.positions(), self._after_records(), _leaders_of(barrier)
        found = any(
            self._leaders.get(key, leader) < leader and at[key] > ends[key]
            for key, leader in leaders.items()
        )
        self._leaders |= leaders
        if found:
            self._time.restart_at([_from(split, ends[split.key]) for split in barrier.splits])
        return found

    def _read_again(self, barrier: Barrier) -> None:
        """Abort this epoch, which no decision names, and read it again."""
        self._epoch.writers.abort()
        failpoint("after-epoch-rewound")
        self._states.rollback()
        if self._keyed is not None:
            self._keyed.rollback()
            self._adopt_state(barrier)
        self._stalled.clear()  # these positions are no longer those of the stream
        self._leaders |= _leaders_of(barrier)
        self._time.forget()
        self._time.restart_at(barrier.splits)
        self._epoch = self._begin({split.key: split.start_offset for split in barrier.splits})

    def _has_read(self, barrier: Barrier) -> bool:
        """Whether the epoch may end: it has read something, or the barrier has nothing to read."""
        if all(split.is_empty or split.key in self._time.paused for split in barrier.splits):
            return True
        at = self._stream.positions()
        return any(at[key] > start for key, start in self._epoch.starts.items())

    def _require_progress(self, barrier: Barrier) -> None:
        """Detect a split that the driver can read and this host cannot.

        Raises:
            UnreachableError: nothing of it was fetched for too long.
        """
        at, active, now_s = self._stream.positions(), self._stream.active(), self._reading_clock()
        for split in barrier.splits:
            before, since_s = self._stalled.get(split.key, (None, now_s))
            if at[split.key] >= split.end_offset:
                self._stalled.pop(split.key, None)
            elif before != at[split.key] or split.key in active or split.key in self._time.paused:
                self._stalled[split.key] = (at[split.key], now_s)
            elif now_s - since_s >= self._no_progress_timeout_s:
                raise UnreachableError(
                    "a split has records, but this task receives none",
                    {
                        "split": split.name,
                        "position": at[split.key],
                        "readable_to": split.end_offset,
                        "waited_s": round(now_s - since_s),
                    },
                    "Check that the partition's leader can be reached from the executors.",
                )

    def _end(self, barrier: Barrier) -> None:
        epoch, at, now_s = self._epoch, self._stream.positions(), self._clock()
        read_to = self._stream.records_read()
        _require_same_leader(barrier, read_to)
        lasted_s, self._began_s = now_s - self._began_s, now_s
        self._pause_s = min(max(lasted_s / _PAUSES, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
        ranges = tuple(
            self._time.ended(
                _range(
                    split, epoch.starts[split.key], at[split.key], read_to.get(split.key), barrier
                )
            )
            for split in barrier.splits
        )
        read = [split for split in ranges if not split.is_empty]
        epoch.paused = tuple(sorted(self._time.paused))
        failpoint("before-epoch-end")
        at_barrier = BarrierTime(
            watermark_ms=barrier.watermark_ms, now_ms=barrier.time_ms, is_end=barrier.is_end
        )
        letters = epoch.writers.write_dead_letter
        self._write_made(epoch.functions.at_barrier(at_barrier, letters))
        states = self._states.end_epoch()
        keyed = None if self._keyed is None else self._keyed.end_epoch(at_barrier)
        failpoint("after-state-frozen")
        epoch.timer.enter("flush_s")
        for writer in epoch.writers.writers.values():
            writer.end_epoch(read, checkpoint_id=barrier.checkpoint_id)
        epoch.timer.enter(None)
        self._last_checkpoint_id = barrier.checkpoint_id
        self._states.adopt(barrier.next_broadcasts)
        streaming = self._begin({split.key: split.end_offset for split in ranges})
        # From here on the old epoch may be acknowledged, and this thread must not abort it.
        self._epoch = streaming
        self._client.submit_epoch(
            _EndedEpoch(epoch, barrier.checkpoint_id, ranges, self._clock, states, keyed)
        )
        failpoint("after-epoch-begun")

    def _begin(self, starts: Mapping[SplitKey, int]) -> _Epoch:
        batch = BatchKey(
            region=self._region, attempt_id=self._attempt_id, batch_id=self._next_batch_id
        )
        self._next_batch_id += 1
        self._client.has_read = False
        scope = EpochScope(
            batch=batch,
            checkpoint_id=self._last_checkpoint_id + 1,
            committed_batch=self._client.committed_batch,
        )
        return _Epoch(
            batch=batch,
            starts=dict(starts),
            writers=self._open_writers(scope),
            functions=self._functions(),
            timer=StageTimer(clock=self._clock),
        )


def _is_small(batch: pa.RecordBatch) -> bool:
    return bool(batch.num_rows < _FEW_RECORDS and batch.nbytes < _FEW_BYTES)


def _require_same_leader(barrier: Barrier, read_to: Mapping[SplitKey, RecordsRead]) -> None:
    """The records must come from a log that also has the records before them.

    At an attempt's begin the driver checks that for the barrier's leader. A leader that was elected
    after that barrier may lack records before the first one that the attempt has read from it, and
    have other records there. The driver would never check it, because later barriers begin after
    that record.

    Raises:
        UnreachableError: the attempt ends; the next one's first barrier has the new leader.
    """
    for split in barrier.splits:
        read = read_to.get(split.key)
        first, judged = None if read is None else read.first_epoch, split.leader_epoch
        if first is not None and judged is not None and first > judged:
            raise UnreachableError(
                "records come from a newer leader, which may lack earlier ones",
                {"split": split.name, "leader_epoch": first, "barrier_leader_epoch": judged},
                "Let the region restart: it checks that leader's log and reads the records again.",
            )


def _range(
    split: SplitRange, start: int, end: int, read: RecordsRead | None, barrier: Barrier
) -> SplitRange:
    """The range that was read, and the leader epoch on record for it.

    Up to the start, the driver has checked the log of the barrier's leader. After that, only the
    records themselves name their leader epoch. For markers after the last record it is unknown.

    Args:
        split: of the barrier.
    """
    if end < start:
        raise IllegalTransitionError(
            "an epoch ends before its start offset",
            {"split": split.name, "start_offset": start, "end_offset": end},
            "Report this bug with these offsets. No record of this epoch becomes visible.",
        )
    known_end, epoch = split.leader_epoch_end, split.leader_epoch
    known_end = start if known_end is None else known_end
    if read is not None and read.end_offset > start:
        known_end, epoch, _ = read
        if epoch is None and end <= split.end_offset:
            known_end, epoch = end, split.leader_epoch  # a later one may have written what follows
    return replace(
        split,
        start_offset=start,
        end_offset=end,
        leader_epoch=epoch,
        leader_epoch_end=None if epoch is None or known_end == end else known_end,
        barrier_watermark_ms=later(split.barrier_watermark_ms, barrier.watermark_ms),
    )


def _leaders_of(barrier: Barrier) -> dict[SplitKey, int]:
    """The known leader epochs, by split."""
    found = {split.key: split.leader_epoch for split in barrier.splits}
    return {key: leader for key, leader in found.items() if leader is not None}


def _from(split: SplitRange, offset: int) -> SplitRange:
    """The split, read from ``offset``."""
    return replace(split, start_offset=offset, end_offset=max(offset, split.end_offset))
