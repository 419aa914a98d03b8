"""The loop of a continuous task: read, apply, write; a barrier ends an epoch where it is."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from sluice.runtime.continuous.checkpoint_client import CheckpointClient
from sluice.runtime.continuous.task_messages import EpochResult
from sluice.runtime.contracts import Clock, ContinuousWriter, RecordsRead, RecordStream
from sluice.runtime.errors import IllegalTransitionError, UnreachableError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.functions.function_run import FunctionRun
from sluice.runtime.functions.task_writers import TaskWriters
from sluice.runtime.model.model import Barrier, BatchKey, SplitKey, SplitRange
from sluice.runtime.process.boot_clock import PauseTolerantClock

__all__ = ["EpochScope", "OpenWriters", "TaskLoop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochScope:
    """What is known of an epoch when it begins.

    Attributes:
        batch: its identity.
        checkpoint_id: that it is expected to join: a hint.
        committed_batch: see `sluice.runtime.contracts.TaskScope`.
    """

    batch: BatchKey
    checkpoint_id: int
    committed_batch: int


_FEW_RECORDS = 1_000
_FEW_BYTES = 100_000  # large records come in batches of few, however many wait
# A barrier ends a pause, and what has come by then belongs to its epoch: a longer one costs nobody
# time, and each look at few records as much as one at many.
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.25
_PAUSES = 4  # in an epoch, about
_LONGEST_LOOK_S = 5.0  # from one look for records to the next; beyond, the task did something else

OpenWriters = Callable[[EpochScope], TaskWriters[ContinuousWriter]]


@dataclass(slots=True)
class _Epoch:
    """The one that is being written: where it began, and its writers."""

    batch: BatchKey
    starts: Mapping[SplitKey, int]
    writers: TaskWriters[ContinuousWriter]
    functions: FunctionRun


@dataclass(frozen=True, slots=True)
class _EndedEpoch:
    """Implements `sluice.runtime.continuous.checkpoint_client.EndedEpoch`."""

    epoch: _Epoch
    checkpoint_id: int
    ranges: tuple[SplitRange, ...]
    clock: Clock

    def pre_commit(self) -> EpochResult:
        """See `EndedEpoch.pre_commit`."""
        epoch = self.epoch
        try:
            committables = epoch.writers.pre_commit()
        except BaseException:
            epoch.writers.abort()  # it was not acknowledged, and never will be
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
        """See `EndedEpoch.release`."""
        for writer in self.epoch.writers.writers.values():
            writer.release()

    def abort(self) -> None:
        """See `EndedEpoch.abort`."""
        self.epoch.writers.abort()


class TaskLoop:
    """One life of a region, in one task. Executor, the task's thread.

    The next epoch begins, with a producer of its own, as soon as the sinks have taken the last one;
    that is confirmed and acknowledged meanwhile (`CheckpointClient`). What is written before its
    predecessor is decided can only become visible behind it: the coordinator decides in order, and
    an abort ends the life, with all that is open in it (`continuous-order`).

    Where an epoch begins, the barrier says: a split that the life has been given begins there, and
    where the coordinator has another mind of what was read, or has given a split away, the epoch is
    thrown away and read again from there.

    Args:
        region, attempt_id: whose life it is.
        follower: of the region's splits, at their first position; the caller closes it.
        courier: to the coordinator, not started yet.
        open_writers: for a new epoch.
        functions: made for each epoch, since they count its records.
        begins_after: newest checkpoint when the life began.
        leaders: of the splits' logs, where it began, as far as they are known.
        no_progress_timeout_s: a split of which nothing comes for so long, though barriers say that
            there is more, ends the task. What functions and sinks took is not the brokers' silence.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        region: str,
        attempt_id: int,
        *,
        follower: RecordStream,
        checkpoint_client: CheckpointClient,
        open_writers: OpenWriters,
        functions: Callable[[], FunctionRun],
        begins_after: int,
        leaders: Mapping[SplitKey, int] | None = None,
        no_progress_timeout_s: float = 120.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self._no_progress_timeout_s = no_progress_timeout_s
        self._clock = clock
        self._looks = PauseTolerantClock(clock, longest_step_s=_LONGEST_LOOK_S)
        self._behind: dict[SplitKey, tuple[int, float]] = {}
        self._region = region
        self._attempt_id = attempt_id
        self._follower = follower
        self._checkpoint_client = checkpoint_client
        self._open_writers = open_writers
        self._functions = functions
        self._last_checkpoint_id = begins_after
        self._leaders = dict(leaders or {})
        self._barrier: Barrier | None = None
        self._began_s = clock()
        self._pause_s = _SHORTEST_PAUSE_S
        self._next_batch_id = 0
        self._epoch = self._begin(follower.positions())

    def run(self) -> None:
        """Until the life is stopped.

        Raises:
            StreamError: it cannot go on; nothing that was not acknowledged becomes visible.
        """
        self._checkpoint_client.start()
        try:
            while not self._checkpoint_client.is_over:
                if not self.step():  # a batch of few records costs what one of many does
                    self._checkpoint_client.wait(self._pause_s)
        finally:
            try:
                self._epoch.writers.abort()
            finally:
                self._checkpoint_client.close()

    def step(self) -> bool:
        """Look for a barrier, read and write what has come, and end the epoch if it is asked for.

        What has come belongs to the epoch that is asked for: in the next one it would be late by a
        whole interval.

        Returns whether so much has come that there may be more at once.
        """
        self._looks()  # also where no barrier asks what has come of it
        barrier = self._checkpoint_client.take()
        if barrier is not None:
            self._barrier = self._adopt(barrier)
        batch = self._follower.poll()
        if batch is not None:
            self._checkpoint_client.has_read = True
            self._write(batch)
        if self._barrier is not None:
            self._require_progress(self._barrier)
            if self._has_read(self._barrier) and not self._passes_again(self._barrier):
                self._end(self._barrier)
                self._barrier = None
        return batch is not None and not _is_small(batch)

    def _write(self, batch: pa.RecordBatch) -> None:
        epoch = self._epoch
        for made in epoch.functions.applied(iter((batch,)), epoch.writers.write_dead_letter):
            epoch.writers.write(made)

    # --- barriers -----------------------------------------------------------------------------

    def _adopt(self, barrier: Barrier) -> Barrier:
        """Follow the splits that the barrier is about, from where it says that they begin."""
        asked = {split.key: split.start_offset for split in barrier.splits}
        known = self._epoch.starts
        if asked == known:
            return barrier
        if known.items() <= asked.items():
            places = {**asked, **self._behind_records()}
            self._follower.restart_at([_from(s, places[s.key]) for s in barrier.splits])
            self._epoch.starts = asked
        else:
            # Also where a split begins further on than it did: another region may have had it
            # meanwhile, and its records are decided.
            self._read_again(barrier)
        return barrier

    def _behind_records(self) -> dict[SplitKey, int]:
        """Where to go on by another consumer: behind the epoch's last records. Markers that follow
        are passed again; where another log has records in their place by now, these would be passed
        over, for a place behind them is believed."""
        read = self._follower.records_read()
        return {
            key: max(start, read[key].end_offset) if key in read else start
            for key, start in self._epoch.starts.items()
        }

    def _passes_again(self, barrier: Barrier) -> bool:
        """Whether markers that were passed may be of a log that the barrier's leader lacks.

        It was elected since the last barrier. The driver has asked it for what lies before the
        epoch, and would not ask for what lies within, which is its own once the epoch has ended. So
        they are passed again, by a consumer that knows of it.
        """
        at, ends, leaders = self._follower.positions(), self._behind_records(), _leaders_of(barrier)
        found = any(
            self._leaders.get(key, leader) < leader and at[key] > ends[key]
            for key, leader in leaders.items()
        )
        self._leaders |= leaders
        if found:
            self._follower.restart_at([_from(split, ends[split.key]) for split in barrier.splits])
        return found

    def _read_again(self, barrier: Barrier) -> None:
        """What was read of this epoch is in nobody's decision."""
        self._epoch.writers.abort()
        failpoint("after-epoch-rewound")
        self._behind.clear()  # what was seen at these positions is no silence of theirs
        self._leaders |= _leaders_of(barrier)
        self._follower.restart_at(barrier.splits)
        self._epoch = self._begin({split.key: split.start_offset for split in barrier.splits})

    def _has_read(self, barrier: Barrier) -> bool:
        """Whether there is anything to end: the barrier says that something can be read."""
        if all(split.is_empty for split in barrier.splits):
            return True
        at = self._follower.positions()
        return any(at[key] > start for key, start in self._epoch.starts.items())

    def _require_progress(self, barrier: Barrier) -> None:
        """A split that the driver can read and this host cannot must not be left behind unseen.

        Raises:
            UnreachableError: with its name.
        """
        at, now_s = self._follower.positions(), self._looks()
        for split in barrier.splits:
            before, since_s = self._behind.get(split.key, (None, now_s))
            if at[split.key] >= split.end_offset:
                self._behind.pop(split.key, None)
            elif before != at[split.key]:
                self._behind[split.key] = (at[split.key], now_s)
            elif now_s - since_s >= self._no_progress_timeout_s:
                raise UnreachableError(
                    "no record of a split comes, though there are some",
                    {
                        "split": split.name,
                        "position": at[split.key],
                        "readable_to": split.end_offset,
                        "silent_s": round(now_s - since_s),
                    },
                    "Check that the partition's leader can be reached from the executors.",
                )

    def _end(self, barrier: Barrier) -> None:
        epoch, at, now_s = self._epoch, self._follower.positions(), self._clock()
        read_to = self._follower.records_read()
        _require_judged(barrier, read_to)
        lasted_s, self._began_s = now_s - self._began_s, now_s
        self._pause_s = min(max(lasted_s / _PAUSES, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
        ranges = tuple(
            _range(split, epoch.starts[split.key], at[split.key], read_to.get(split.key))
            for split in barrier.splits
        )
        read = [split for split in ranges if not split.is_empty]
        failpoint("before-epoch-end")
        for writer in epoch.writers.writers.values():
            writer.end_epoch(read, checkpoint_id=barrier.checkpoint_id)
        self._last_checkpoint_id = barrier.checkpoint_id
        streaming = self._begin({split.key: split.end_offset for split in ranges})
        # From here on the old epoch may be acknowledged, and nobody here may abort it.
        self._epoch = streaming
        self._checkpoint_client.hand_over(
            _EndedEpoch(epoch, barrier.checkpoint_id, ranges, self._clock)
        )
        failpoint("after-epoch-begun")

    def _begin(self, starts: Mapping[SplitKey, int]) -> _Epoch:
        batch = BatchKey(
            region=self._region, attempt_id=self._attempt_id, batch_id=self._next_batch_id
        )
        self._next_batch_id += 1
        self._checkpoint_client.has_read = False
        scope = EpochScope(
            batch=batch,
            checkpoint_id=self._last_checkpoint_id + 1,
            committed_batch=self._checkpoint_client.committed_batch,
        )
        return _Epoch(
            batch=batch,
            starts=dict(starts),
            writers=self._open_writers(scope),
            functions=self._functions(),
        )


def _is_small(batch: pa.RecordBatch) -> bool:
    return bool(batch.num_rows < _FEW_RECORDS and batch.nbytes < _FEW_BYTES)


def _require_judged(barrier: Barrier, read_to: Mapping[SplitKey, RecordsRead]) -> None:
    """What is read must follow on what was read before.

    Where a life begins the driver asks for that, of the leader that a barrier is cut under. One
    that was elected behind the cut may lack what lies before the first record that the life has
    read of it, and have others in its place. It would never be asked: the position would be its.

    Raises:
        UnreachableError: the life ends; the next one's first barrier is cut under that leader.
    """
    for split in barrier.splits:
        read = read_to.get(split.key)
        first, judged = None if read is None else read.first_epoch, split.leader_epoch
        if first is not None and judged is not None and first > judged:
            raise UnreachableError(
                "records are of a later leader than their barrier, which may lack earlier ones",
                {"split": split.name, "leader_epoch": first, "barrier_leader_epoch": judged},
                "Nothing of them is decided; they are read again once that leader was asked.",
            )


def _range(split: SplitRange, start: int, end: int, read: RecordsRead | None) -> SplitRange:
    """What was read, and which leader is told of it.

    Of the barrier's leader the driver knows that its log is the one that was read, up to the start;
    of what the task has read since, only the records themselves tell. Who wrote the markers behind
    the last one, nobody does.

    Args:
        split: of the barrier.
    """
    if end < start:
        raise IllegalTransitionError(
            "an epoch ends before it begins",
            {"split": split.name, "start_offset": start, "end_offset": end},
            "Nothing of it becomes visible. This is a bug: please report it with these offsets.",
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
    )


def _leaders_of(barrier: Barrier) -> dict[SplitKey, int]:
    """By split, where it is known."""
    found = {split.key: split.leader_epoch for split in barrier.splits}
    return {key: leader for key, leader in found.items() if leader is not None}


def _from(split: SplitRange, offset: int) -> SplitRange:
    """The split, to be read from ``offset`` on."""
    return replace(split, start_offset=offset, end_offset=max(offset, split.end_offset))
