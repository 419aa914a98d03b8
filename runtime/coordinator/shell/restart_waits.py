"""Waits of other threads for the coordinator: for a commit, a barrier, or a region's restart."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from sluice.runtime.contracts import Clock
from sluice.runtime.coordinator.core.events import (
    Action,
    FetchBarrierOffsets,
    GiveBarrier,
    NothingDue,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import RestartedRegion
from sluice.runtime.errors import WaitedTooLongError
from sluice.runtime.model.splits import Barrier, BatchKey

__all__ = [
    "BatchWaiters",
    "RequestedRestart",
    "Waiter",
    "WakeUp",
    "answer_in",
    "given",
    "result_within",
]


class RequestedRestart:
    """A requested restart. It is granted once the old attempt is settled (`callback-after-commit`)
    and its open work is swept (`abort-before-skip`).

    One thread polls it and may do other work meanwhile: the restart may wait for an epoch of
    another region. The end of the job ends it.

    Args:
        answer: of the coordinator's core.
        sweep: begins a sweep without waiting; the event is set after that attempt.
        sweep_limit_s: longest wait for the sweep; the next sweep comes in any case.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        answer: Future[RestartedRegion],
        *,
        sweep: Callable[[], threading.Event],
        sweep_limit_s: float,
        clock: Clock,
    ) -> None:
        self._answer = answer
        self._sweep = sweep
        self._sweep_limit_s = sweep_limit_s
        self._clock = clock
        self._swept: threading.Event | None = None
        self._until_s = 0.0
        answer.add_done_callback(self._answered)

    def _answered(self, answer: Future[RestartedRegion]) -> None:
        """Runs in the thread that answers, so that the sweep begins without a poll."""
        if answer.exception() is None:
            self._until_s = self._clock() + self._sweep_limit_s
            self._swept = self._sweep()

    def poll(self) -> RestartedRegion | None:
        """The new attempt and its start; None if it is not granted yet. Never blocks.

        Raises:
            StreamError: the job has ended.
        """
        if not self._answer.done():
            return None
        restarted = self._answer.result()
        if self._swept is None:
            return None  # `_answered` is still running
        is_swept = self._swept.is_set() or self._clock() >= self._until_s
        return restarted if is_swept else None


T = TypeVar("T")


class Waiter:
    """One thread's wait for one batch."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None

    def resolve(self, error: BaseException | None) -> None:
        """Wake the thread; with ``error`` it raises."""
        self._error = error
        self._done.set()

    def wait(self, timeout_s: float | None) -> bool:
        """True once the batch is committed, False if time is up; raises the batch's error."""
        if not self._done.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True


class BatchWaiters:
    """The waits for each batch. Any thread; it keeps only batches with a wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[BatchKey, list[Waiter]] = {}

    def add(self, batch: BatchKey) -> Waiter:
        """Add a wait; `remove` it afterwards."""
        waiter = Waiter()
        with self._lock:
            self._waiting.setdefault(batch, []).append(waiter)
        return waiter

    def remove(self, batch: BatchKey, waiter: Waiter) -> None:
        """Remove a wait; once for each `add`."""
        with self._lock:
            waiters = self._waiting[batch]
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[batch]

    def resolve(self, batches: Iterable[BatchKey], error: BaseException | None) -> None:
        """Wake all threads that wait for these batches."""
        with self._lock:
            found = [waiter for batch in batches for waiter in self._waiting.get(batch, [])]
        for waiter in found:
            waiter.resolve(error)


class WakeUp:
    """Counts changes, so that a poller misses no change between its poll and its wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0

    @property
    def version(self) -> int:
        """Changes so far."""
        with self._changed:
            return self._version

    def notify(self) -> None:
        """Count a change and wake all pollers."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def wait(self, version: int, timeout_s: float) -> None:
        """Wait until something has changed since ``version``, or time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, timeout_s)


def result_within(answer: "Future[T]", timeout_s: float, where: Mapping[str, object]) -> T:
    """The coordinator's answer to a request.

    Raises:
        WaitedTooLongError: there was no answer in time; the request may still be done later.
        StreamError: the answer itself, which may also be a WaitedTooLongError.
    """
    try:
        return answer.result(timeout_s)
    except FutureTimeoutError as err:
        if answer.done():
            return answer.result()  # it arrived just now, or the error is the answer
        raise WaitedTooLongError(
            "the coordinator did not carry out the request in time",
            {**where, "waited_s": timeout_s},
            "Find the slow checkpoint with `sluice job status`, then repeat the request: it may "
            "still succeed.",
        ) from err


def answer_in(actions: Sequence[Action]) -> GiveBarrier | FetchBarrierOffsets | NothingDue | None:
    """The core's answer to a poll, or to barrier offsets."""
    return next(
        (a for a in actions if isinstance(a, GiveBarrier | FetchBarrierOffsets | NothingDue)), None
    )


def given(
    answer: GiveBarrier | FetchBarrierOffsets | NothingDue | None, *, otherwise_s: float
) -> Barrier | float:
    """The barrier, or in how many seconds to poll again unless something changes.

    Args:
        otherwise_s: if the answer has no time.
    """
    if isinstance(answer, GiveBarrier):
        return answer.barrier
    if isinstance(answer, NothingDue) and answer.poll_in_s is not None:
        return answer.poll_in_s
    return otherwise_s
