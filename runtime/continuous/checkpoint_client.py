"""A continuous task's side of the protocol: polls for barriers, acknowledges and commits epochs."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sluice.runtime.continuous.task_messages import CommittedEpoch, EpochResult, NextBarrier
from sluice.runtime.contracts import Clock, RegisteredAttempt, WaitRegistry
from sluice.runtime.errors import CoordinatorLostError, FencedError, UnreachableError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.splits import Barrier, BatchKey
from sluice.runtime.process.pause_tolerant_clock import PauseTolerantClock

__all__ = ["CheckpointClient", "CoordinatorLink", "EndedEpoch", "TaskRegistry"]

log = logging.getLogger(__name__)

_POLL_S = 1.0
_JOIN_S = 5.0
_COMMIT_S = 1.5  # the driver waits a little longer before it commits itself
_PAUSE_S = 0.05  # between two tries
_LONGEST_TRY_S = 30.0
"""A connection, an answer that takes its time, and a lookup of the leader."""

T = TypeVar("T")


class EndedEpoch(Protocol):
    """An epoch that gets no further record. Used by the client's thread."""

    def pre_commit(self) -> EpochResult:
        """Confirm that its sinks have all records; the epoch stays open for a commit or a release.

        Raises:
            StreamError: they do not have them, and the epoch is aborted.
        """
        ...

    def commit(self, *, timeout_s: float) -> tuple[str, ...]:
        """The epoch is decided: make it visible, and release its producers. Never raises.

        Returns the operator ids of the sinks whose commit was acknowledged; of the other sinks the
        outcome is unknown.
        """
        ...

    def release(self) -> None:
        """Release the epoch's producers without a commit or an abort. Never raises."""
        ...

    def abort(self) -> None:
        """End an epoch that is not pre-committed and never will be. Never raises."""
        ...


class CoordinatorLink(Protocol):
    """The coordinator's service; every call may be repeated."""

    def next_barrier(
        self,
        region: str,
        attempt_id: int,
        *,
        wait_s: float,
        has_read: bool,
        committed: Sequence[CommittedEpoch] = (),
    ) -> NextBarrier:
        """The attempt's next barrier, once one is due and there are records to read or to end.
        Returns at once if there is an epoch to commit.

        Args:
            committed: the outcome of the commits that an earlier answer requested.
        """
        ...

    def acknowledge_epoch(self, result: EpochResult) -> None:
        """Returns when the coordinator has the result."""
        ...


