"""How long this host has slept, and a clock that goes on meanwhile: ages are measured by that.

``time.monotonic`` stands still while a host is suspended: a laptop that is asleep, a virtual
machine that was told to suspend. That is right for waits, for who waits for an answer has not
waited while nothing here ran. It is wrong for ages: brokers go on, and abort a transaction that has
grown too old for them; by the clock that stood still it would be young enough to be decided.

What a hypervisor freezes without a word to the guest, both of Linux's clocks miss: only the wall
clock tells, once somebody has set it, and nobody can tell that from a correction.
"""

import threading
import time
from collections.abc import Callable

__all__ = ["SleepByBootTime", "SleepByWallSteps", "age_clock", "slept_s", "wall_ms"]

_Clock = Callable[[], float]

_LEAST_STEP_S = 1.0  # of the wall clock; less is how it is kept right all along
_STEADY_S = 0.1
_TRIES = 3


def wall_ms() -> int:
    """Wall clock in ms since 1970: for people, and for what is compared with files' times."""
    return int(time.time() * 1000)


def slept_s() -> float:
    """Seconds that this host has slept since this process first asked; of use only in differences,
    and within a process."""
    return _meter()


def age_clock() -> float:
    """Seconds, monotonic, and on while the host sleeps; for how old something is."""
    return time.monotonic() + slept_s()


class SleepByBootTime:
    """By a clock that counts from the start of the host, its sleep included. Thread-safe.

    Args:
        running: stands still while the host sleeps.
        lasting: the same, and does not.
    """

    def __init__(self, *, running: _Clock, lasting: _Clock) -> None:
        self._running = running
        self._lasting = lasting
        self._before_s = self._ahead_s()

    def __call__(self) -> float:
        """Seconds slept since it was made."""
        return max(0.0, self._ahead_s() - self._before_s)

    def _ahead_s(self) -> float:
        running_s, lasting_s = _read_together(self._running, self._lasting)
        return lasting_s - running_s


class SleepByWallSteps:
    """Where no clock counts sleep, by steps of the wall clock beside the monotonic one.

    So on macOS, where Python's monotonic clock stands still, too, and there is no
    ``CLOCK_BOOTTIME``. A wall clock that is set ahead looks like sleep: work is taken for older
    than it is, and read again. One that is set back is no sleep, and takes none back. Thread-safe.

    Args:
        running: stands still while the host sleeps.
        wall: does not, and may be set.
    """

    def __init__(self, *, running: _Clock, wall: _Clock) -> None:
        self._running = running
        self._wall = wall
        self._lock = threading.Lock()
        self._slept_s = 0.0
        self._running_s, self._wall_s = _read_together(running, wall)

    def __call__(self) -> float:
        """Seconds slept since it was made; looked at rarely it still counts all of them."""
        with self._lock:
            running_s, wall_s = _read_together(self._running, self._wall)
            step_s = (wall_s - self._wall_s) - (running_s - self._running_s)
            self._running_s, self._wall_s = running_s, wall_s
            if step_s >= _LEAST_STEP_S:
                self._slept_s += step_s
            return self._slept_s


def _read_together(running: _Clock, other: _Clock) -> tuple[float, float]:
    """Both at about one moment: a thread that was off its core in between reads again. The running
    clock first, so that a sleep in between is counted."""
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
