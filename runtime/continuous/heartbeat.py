"""Whether a continuous task is heard of: between two barriers nobody else would miss it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.runtime.contracts import Clock
from sluice.runtime.process.boot_clock import PauseTolerantClock

__all__ = ["LONGEST_STEP_S", "TaskHeartbeat"]

LONGEST_STEP_S = 15.0
"""Far more than lies between two looks at a life while its driver runs: one at each second, about,
and one at each question. A driver that was paused has listened for no longer than that."""


class TaskHeartbeat:
    """A task asks for its barriers without a pause; one that hangs does not. Driver, any thread.

    Its silence counts only while the driver listens (`boot_clock`): behind a pause of the
    driver it is as silent as it was before.

    Args:
        clock: monotonic seconds.

    Attributes:
        has_asked: it has been heard of: it has asked, or told what it waits for.
        owes: it has been given a barrier. Then its checkpoint's time-out watches over it.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.has_asked = False
        self.owes = False
        self._clock = PauseTolerantClock(clock, longest_step_s=LONGEST_STEP_S)
        self._lock = threading.Lock()
        self._questions = 0
        self._heard_s = self._clock()

    @contextmanager
    def question(self) -> Iterator[None]:
        """Around the answer to a question; it may take a while."""
        with self._lock:
            self.has_asked = True
            self._questions += 1
        try:
            yield
        finally:
            with self._lock:
                self._questions -= 1
                self._heard_s = self._clock()

    def silent_s(self) -> float:
        """For how long it should have asked, and has not."""
        with self._lock:
            now_s = self._clock()  # a look at any rate
            if self._questions or self.owes or not self.has_asked:
                return 0.0
            return now_s - self._heard_s
