"""The driver's side of continuous tasks: gives them barriers, and turns epochs into
acknowledgements."""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.runtime.continuous.heartbeat import TaskHeartbeat
from sluice.runtime.continuous.native_commits import NativeCommits
from sluice.runtime.continuous.task_messages import CommittedEpoch, EpochResult, NextBarrier
from sluice.runtime.contracts import Coordinator, OpenWork, RegionRegistration
from sluice.runtime.errors import FencedError
from sluice.runtime.functions.at_most_once import drops_after
from sluice.runtime.functions.function_run import (
    ChainedFunction,
    require_other_topics,
    require_within_limits,
)
from sluice.runtime.functions.record_counts import added, totals_after
from sluice.runtime.model.model import (
    Acknowledgement,
    BatchKey,
    RecordCounts,
    RegionRecord,
    StateEntry,
)

__all__ = ["AttemptLog", "BarrierService"]

_LOOK_S = 0.25
_KEPT = 2


@dataclass(slots=True)
class AttemptLog:
    """The epochs of one life of a region. Driver, the service's threads.

    Args:
        region, attempt_id: whose.
        functions: of the region.
        operator_states: in the record that this life begins with.

    Attributes:
        is_stopping: the task is told to end.
        pulse: of the task.
        commits: that the task is asked for; given by the desk.
    """

    region: str
    attempt_id: int
    functions: Sequence[ChainedFunction] = ()
    operator_states: tuple[StateEntry, ...] = ()
    is_stopping: bool = False
    pulse: TaskHeartbeat = field(default_factory=TaskHeartbeat)
    commits: NativeCommits = field(init=False, default_factory=NativeCommits)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _told: Acknowledgement | None = None
    _committed_batch: int = -1
    _given: int = -1
    _told_through: int = -1
    _open: tuple[OpenWork, ...] = ()

    def stop(self) -> None:
        """Tell the task to end when it asks; nothing more is expected of it."""
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
        """Wait for the life's next barrier, see `poll_barrier`, or
        until there is something for the task to commit.

        Args:
            committed: what the task says of what it was to commit before.
        """
        with self.pulse.question():
            self.commits.answered(self.region, self.attempt_id, committed)
            answer = self._next(coordinator, wait_s=wait_s, has_read=has_read)
            if answer.barrier is not None:
                self._note(given=answer.barrier.checkpoint_id)
        return answer

    def _note(self, *, given: int = -1, told: int = -1) -> None:
        """Whether the task owes an epoch, by the newest barrier and the newest epoch: of questions
        that are asked again, the answers may overtake one another."""
        with self._lock:
            self._given = max(self._given, given)
            self._told_through = max(self._told_through, told)
            self.pulse.owes = self._given > self._told_through

    def _next(self, coordinator: Coordinator, *, wait_s: float, has_read: bool) -> NextBarrier:
        until_s = time.monotonic() + wait_s
        while not self.is_stopping:
            barrier = coordinator.poll_barrier(
                self.region,
                self.attempt_id,
                wait_s=max(0.0, min(until_s - time.monotonic(), _LOOK_S)),
                has_read=has_read,
                until=self._has_commits,
            )
            to_commit = self.commits.wanted(self.region, self.attempt_id)
            if to_commit and barrier is None:  # at once: which ids are free matters at a barrier
                return NextBarrier(
                    barrier=None, committed_batch=self._committed_batch, to_commit=to_commit
                )
            # Behind the poll: a cut that was not answered has taken longer than the wait.
            if barrier is not None or time.monotonic() >= until_s:
                committed_batch = self._look(coordinator)
                return NextBarrier(
                    barrier=barrier, committed_batch=committed_batch, to_commit=to_commit
                )
        return NextBarrier(barrier=None, is_over=True)

    def _has_commits(self) -> bool:
        return bool(self.commits.wanted(self.region, self.attempt_id))

    def _look(self, coordinator: Coordinator) -> int:
        """Which of the epochs are committed on record: their transactional ids are free again."""
        with self._lock:
            for work in self._open:
                if coordinator.is_committed(work.batch):
                    self._committed_batch = max(self._committed_batch, work.batch.batch_id)
            self._open = tuple(
                work for work in self._open if work.batch.batch_id > self._committed_batch
            )
            self.commits.settled(self.region, self.attempt_id, through=self._committed_batch)
            return self._committed_batch

    def acknowledge(self, coordinator: Coordinator, result: EpochResult) -> None:
        """Step 3 of the protocol. An epoch that is told again, since an answer was lost, is passed
        on as it was: its records count once.

        Raises:
            FencedError: the life is over.
            PoisonRecordsError, ConfigError: the epoch shall not be decided.
        """
        with self.pulse.question():
            self._acknowledge(coordinator, result)
            self._note(told=result.checkpoint_id)

    def _acknowledge(self, coordinator: Coordinator, result: EpochResult) -> None:
        with self._lock:
            if self._told is None or result.batch.batch_id > self._told.batch.batch_id:
                self._told = self._acknowledgement(result)
                self._open = (
                    *self._open,
                    OpenWork(batch=result.batch, committables=result.committables),
                )
                self.operator_states = self._told.region.operator_states
                self.commits.told(result.batch, result.committables)
            ack = self._told  # of one told again late, its successor's: that it is known is enough
        coordinator.acknowledge(ack)

    def _acknowledgement(self, result: EpochResult) -> Acknowledgement:
        require_other_topics(self.functions, result.ranges)
        counts = self._counted(result)
        region = RegionRecord(
            region=self.region,
            attempt_id=self.attempt_id,
            batch_id=result.batch.batch_id,
            splits=result.ranges,
            committables=result.committables,
            operator_states=(
                *totals_after(self.operator_states, counts),
                *drops_after(self.operator_states, ()),
            ),
        )
        return Acknowledgement(
            batch=result.batch,
            checkpoint_id=result.checkpoint_id,
            region=region,
            decide_by_s=result.decide_by_s,
            counts=added(
                {function.name: counts[function.operator_id]}
                for function in self.functions
                if function.operator_id in counts
            ),
        )

    def _counted(self, result: EpochResult) -> Mapping[str, RecordCounts]:
        none = {f.operator_id: RecordCounts() for f in self.functions if f.policy is not None}
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

    def registration(self) -> RegionRegistration:
        """See `sluice.runtime.contracts.RegionHandle.register`."""
        with self._lock:
            return RegionRegistration(
                region=self.region,
                attempt_id=self.attempt_id,
                acknowledged=None if self._told is None else self._told.checkpoint_id,
                open=self._open,
            )


