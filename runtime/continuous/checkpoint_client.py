"""Between a continuous task and its coordinator: asks for barriers, and brings what they ended."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from sluice.runtime.continuous.service_calls import call_with_retries
from sluice.runtime.continuous.task_messages import CommittedEpoch, EpochResult, NextBarrier
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import FencedError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.model.model import Barrier

__all__ = ["CheckpointClient", "CoordinatorLink", "EndedEpoch"]

log = logging.getLogger(__name__)

_POLL_S = 1.0
_JOIN_S = 5.0
_COMMIT_S = 1.5  # the driver waits a little longer before it looks itself


class EndedEpoch(Protocol):
    """An epoch that gets no further record. Used by the courier's thread."""

    def pre_commit(self) -> EpochResult:
        """Confirm that its sinks have all of it; it is kept, to be committed or released.

        Raises:
            StreamError: they do not, and it is aborted.
        """
        ...

    def commit(self, *, timeout_s: float) -> tuple[str, ...]:
        """It is decided: make it visible. Never raises; what it held is released.

        Returns operator ids of the sinks whose commit was acknowledged; of others nobody knows.
        """
        ...

    def release(self) -> None:
        """Somebody else finishes it: let go of what it holds, and end nothing. Never raises."""
        ...

    def abort(self) -> None:
        """It is not even pre-committed, and nobody will: end it. Never raises."""
        ...


class CoordinatorLink(Protocol):
    """How the coordinator is asked; every call may be repeated."""

    def next_barrier(
        self,
        region: str,
        attempt_id: int,
        *,
        wait_s: float,
        has_read: bool,
        committed: Sequence[CommittedEpoch] = (),
    ) -> NextBarrier:
        """The life's next barrier, once one is due and there is something to read or to end; at
        once where there is something to commit.

        Args:
            committed: what became of the epochs that were to be committed.
        """
        ...

    def acknowledge_epoch(self, result: EpochResult) -> None:
        """Returns when the coordinator has it."""
        ...


