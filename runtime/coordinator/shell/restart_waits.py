"""Requests of other threads that the core grants later: a restart, a checkpoint."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from sluice.runtime.contracts import Clock
from sluice.runtime.coordinator.policy.checkpoint_plan import RestartedRegion
from sluice.runtime.errors import WaitedTooLongError

__all__ = ["RequestedRestart", "result_within"]


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


def result_within(answer: "Future[T]", timeout_s: float | None, where: Mapping[str, object]) -> T:
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
