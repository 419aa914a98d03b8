"""Measures the time that this host was suspended, and a boot-time clock that includes it, for ages.

``time.monotonic`` does not count while a host is suspended: a laptop that sleeps, or a suspended
virtual machine. That is right for timeouts: a process that did not run has not waited. It is wrong
for ages: brokers keep running, and abort a transaction that is too old for them. By a clock that
stopped, the transaction would be young enough to be decided.

If a hypervisor freezes a guest without notice, both of Linux's clocks miss it. Only the wall clock
shows it, after a correction, and a correction can have other causes.
"""

import threading
import time
from collections.abc import Callable

__all__ = ["SleepByBootTime", "SleepByWallSteps", "age_clock", "slept_s", "wall_ms"]

_Clock = Callable[[], float]

_LEAST_STEP_S = 1.0  # of the wall clock; smaller steps are normal corrections
_STEADY_S = 0.1
_TRIES = 3


def wall_ms() -> int:
    """Wall clock in ms since 1970: for people, and for comparison with the times of files."""
    return int(time.time() * 1000)


def slept_s() -> float:
    """Seconds that this host was suspended since the first call in this process; only differences
    within a process have a meaning."""
    return _meter()


def age_clock() -> float:
    """Seconds, monotonic, including suspended time; for the age of something."""
    return time.monotonic() + slept_s()


class SleepByBootTime:
    """Uses a clock that counts from the start of the host, including suspended time. Thread-safe.

    Args:
        running: does not count while the host is suspended.
        lasting: counts then, too.
    """

    def __init__(self, *, running: _Clock, lasting: _Clock) -> None:
        self._running = running
        self._lasting = lasting
        self._before_s = self._ahead_s()

    def __call__(self) -> float:
        """Suspended seconds since it was made."""
        return max(0.0, self._ahead_s() - self._before_s)

    def _ahead_s(self) -> float:
        running_s, lasting_s = _read_together(self._running, self._lasting)
        return lasting_s - running_s


class SleepByWallSteps:
    """If no clock counts suspended time, uses steps of the wall clock relative to the monotonic
    one.

    This is the case on macOS: Python's monotonic clock does not count, and there is no
    ``CLOCK_BOOTTIME``. A wall clock that is set forward looks like suspended time: work looks older
    than it is, and is read again. A wall clock that is set back has no effect. Thread-safe.

    Args:
        running: does not count while the host is suspended.
        wall: counts then, and may be set.
    """

    def __init__(self, *, running: _Clock, wall: _Clock) -> None:
        self._running = running
        self._wall = wall
        self._lock = threading.Lock()
        self._slept_s = 0.0
        self._running_s, self._wall_s = _read_together(running, wall)

    def __call__(self) -> float:
        """Suspended seconds since it was made; rare calls count all of them, too."""
        with self._lock:
            running_s, wall_s = _read_together(self._running, self._wall)
            step_s = (wall_s - self._wall_s) - (running_s - self._running_s)
            self._running_s, self._wall_s = running_s, wall_s
            if step_s >= _LEAST_STEP_S:
                self._slept_s += step_s
            return self._slept_s


def _read_together(running: _Clock, other: _Clock) -> tuple[float, float]:
    """Both at about one moment: reads again if the thread was interrupted in between. The running
    clock first, so that a suspension in between is counted."""
    for _ in range(_TRIES):
        running_s, other_s = running(), other()
        if running() - running_s < _STEADY_S:
            break
    return running_s, other_s


def _meter_of_host() -> _Clock:
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    if boot_time is None:
        return SleepByWallSteps(running=time.monotonic, wall=time.time)
    return SleepByBootTime(
        running=time.monotonic, lasting=lambda: float(time.clock_gettime(boot_time))
    )


_meter = _meter_of_host()
