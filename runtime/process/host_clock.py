"""A boot-time clock for ages: it includes the time that this host was suspended.

``time.monotonic`` does not count while a host is suspended: a laptop that sleeps, or a suspended
virtual machine. That is right for timeouts: a process that did not run has not waited. It is wrong
for ages: brokers keep running, and abort a transaction that is too old for them. By a clock that
stopped, the transaction would be young enough to be decided.

If a hypervisor freezes a guest without notice, both clocks miss it. Only the wall clock shows it,
after a correction, and a correction can have other causes.
"""

import time
from collections.abc import Callable

__all__ = ["SleepMeter", "age_clock", "slept_s", "wall_ms"]

_Clock = Callable[[], float]

_STEADY_S = 0.1
_TRIES = 3
# On macOS CLOCK_MONOTONIC counts while the host is suspended, and `time.monotonic` does not.
_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_ms() -> int:
    """Wall clock in ms since 1970: for people, and for comparison with the times of files."""
    return int(time.time() * 1000)


def age_clock() -> float:
    """Seconds, monotonic, including suspended time; for the age of something."""
    return time.monotonic() + slept_s()


class SleepMeter:
    """How far a clock that counts while the host is suspended is ahead of one that does not.
    Thread-safe.

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
        """Reads both again if the thread was interrupted in between. The running clock first, so
        that a suspension in between is counted."""
        for _ in range(_TRIES):
            running_s, lasting_s = self._running(), self._lasting()
            if self._running() - running_s < _STEADY_S:
                break
        return lasting_s - running_s


slept_s = SleepMeter(running=time.monotonic, lasting=lambda: time.clock_gettime(_BOOT_TIME))
"""Seconds that this host was suspended since the import of this module."""
