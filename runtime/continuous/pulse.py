"""Whether a continuous task is heard of: between two barriers nobody else would miss it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from runtime.contracts import Clock

__all__ = ["TaskPulse"]


class TaskPulse:
    """A task asks for its barriers without a pause; one that hangs does not. Driver, any thread.

    Args:
        clock: monotonic seconds.

    Attributes:
        has_asked: it has been heard of.
        owes: it has been given a barrier. Then its checkpoint's time-out watches over it.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.has_asked = False
        self.owes = False
        self._clock = clock
        self._lock = threading.Lock()
        self._questions = 0
        self._heard_s = clock()

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
            if self._questions or self.owes or not self.has_asked:
                return 0.0
            return self._clock() - self._heard_s
