"""The driver's side of continuous tasks: sends them barriers, and turns their epochs into
acknowledgements."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from sluice.runtime.continuous.native_commits import NativeCommits
from sluice.runtime.continuous.task_messages import CommittedEpoch, EpochResult, NextBarrier
from sluice.runtime.contracts import Clock, Coordinator, OpenWork, RegionRegistration
from sluice.runtime.errors import FencedError
from sluice.runtime.functions.at_most_once import drops_after
from sluice.runtime.functions.function_run import (
    ChainedFunction,
    require_other_topics,
    require_within_limits,
)
from sluice.runtime.functions.function_states import states_after
from sluice.runtime.functions.record_counts import added, totals_after
from sluice.runtime.functions.split_clocks import clocks_of
from sluice.runtime.model.acknowledgement import Acknowledgement, RecordCounts
from sluice.runtime.model.checkpoint_record import RegionRecord, StateEntry
from sluice.runtime.model.event_time import least_watermark_ms
from sluice.runtime.model.splits import BatchKey, SplitKey, SplitRange
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.process.host_clock import wall_ms
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantClock

__all__ = [
    "KEYED_STATE",
    "LONGEST_STEP_S",
    "AttemptEpochs",
    "BarrierService",
    "TaskHeartbeat",
    "open_work",
]

_POLL_S = 0.25
KEYED_STATE = "keyed state"
"""What a task waits for while it loads its state, or cannot write its changes."""
LONGEST_STEP_S = 15.0
"""Far above the usual time between two checks of an attempt, of about one second, and between two
requests of its task. A longer step means that the driver was paused and received no request."""


class TaskHeartbeat:
    """How long a task has sent no request: it polls for barriers all the time. Driver, any thread.

    Only time in which the driver runs counts (see `PauseTolerantClock`): its pauses add none.

    Args:
        clock: monotonic seconds.

    Attributes:
        has_begun: the task has sent a request.
        owes_epoch: the task has a barrier; then the checkpoint's timeout bounds it.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.has_begun = False
        self.owes_epoch = False
        self._clock = PauseTolerantClock(clock, longest_step_s=LONGEST_STEP_S)
        self._lock = threading.Lock()
        self._open_requests = 0
        self._last_s = self._clock()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Open while the driver answers a request, which may take a while."""
        with self._lock:
            self.has_begun = True
            self._open_requests += 1
        try:
            yield
        finally:
            with self._lock:
                self._open_requests -= 1
                self._last_s = self._clock()

    def overdue_s(self) -> float:
        """Seconds since the last request, while the task should send one; else 0."""
        with self._lock:
            now_s = self._clock()  # also where it is not used: each call is a step of the clock
            if self._open_requests or self.owes_epoch or not self.has_begun:
                return 0.0
            return now_s - self._last_s


@dataclass(slots=True)
class AttemptEpochs:
    """The epochs of one attempt of a region. Driver, the service's threads.

    Args:
        region, attempt_id: the attempt.
        functions: of the region.
        operator_states: in the record that this attempt begins with.
        splits, keyed_state: in that record.

    Attributes:
        is_stopping: the task shall end with its next poll.
        heartbeat: of the task.
        commits: that the task shall do; set by the barrier service.
    """

    region: str
    attempt_id: int
    functions: Sequence[ChainedFunction] = ()
    operator_states: tuple[StateEntry, ...] = ()
    splits: tuple[SplitKey, ...] = ()
    keyed_state: KeyedState | None = None
    is_stopping: bool = False
    heartbeat: TaskHeartbeat = field(default_factory=TaskHeartbeat)
    commits: NativeCommits = field(init=False, default_factory=NativeCommits)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last_ack: Acknowledgement | None = None
    _committed_batch: int = -1
    _barrier_through: int = -1
    _acknowledged_through: int = -1
    _loaded: int | None = None
    _open: tuple[OpenWork, ...] = ()

    @classmethod
    def resumed(
        cls,
        region: str,
        attempt_id: int,
        functions: Sequence[ChainedFunction],
        record: RegionRecord,
    ) -> Self:
        """An attempt that an earlier coordinator has started.

        Args:
            record: of the region in the last decision, which is committed on record.
        """
        made = cls(region, attempt_id, functions, record.operator_states)
        if record.attempt_id == attempt_id and record.batch_id is not None:
            made._committed_batch = record.batch_id
        return made

    def is_decided(self, batch: BatchKey) -> bool:
        """Whether the record that an attempt was resumed with has the batch, or a later one."""
        return batch.batch_id <= self._committed_batch

    def stop(self) -> None:
        """Let the task end with its next poll, and expect nothing more from it."""
        self.is_stopping = True
        self.commits.end(self.region, self.attempt_id)

    def next_barrier(
        self,
        coordinator: Coordinator,
        *,
        wait_s: float,
        has_read: bool,
        committed: Iterable[CommittedEpoch] = (),
    ) -> NextBarrier:
        """Wait for the attempt's next barrier (`poll_barrier`), or for an epoch to commit.

        Args:
            committed: the task's report of the commits that an earlier answer requested.
        """
        with self.heartbeat.request():
            self.commits.report(self.region, self.attempt_id, committed)
            answer = self._poll(coordinator, wait_s=wait_s, has_read=has_read)
            if answer.barrier is not None:
                self._note(barrier=answer.barrier.checkpoint_id)
        return answer

    def _note(self, *, barrier: int = -1, acknowledged: int = -1) -> None:
        """Update whether the task owes an epoch, from the newest barrier and the newest epoch: a
        repeated request may get its answer after a later one."""
        with self._lock:
            self._barrier_through = max(self._barrier_through, barrier)
            self._acknowledged_through = max(self._acknowledged_through, acknowledged)
            self.heartbeat.owes_epoch = self._barrier_through > self._acknowledged_through

    def _poll(self, coordinator: Coordinator, *, wait_s: float, has_read: bool) -> NextBarrier:
        until_s = time.monotonic() + wait_s
        while not self.is_stopping:
            barrier = coordinator.poll_barrier(
                self.region,
                self.attempt_id,
                wait_s=max(0.0, min(until_s - time.monotonic(), _POLL_S)),
                has_read=has_read,
                until=self._has_commits,
            )
            to_commit = self.commits.requested(self.region, self.attempt_id)
            if to_commit and barrier is None:  # at once: the freed ids matter only with a barrier
                return NextBarrier(
                    barrier=None, committed_batch=self._committed_batch, to_commit=to_commit
                )
            # Checked after the poll: barrier offsets that were not fetched took longer than that.
            if barrier is not None or time.monotonic() >= until_s:
                committed_batch = self._update_committed(coordinator)
                return NextBarrier(
                    barrier=barrier, committed_batch=committed_batch, to_commit=to_commit
                )
        return NextBarrier(barrier=None, is_over=True)

    def _has_commits(self) -> bool:
        return bool(self.commits.requested(self.region, self.attempt_id))

    def _update_committed(self, coordinator: Coordinator) -> int:
        """The last epoch that is committed on record: the transactional ids up to it are free."""
        with self._lock:
            for work in self._open:
                if coordinator.is_committed(work.batch):
                    self._committed_batch = max(self._committed_batch, work.batch.batch_id)
            self._open = tuple(
                work for work in self._open if work.batch.batch_id > self._committed_batch
            )
            self.commits.remove_epochs(self.region, self.attempt_id, through=self._committed_batch)
            return self._committed_batch

    def acknowledge(self, coordinator: Coordinator, result: EpochResult) -> None:
        """Step 3 of the protocol. If an answer was lost, the task repeats its epoch: the same
        acknowledgement is sent again, and its records count once. So do those of an epoch whose
        answer an earlier coordinator owed: the totals on record contain them.

        Raises:
            FencedError: the attempt is over.
            PoisonRecordsError, ConfigError: the epoch must not be decided.
        """
        with self.heartbeat.request():
            with self._lock:
                if self._last_ack is None or result.batch.batch_id > self._last_ack.batch.batch_id:
                    self._last_ack = self._acknowledgement(result)
                    self._open = (
                        *self._open,
                        open_work(result),
                    )
                    self.operator_states = self._last_ack.region.operator_states
                    self.commits.add_epoch(result.batch, result.committables)
                # For an epoch that is repeated late this is its successor's: the first one arrived.
                ack = self._last_ack
            coordinator.acknowledge(ack)
            self._note(acknowledged=result.checkpoint_id)

    def _acknowledgement(self, result: EpochResult) -> Acknowledgement:
        require_other_topics(self.functions, result.ranges)
        counts = self._counts(result)
        region = RegionRecord(
            region=self.region,
            attempt_id=self.attempt_id,
            batch_id=result.batch.batch_id,
            splits=result.ranges,
            least_watermark_ms=self._least_watermark_ms(result.ranges),
            committables=result.committables,
            operator_states=self._states_after(result, counts),
            keyed_state=result.keyed_state,
        )
        return Acknowledgement(
            batch=result.batch,
            checkpoint_id=result.checkpoint_id,
            region=region,
            decide_by_s=result.decide_by_s,
            due=result.due,
            key_samples=result.key_samples,
            stages=result.stages,
            paused=result.paused,
            counts=added(
                {function.name: counts[function.operator_id]}
                for function in self.functions
                if function.operator_id in counts
            ),
        )

    def _states_after(
        self, result: EpochResult, counts: Mapping[str, RecordCounts]
    ) -> tuple[StateEntry, ...]:
        if self.is_decided(result.batch):
            return self.operator_states
        return (
            *totals_after(self.operator_states, counts),
            *drops_after(self.operator_states, ()),
            *states_after(self.operator_states, result.operator_states, self.functions),
        )

    def _least_watermark_ms(self, ranges: Sequence[SplitRange]) -> int | None:
        clocks = clocks_of(self.functions)
        if clocks is None:
            return None
        return least_watermark_ms(ranges, clocks.time, now_ms=wall_ms())

    def _counts(self, result: EpochResult) -> Mapping[str, RecordCounts]:
        none = {f.operator_id: RecordCounts() for f in self.functions if f.is_counted}
        counts = added([none, dict(result.counts)])
        where = {"region": self.region, "checkpoint_id": result.checkpoint_id}
        require_within_limits(
            self.functions,
            counts,
            dict(result.examples),
            where,
            failed_rows=dict(result.failed_rows),
        )
        return counts

    def note_loading(self) -> RegionRegistration:
        """The task is loading keyed state, and makes progress: no limit applies to its start."""
        with self._lock:
            self._loaded = 1 + (self._loaded or 0)
        return self.registration()

    def registration(self) -> RegionRegistration:
        """See `sluice.runtime.contracts.RegionHandle.register`."""
        with self._lock:
            return RegionRegistration(
                region=self.region,
                attempt_id=self.attempt_id,
                acknowledged=None if self._last_ack is None else self._last_ack.checkpoint_id,
                open=self._open,
                replayed=self._loaded,
            )


def open_work(result: EpochResult) -> OpenWork:
    """The work of a pre-committed epoch."""
    return OpenWork(batch=result.batch, committables=result.committables, splits=result.ranges)


class BarrierService:
    """All continuous regions of a job. Driver; any thread.

    Args:
        coordinator: of the job.
        commits: that tasks shall do.
    """

    def __init__(self, coordinator: Coordinator, commits: NativeCommits | None = None) -> None:
        self._coordinator = coordinator
        self.commits = commits or NativeCommits()
        self.commits.wake_polls_with(coordinator.wake_waiters)
        self._lock = threading.Lock()
        self._attempts: dict[str, AttemptEpochs] = {}

    def open(self, attempt: AttemptEpochs) -> None:
        """Serve a region's new attempt; from now on requests of an older one are refused."""
        with self._lock:
            attempt.commits = self.commits
            self._attempts[attempt.region] = attempt
            self.commits.begin(attempt.region, attempt.attempt_id)

    def next_barrier(
        self,
        region: str,
        attempt_id: int,
        *,
        wait_s: float,
        has_read: bool,
        committed: Iterable[CommittedEpoch] = (),
    ) -> NextBarrier:
        """See `AttemptEpochs.next_barrier`; FencedError if the attempt is over."""
        attempt = self._newest(region, attempt_id)
        try:
            return attempt.next_barrier(
                self._coordinator, wait_s=wait_s, has_read=has_read, committed=committed
            )
        except FencedError:
            self.commits.end(region, attempt_id)  # its task ends when it gets this error
            raise

    def note_heartbeat(self, batch: BatchKey, waits_for: str = "") -> bool:
        """A task has sent another request; if it is a continuous one, it has a core and runs.
        Returns whether it is the present attempt of a continuous region.

        A task that waits for brokers before its first epoch polls for no barrier yet. A task
        that loads its keyed state does not either: a load may take longer than any timeout.

        Raises:
            FencedError: the attempt is over.
        """
        with self._lock:
            attempt = self._attempts.get(batch.region)
        if attempt is None or attempt.attempt_id != batch.attempt_id:
            return False
        with attempt.heartbeat.request():
            pass
        if waits_for == KEYED_STATE and not attempt.is_stopping:
            self._coordinator.register_region(attempt.note_loading())
        return True

    def is_stopping(self, batch: BatchKey) -> bool:
        """Whether this attempt's task is a continuous one and shall end."""
        with self._lock:
            attempt = self._attempts.get(batch.region)
        return attempt is not None and (
            attempt.attempt_id != batch.attempt_id or attempt.is_stopping
        )

    def acknowledge(self, result: EpochResult) -> None:
        """See `AttemptEpochs.acknowledge`."""
        attempt = self._newest(result.batch.region, result.batch.attempt_id)
        attempt.acknowledge(self._coordinator, result)

    def _newest(self, region: str, attempt_id: int) -> AttemptEpochs:
        with self._lock:
            attempt = self._attempts.get(region)
        if attempt is None or attempt.attempt_id != attempt_id:
            raise FencedError(
                "a newer attempt of the region has replaced this one",
                {
                    "region": region,
                    "attempt_id": attempt_id,
                    "newest": None if attempt is None else attempt.attempt_id,
                },
                "Ignore this: the coordinator sweeps the older attempt's open work, and the newer "
                "one reads its range again.",
            )
        return attempt
