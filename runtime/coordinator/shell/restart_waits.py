"""Threads that wait for the coordinator: callbacks for their commit, pollers for a barrier.

A region's next life, as whoever asked for it sees it: not granted yet, or where it begins.
"""

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
from sluice.runtime.model.model import Barrier, BatchKey

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
    """Granted once the old life is settled (`callback-after-commit`) and what it left open is
    swept (`abort-before-skip`).

    Polled by one thread, which may do other things meanwhile: what is waited for may be another
    region's epoch. It ends with the job, at the latest.

    Args:
        answer: of the coordinator's core.
        sweep: begins a sweep without waiting; the event is set once that was tried.
        sweep_limit_s: so long a sweep is waited for; the next one comes in any case.
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
        """In the thread that answers: nobody has to come by for the sweep to begin."""
        if answer.exception() is None:
            self._until_s = self._clock() + self._sweep_limit_s
            self._swept = self._sweep()

    def poll(self) -> RestartedRegion | None:
        """The new life's attempt and where it begins; None: not yet. Never blocks.

        Raises:
            StreamError: the job has ended.
        """
        if not self._answer.done():
            return None
        restarted = self._answer.result()
        if self._swept is None:
            return None  # answered in this moment
        is_swept = self._swept.is_set() or self._clock() >= self._until_s
        return restarted if is_swept else None


T = TypeVar("T")


class Waiter:
    """One thread's wait for one batch."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None

    def resolve(self, error: BaseException | None) -> None:
        """Let the thread go on; with ``error`` it raises."""
        self._error = error
        self._done.set()

    def wait(self, timeout_s: float | None) -> bool:
        """True when committed on record, False when time ran out; raises the batch's error."""
        if not self._done.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True


class BatchWaiters:
    """Who waits for which batch. Any thread; keeps nothing that nobody waits for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[BatchKey, list[Waiter]] = {}

    def add(self, batch: BatchKey) -> Waiter:
        """A new wait; `remove` it afterwards."""
        waiter = Waiter()
        with self._lock:
            self._waiting.setdefault(batch, []).append(waiter)
        return waiter

    def remove(self, batch: BatchKey, waiter: Waiter) -> None:
        """The wait is over; once for each `add`."""
        with self._lock:
            waiters = self._waiting[batch]
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[batch]

    def resolve(self, batches: Iterable[BatchKey], error: BaseException | None) -> None:
        """Wake everybody who waits for these batches."""
        with self._lock:
            found = [waiter for batch in batches for waiter in self._waiting.get(batch, [])]
        for waiter in found:
            waiter.resolve(error)


class WakeUp:
    """Counts changes, so that a poller that looked before a change never sleeps through it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0

    @property
    def version(self) -> int:
        """Changes so far."""
        with self._changed:
            return self._version

    def notify(self) -> None:
        """Something changed: pollers look again."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def wait(self, version: int, timeout_s: float) -> None:
        """Until something has changed since ``version``, or time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, timeout_s)


def result_within(answer: "Future[T]", timeout_s: float, where: Mapping[str, object]) -> T:
    """The coordinator's answer to a wish.

    Raises:
        WaitedTooLongError: it did not get to it in time; it may do so later.
        StreamError: its own answer, also where that is a wait of its own that took too long.
    """
    try:
        return answer.result(timeout_s)
    except FutureTimeoutError as err:
        if answer.done():
            return answer.result()  # it came just now; or the error is the answer
        raise WaitedTooLongError(
            "the coordinator did not get to it in time",
            {**where, "waited_s": timeout_s},
            "A checkpoint before it is slow: `sluice job status` shows which. It may still be "
            "done; ask again.",
        ) from err


def answer_in(actions: Sequence[Action]) -> GiveBarrier | FetchBarrierOffsets | NothingDue | None:
    """What the core says to somebody who polls, or has cut."""
    return next(
        (a for a in actions if isinstance(a, GiveBarrier | FetchBarrierOffsets | NothingDue)), None
    )


def given(
    answer: GiveBarrier | FetchBarrierOffsets | NothingDue | None, *, otherwise_s: float
) -> Barrier | float:
    """The barrier, or in how many seconds to ask again unless something changes.

    Args:
        otherwise_s: where the answer does not say.
    """
    if isinstance(answer, GiveBarrier):
        return answer.barrier
    if isinstance(answer, NothingDue) and answer.look_in_s is not None:
        return answer.look_in_s
    return otherwise_s