class CheckpointClient:
    """One epoch on its way at a time, in a thread of its own, while the task goes on. Executor.

    It asks for a barrier, hands it to the task, waits for the epoch that the task ends with it,
    pre-commits that and acknowledges it; only then it asks for the next one. So acknowledgements
    keep their order (`continuous-order`), and the task never waits for an answer. Between barriers
    it commits what is decided, and tells what was acknowledged with its next question.

    A coordinator that is silent is asked again and again, and what was not acknowledged yet stays
    as it is; after ``lost_timeout_s`` the task ends. One that has been superseded, or a newer life
    of the region, ends it at once: `FencedError`.

    Silence is the time in which the coordinator was asked and has not answered. It begins with a
    question: what the task does between two of them, a long function, fetch or flush, is none. And
    a try counts no more than the longest one takes: beyond that it was this process that stood
    still (stopped, no core, another thread that kept the interpreter), and it asks once more before
    it gives the coordinator up.

    So a task that runs ends after ``lost_timeout_s`` of silence, which lies below half of its
    transactions' time-out (`coordinator_timeout`), and one try at most. One that stood
    still ends as much later, but for one try, and could not have ended before. That prolongs
    nothing that it has open: how old a transaction is goes by the age clock (`host_clock`),
    here, where one that may have timed out is not pre-committed, and at the coordinator, which
    decides none after its ``decide_by_s``; and the broker ends it by a clock of its own.

    Args:
        link: to the coordinator; used by this thread alone.
        region, attempt_id: whose barriers.
        lost_timeout_s: how long nobody may answer who is asked.
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
        self._held: dict[int, EndedEpoch] = {}
        self._committed: tuple[CommittedEpoch, ...] = ()
        self._error: BaseException | None = None
        self._is_over = False
        self._is_closed = False
        self._committed_batch = -1
        self._thread = threading.Thread(target=self._run, name="sluice-courier", daemon=True)

    @property
    def committed_batch(self) -> int:
        """Last batch of this life that is known to be committed on record; -1: none."""
        return self._committed_batch

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def take(self) -> Barrier | None:
        """A barrier that has come since the last call; the task owes an ended epoch for it.

        Raises:
            StreamError: an epoch could not be pre-committed or acknowledged, or the life is over.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            barrier, self._barrier = self._barrier, None
            return barrier

    def require_wanted(self) -> None:
        """Raise where the task shall end: what ended the life, or FencedError where it is being
        stopped."""
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._is_over:
                raise FencedError(
                    "this life of the region is being stopped",
                    {"region": self._region, "attempt_id": self._attempt_id},
                    "The task ends; what is not decided is read again if it is wanted.",
                )

    def wait(self, timeout_s: float) -> None:
        """Until `take` has something to say, or time is up."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._barrier is not None or self._error is not None or self._is_over,
                timeout_s,
            )

    @property
    def is_over(self) -> bool:
        """Whether the life is being stopped in good order."""
        return self._is_over

    def hand_over(self, ended: EndedEpoch) -> None:
        """The epoch that the last barrier ends."""
        with self._changed:
            self._ended = ended
            self._changed.notify_all()

    def close(self) -> None:
        """The task ends. An acknowledgement that is on its way may still arrive."""
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
        try:
            while self._go_on():
                pass
        except BaseException as err:  # noqa: BLE001 - raised in the task's thread
            with self._changed:
                self._error = err
                self._changed.notify_all()
        finally:
            for ended in self._held.values():
                ended.release()  # their coordinator finishes them by hand

    def _go_on(self) -> bool:
        """One barrier, and the epoch that it ends; False: there is nothing more to do."""
        answer = self._asked(_POLL_S)
        if answer is None or answer.is_over:
            return self._end()
        self._forget(answer.committed_batch)
        if answer.barrier is not None:
            with self._changed:
                self._barrier = answer.barrier  # the task ends its epoch meanwhile
                self._changed.notify_all()
        for batch_id in answer.to_commit:
            self._commit(batch_id)
        if answer.barrier is None:
            return not self._is_closed
        if self._committed:
            answer = self._asked(0.0)  # the same barrier, or the life is being stopped
            if answer is None or answer.is_over:
                return self._end()
        return self._end_epoch()

    def _end(self) -> bool:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        return False

    def _asked(self, wait_s: float) -> NextBarrier | None:
        answer = self._patiently(
            lambda: self._link.next_barrier(
                self._region,
                self._attempt_id,
                wait_s=wait_s,
                has_read=self.has_read,
                committed=self._committed,
            )
        )
        self._committed = ()  # the coordinator has heard it, or the task ends
        return answer

    def _commit(self, batch_id: int) -> None:
        """Natively; whatever came of it, this producer is not used again
        (`outcome-from-broker`)."""
        held = self._held.pop(batch_id, None)
        failpoint("before-native-commit")
        operators = () if held is None else held.commit(timeout_s=_COMMIT_S)
        failpoint("after-native-commit")
        self._committed += (CommittedEpoch(batch_id=batch_id, operators=operators),)

    def _forget(self, committed_batch: int) -> None:
        for batch_id in [each for each in self._held if each <= committed_batch]:
            self._held.pop(batch_id).release()  # it was finished by hand
        # behind that: its ids may be used again (`ids-never-reused`)
        self._committed_batch = committed_batch

    def _end_epoch(self) -> bool:
        """Wait for the epoch that the barrier ends, and acknowledge it."""
        ended = self._exchanged()
        if ended is None:
            return False
        result = ended.pre_commit()
        self._held[result.batch.batch_id] = ended
        failpoint("after-pre-commit")
        self._patiently(lambda: self._link.acknowledge_epoch(result))
        failpoint("after-epoch-ack")
        return not self._is_closed

    def _exchanged(self) -> EndedEpoch | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended is not None or self._is_closed)
            ended, self._ended = self._ended, None
            return ended

    def _patiently(self, ask: Callable[[], "NextBarrier | None"]) -> "NextBarrier | None":
        return call_with_retries(
            ask,
            region=self._region,
            attempt_id=self._attempt_id,
            lost_timeout_s=self._lost_timeout_s,
            goes_on=lambda: not self._is_closed,
            clock=self._clock,
        )