class BarrierService:
    """All continuous regions of a job. Driver; any thread.

    Args:
        coordinator: of the job.
        commits: that tasks are asked for.
    """

    def __init__(self, coordinator: Coordinator, commits: NativeCommits | None = None) -> None:
        self._coordinator = coordinator
        self.commits = commits or NativeCommits()
        self.commits.wakes(coordinator.look_again)
        self._lock = threading.Lock()
        self._books: dict[str, AttemptLog] = {}

    def open(self, book: AttemptLog) -> None:
        """Serve a new life of a region; what an older one asks or says is refused from now on."""
        with self._lock:
            book.commits = self.commits
            self._books[book.region] = book
            self.commits.begin(book.region, book.attempt_id)

    def next_barrier(
        self,
        region: str,
        attempt_id: int,
        *,
        wait_s: float,
        has_read: bool,
        committed: Iterable[CommittedEpoch] = (),
    ) -> NextBarrier:
        """See `AttemptLog.next_barrier`; FencedError for a life that is over."""
        book = self._book(region, attempt_id)
        try:
            return book.next_barrier(
                self._coordinator, wait_s=wait_s, has_read=has_read, committed=committed
            )
        except FencedError:
            self.commits.end(region, attempt_id)  # its task ends when it hears this
            raise

    def heard(self, batch: BatchKey) -> None:
        """That life's task, if it is a continuous one, tells of something else: it has its core.

        One that waits for brokers before its first epoch asks for no barrier yet.
        """
        with self._lock:
            book = self._books.get(batch.region)
        if book is not None and book.attempt_id == batch.attempt_id:
            with book.pulse.question():
                pass

    def is_stopping(self, batch: BatchKey) -> bool:
        """Whether the task of that life of a region, if it is a continuous one, is told to end."""
        with self._lock:
            book = self._books.get(batch.region)
        return book is not None and (book.attempt_id != batch.attempt_id or book.is_stopping)

    def acknowledge(self, result: EpochResult) -> None:
        """See `AttemptLog.acknowledge`."""
        book = self._book(result.batch.region, result.batch.attempt_id)
        book.acknowledge(self._coordinator, result)

    def _book(self, region: str, attempt_id: int) -> AttemptLog:
        with self._lock:
            book = self._books.get(region)
        if book is None or book.attempt_id != attempt_id:
            raise FencedError(
                "this is not the newest life of the region",
                {
                    "region": region,
                    "attempt_id": attempt_id,
                    "newest": None if book is None else book.attempt_id,
                },
                "What it left open is swept, and its range is read again.",
            )
        return book
