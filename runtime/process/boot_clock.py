"""Time in which somebody listened: what is silence is measured by it.

Who was not there has heard nothing: behind a pause of this process (a collection of garbage, a
SIGSTOP, a machine without a free core) everybody would look as silent as the pause was long, and
nobody had a chance to say anything. So such a clock goes on by a bounded step at each look, however
long ago the last one was. It only ever lags behind the clock that it is made from; how old
something is must never be measured by it (`sluice.runtime.process.host_clock`).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["PauseTolerantClock", "PauseTolerantTime"]


@dataclass(slots=True, kw_only=True)
class PauseTolerantTime:
    """Pure; whoever looks says what time it is.

    Attributes:
        longest_step_s: a look comes at least so often while somebody listens.
        passed_s: what has passed, as of the last look.
    """

    longest_step_s: float
    passed_s: float = 0.0
    _looked_s: float | None = None

    def look(self, now_s: float) -> float:
        """The time that has passed; this is a look."""
        if self._looked_s is not None:
            step_s = now_s - self._looked_s
            self.passed_s += min(step_s, self.longest_step_s) if step_s > 0 else 0.0
        self._looked_s = now_s
        return self.passed_s


class PauseTolerantClock:
    """A clock; each question is a look. Thread-safe.

    Args:
        clock: monotonic seconds.
        longest_step_s: see `PauseTolerantTime`.
    """

    def __init__(self, clock: Callable[[], float], *, longest_step_s: float) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began_s = clock()
        self._time = PauseTolerantTime(longest_step_s=longest_step_s)
        self._time.look(self._began_s)

    def __call__(self) -> float:
        """Seconds; it begins as the clock that it is made from."""
        with self._lock:
            return self._began_s + self._time.look(self._clock())
