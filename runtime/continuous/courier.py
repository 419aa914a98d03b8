"""Between a continuous task and its coordinator: asks for barriers, and brings what they ended."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from runtime.continuous.messages import EpochResult, NextBarrier
from runtime.contracts import Clock
from runtime.errors import CoordinatorLostError, UnreachableError
from runtime.failpoints import failpoint
from runtime.model import Barrier

__all__ = ["CoordinatorLink", "Courier", "Ended"]

log = logging.getLogger(__name__)

_POLL_S = 1.0
_JOIN_S = 5.0

Ended = Callable[[], EpochResult]
"""Pre-commits an epoch that gets no further record."""


def _aged(result: EpochResult, elapsed_s: float) -> EpochResult:
    """As it is told after so long."""
    if result.decide_within_s is None:
        return result
    return replace(result, decide_within_s=result.decide_within_s - elapsed_s)


class CoordinatorLink(Protocol):
    """How the coordinator is asked; every call may be repeated."""

    def next_barrier(
        self, region: str, generation: int, *, wait_s: float, has_read: bool
    ) -> NextBarrier:
        """The life's next barrier, once one is due and there is something to read or to end."""
        ...

    def acknowledge_epoch(self, result: EpochResult) -> None:
        """Returns when the coordinator has it."""
        ...


class Courier:
    """One epoch on its way at a time, in a thread of its own, while the task goes on. Executor.

    It asks for a barrier, hands it to the task, waits for the epoch that the task ends with it,
    pre-commits that and acknowledges it; only then it asks for the next one. So acknowledgements
    keep their order (rule 18), and the task never waits for an answer.

    A coordinator that is silent is asked again and again, and what was not acknowledged yet stays
    as it is; after ``lost_timeout_s`` the task ends. One that has been superseded, or a newer life
    of the region, ends it at once: `FencedError`.

    Args:
        link: to the coordinator; used by this thread alone.
        region, generation: whose barriers.
        lost_timeout_s: how long nobody may answer.
        clock: monotonic seconds.

    Attributes:
        has_read: the epoch that is being written has records; set by the task.
    """

    def __init__(
        self,
        link: CoordinatorLink,
        region: str,
        generation: int,
        *,
        lost_timeout_s: float,
        clock: Clock = time.monotonic,
    ) -> None:
        self._link = link
        self._region = region
        self._generation = generation
        self._lost_timeout_s = lost_timeout_s
        self._clock = clock
        self.has_read = False
        self._changed = threading.Condition()
        self._barrier: Barrier | None = None
        self._ended: Ended | None = None
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

    def hand_over(self, ended: Ended) -> None:
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

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._go_on():
                pass
        except BaseException as err:  # noqa: BLE001 - raised in the task's thread
            with self._changed:
                self._error = err
                self._changed.notify_all()

    def _go_on(self) -> bool:
        """One barrier, and the epoch that it ends; False: there is nothing more to do."""
        answer = self._patiently(
            lambda: self._link.next_barrier(
                self._region, self._generation, wait_s=_POLL_S, has_read=self.has_read
            )
        )
        if answer is None or answer.is_over:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
            return False
        self._committed_batch = answer.committed_batch
        if answer.barrier is None:
            return not self._is_closed
        ended = self._exchanged(answer.barrier)
        if ended is None:
            return False
        result, since_s = ended(), self._clock()
        failpoint("after-pre-commit")
        self._patiently(
            lambda: self._link.acknowledge_epoch(_aged(result, self._clock() - since_s))
        )
        failpoint("after-epoch-ack")
        return not self._is_closed

    def _exchanged(self, barrier: Barrier) -> Ended | None:
        with self._changed:
            self._barrier = barrier
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended is not None or self._is_closed)
            ended, self._ended = self._ended, None
            return ended

    def _patiently(self, ask: Callable[[], "NextBarrier | None"]) -> "NextBarrier | None":
        """Ask until answered, as long as the task may live without a coordinator."""
        silent_since_s = self._clock()
        while True:
            try:
                return ask()
            except UnreachableError as err:
                silent_s = self._clock() - silent_since_s
                if self._is_closed:
                    return None
                if silent_s >= self._lost_timeout_s:
                    raise CoordinatorLostError(
                        "the coordinator has been silent for too long",
                        {
                            "region": self._region,
                            "generation": self._generation,
                            "silent_s": round(silent_s, 1),
                        },
                        "This task stops; what it has not acknowledged is aborted by the next "
                        "coordinator, and read again.",
                    ) from err
                log.warning("no answer from the coordinator: error=%s", err)
