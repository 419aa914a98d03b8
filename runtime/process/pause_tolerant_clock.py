"""A clock that tolerates pauses of this process: liveness is measured by it.

A paused process receives no message (garbage collection, SIGSTOP, a machine without a free core).
After the pause every peer would look as if it had timed out, without a chance to send anything. So
this clock advances by a bounded step at each reading, however long the last reading is ago. The
clock is never ahead of the clock that it is made from. Never measure ages with it: see
`sluice.runtime.process.host_clock`.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["PauseTolerantClock", "PauseTolerantTime"]


@dataclass(slots=True, kw_only=True)
class PauseTolerantTime:
    """Pure; the caller passes the time.

    Attributes:
        longest_step_s: the caller reads at least so often while it listens.
        passed_s: time that has passed, as of the last reading.
    """

    longest_step_s: float
    passed_s: float = 0.0
    _read_s: float | None = None

    def advance(self, now_s: float) -> float:
        """The time that has passed, as of this reading."""
        if self._read_s is not None:
            step_s = now_s - self._read_s
            self.passed_s += min(step_s, self.longest_step_s) if step_s > 0 else 0.0
        self._read_s = now_s
        return self.passed_s


class PauseTolerantClock:
    """A clock that advances by a bounded step at each reading. Thread-safe.

    Args:
        clock: monotonic seconds.
        longest_step_s: see `PauseTolerantTime`.
    """

    def __init__(self, clock: Callable[[], float], *, longest_step_s: float) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._started_s = clock()
        self._time = PauseTolerantTime(longest_step_s=longest_step_s)
        self._time.advance(self._started_s)

    def __call__(self) -> float:
        """Seconds; it starts at the time of the clock that it is made from."""
        with self._lock:
            return self._started_s + self._time.advance(self._clock())
