"""The processing time of the rows of a task, before their barrier comes."""

import time
from collections.abc import Callable

__all__ = ["ProcessingClock"]


class ProcessingClock:
    """The driver's clock as the last barrier brought it, and the time since then. The clocks of
    hosts differ, so the host's own one is used before the first barrier of an attempt only.
    Executor, the task's thread.

    Args:
        wall_s: seconds since 1970.
        monotonic_s: seconds that never go back.
    """

    def __init__(
        self,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic_s = monotonic_s
        self._is_still = False
        self.note_barrier(int(wall_s() * 1000))

    def note_barrier(self, now_ms: int) -> None:
        """A barrier has ended an epoch at this time; continue from there."""
        self._base_ms, self._base_s, self._is_still = now_ms, self._monotonic_s(), False

    def stop_at(self, now_ms: int) -> None:
        """The barrier of the rows that follow is known: its time is that of all of them."""
        self._base_ms, self._is_still = now_ms, True

    def now_ms(self) -> int:
        """The time now."""
        if self._is_still:
            return self._base_ms
        return self._base_ms + int((self._monotonic_s() - self._base_s) * 1000)