class CheckpointClient:
    """Brings one epoch at a time to the coordinator, in a thread of its own. Executor.

    It polls for a barrier and passes it to the task, which ends its epoch and writes on. Then it
    pre-commits the ended epoch, acknowledges it, and polls for the next barrier. So
    acknowledgements keep their order (`continuous-order`), and the task never waits for an answer.
    Between barriers it commits decided epochs, and reports the outcome with its next poll.

    It repeats a call that gets no answer, and keeps every epoch that is not acknowledged. After
    ``lost_timeout_s`` without an answer the task ends. It ends at once if another coordinator or
    a newer attempt of the region has taken over: `FencedError`.

    Only time in a call counts as time without an answer: a long function, fetch or flush of the
    task does not. One try counts for no more than the longest try takes. Beyond that this process
    was paused (stopped, no core, or another thread held the interpreter), and it makes one more try
    before it gives up.

    So a running task ends after ``lost_timeout_s`` and one try at most, which is less than half of
    its transactions' timeout (`LostTimeout`). A paused task ends later, and could not have ended
    before. Its transactions do not live longer for that. Their age goes by the boot-time clock
    (`host_clock`). The task pre-commits none that may have timed out. The coordinator decides none
    after its ``decide_by_s``. The broker ends it by a clock of its own.

    Args:
        link: to the coordinator; used by this thread alone.
        region, attempt_id: the attempt.
        lost_timeout_s: how long the coordinator may leave calls without an answer.
        clock: monotonic seconds.

    Attributes:
        has_read: the epoch that is being written has records; set by the task.
    """

    def __init__(
        self,
        link: CoordinatorLink,
        region: str,
        attempt_id: int,
        *,
        lost_timeout_s: float,
        clock: Clock = time.monotonic,
    ) -> None:
        self._link = link
        self._region = region
        self._attempt_id = attempt_id
        self._lost_timeout_s = lost_timeout_s
        self._clock = clock
        self.has_read = False
        self._changed = threading.Condition()
        self._barrier: Barrier | None = None
        self._ended: EndedEpoch | None = None
        self._pre_committed: dict[int, EndedEpoch] = {}
        self._committed: tuple[CommittedEpoch, ...] = ()
        self._error: BaseException | None = None
        self._is_over = False
        self._is_closed = False
        self._committed_batch = -1
        self._thread = threading.Thread(
            target=self._run, name="sluice-checkpoint-client", daemon=True
        )

    @property
    def committed_batch(self) -> int:
        """Last batch of this attempt that is known to be committed on record; -1: none."""
        return self._committed_batch

    def start(self) -> None:
        """Begin to poll."""
        self._thread.start()

    def take_barrier(self) -> Barrier | None:
        """A barrier that has arrived since the last call; the task owes an ended epoch for it.

        Raises:
            StreamError: an epoch could not be pre-committed or acknowledged, or the attempt is
                over.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            barrier, self._barrier = self._barrier, None
            return barrier

    def require_running(self) -> None:
        """Raise if the task shall end: the error that ended the attempt, or FencedError if the
        driver stops it, or the task has ended already."""
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._is_over or self._is_closed:
                raise FencedError(
                    "the driver stops this attempt of the region",
                    {"region": self._region, "attempt_id": self._attempt_id},
                    "Let the task end: a later attempt reads the undecided records again.",
                )

    def wait(self, timeout_s: float) -> None:
        """Until there is a barrier, an error or the end, or time is up."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._barrier is not None or self._error is not None or self._is_over,
                timeout_s,
            )

    @property
    def is_over(self) -> bool:
        """Whether the driver stops the attempt in good order."""
        return self._is_over

    def submit_epoch(self, ended: EndedEpoch) -> None:
        """Pass on the epoch that the last barrier ends."""
        with self._changed:
            self._ended = ended
            self._changed.notify_all()

    def close(self) -> None:
        """The task ends. An acknowledgement that is being sent may still arrive."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(_JOIN_S)
        with self._changed:
            ended, self._ended = self._ended, None
        if ended is not None:  # the thread had failed before it took the epoch
            ended.abort()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        with self._reported():
            while self._run_epoch():
                pass
        for ended in self._pre_committed.values():
            with self._reported():
                ended.release()  # the coordinator finishes them

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """The task's thread raises the first error, so this thread never ends in silence."""
        try:
            yield
        except BaseException as err:  # noqa: BLE001 - see above
            with self._changed:
                self._error = self._error or err
                self._changed.notify_all()

    def _run_epoch(self) -> bool:
        """One barrier, and the epoch that it ends; False: there is nothing more to do."""
        answer = self._poll(_POLL_S)
        if answer is None or answer.is_over:
            return self._end()
        self._release_through(answer.committed_batch)
        if answer.barrier is not None:
            with self._changed:
                self._barrier = answer.barrier  # the task ends its epoch meanwhile
                self._changed.notify_all()
        for batch_id in answer.to_commit:
            self._commit(batch_id)
        if answer.barrier is None:
            return not self._is_closed
        if self._committed:
            answer = self._poll(0.0)  # the same barrier, or the end
            if answer is None or answer.is_over:
                return self._end()
        return self._acknowledge_epoch()

    def _end(self) -> bool:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        return False

    def _poll(self, wait_s: float) -> NextBarrier | None:
        answer = self.call(
            lambda: self._link.next_barrier(
                self._region,
                self._attempt_id,
                wait_s=wait_s,
                has_read=self.has_read,
                committed=self._committed,
            ),
            is_needed=lambda: not self._is_closed,
        )
        self._committed = ()  # the coordinator has it, or the task ends
        return answer

    def _commit(self, batch_id: int) -> None:
        """Commit in the task. Whatever the outcome, this producer is not used again
        (`outcome-from-broker`)."""
        ended = self._pre_committed.pop(batch_id, None)
        failpoint("before-native-commit")
        operators = () if ended is None else ended.commit(timeout_s=_COMMIT_S)
        failpoint("after-native-commit")
        self._committed += (CommittedEpoch(batch_id=batch_id, operators=operators),)

    def _release_through(self, committed_batch: int) -> None:
        for batch_id in [each for each in self._pre_committed if each <= committed_batch]:
            self._pre_committed.pop(batch_id).release()  # the coordinator has committed it
        # Set after the release: from here on the ids may be used again (`ids-never-reused`).
        self._committed_batch = committed_batch

    def _acknowledge_epoch(self) -> bool:
        """Wait for the epoch that the barrier ends, pre-commit and acknowledge it."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended is not None or self._is_closed)
            ended, self._ended = self._ended, None
        if ended is None:
            return False
        result = ended.pre_commit()
        self._pre_committed[result.batch.batch_id] = ended
        failpoint("after-pre-commit")
        self.call(
            lambda: self._link.acknowledge_epoch(result), is_needed=lambda: not self._is_closed
        )
        failpoint("after-epoch-ack")
        return not self._is_closed

    def call(self, call: Callable[[], T], *, is_needed: Callable[[], bool]) -> T | None:
        """Repeat a call to the coordinator until it has an answer; any thread of the task.

        Args:
            call: one try.
            is_needed: whether the answer is still needed; called after each failed try, may raise.
        Returns:
            The answer; None: it is not needed any more.
        Raises:
            CoordinatorLostError: the coordinator has not answered for ``lost_timeout_s``.
        """
        calling = PauseTolerantClock(self._clock, longest_step_s=_LONGEST_TRY_S)
        since_s, was_paused = calling(), False
        while True:
            began_s = self._clock()
            try:
                return call()
            except UnreachableError as err:
                waited_s = calling() - since_s
                was_paused_before, was_paused = was_paused, self._clock() - began_s > _LONGEST_TRY_S
                if not is_needed():
                    return None
                is_excused = was_paused and not was_paused_before
                if waited_s >= self._lost_timeout_s and not is_excused:
                    raise CoordinatorLostError(
                        "the coordinator has not answered for too long",
                        {
                            "region": self._region,
                            "attempt_id": self._attempt_id,
                            "waited_s": round(waited_s, 1),
                            "reason": str(err),
                        },
                        "Check that the driver runs and can be reached. This task stops; the next "
                        "coordinator aborts its unacknowledged work and reads it again.",
                    ) from err
                log.warning("no answer from the coordinator: error=%s", err)
                time.sleep(_PAUSE_S)  # a try that another service answers ends at once


@dataclass(frozen=True, slots=True)
class TaskRegistry(WaitRegistry):
    """Implements `sluice.runtime.contracts.WaitRegistry`. Executor, the task's thread.

    A task that waits for brokers, or for an answer, does not check for barriers. It still ends if
    its checkpoint client finds that the attempt is over or the coordinator is lost.

    Attributes:
        client: to the coordinator; gives up within seconds.
        checkpoint_client: of the task.
    """

    client: WaitRegistry
    checkpoint_client: CheckpointClient

    def register(self, attempt: RegisteredAttempt) -> float:
        """See `sluice.runtime.contracts.AttemptRegistry.register`.

        Raises:
            CoordinatorLostError: the coordinator has not answered for too long, here or in the
                checkpoint client.
            FencedError: the attempt is over.
        """
        at_s = self.checkpoint_client.call(
            lambda: self.client.register(attempt), is_needed=self._is_running
        )
        assert at_s is not None  # `_is_running` returns True or raises
        return at_s

    def waits(self, batch: BatchKey, what: str, *, why: str) -> None:
        self.checkpoint_client.require_running()
        self.client.waits(batch, what, why=why)

    def waited(self, batch: BatchKey, what: str) -> None:
        self.client.waited(batch, what)

    def _is_running(self) -> bool:
        self.checkpoint_client.require_running()
        return True
