"""Deadlines, and lookups that are repeated until their result is complete."""

import time
from collections.abc import Callable, Sized
from typing import TypeVar

from sluice.runtime.contracts import Clock

__all__ = ["ABSENCE_S", "CompletionRetry", "Deadline"]

ABSENCE_S = 3.0
"""How long something may be missing before that counts: metadata of a broker that has just started
may be incomplete for a moment."""

_PAUSE_S = 0.2
_LEAST_S = 0.1  # for the next request of a call whose time is up

T = TypeVar("T")
A = TypeVar("A", bound=Sized)


class Deadline:
    """The end of a call that makes several requests.

    Args:
        timeout_s: of the call.
        clock: monotonic seconds; None: `time.monotonic`.
    """

    def __init__(self, timeout_s: float, clock: Clock | None = None) -> None:
        self._clock = time.monotonic if clock is None else clock
        self._at_s = self._clock() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds that are left; negative when the time is up."""
        return self._at_s - self._clock()

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.left_s <= 0

    @property
    def request_s(self) -> float:
        """Timeout of the next request: the seconds that are left, but at least a short one."""
        return max(_LEAST_S, self.left_s)


class CompletionRetry:
    """Repeats a lookup while something is missing in its result. Driver; one thread at a time.

    Args:
        clock: monotonic seconds.
        pause: waits so many seconds between two lookups.
    """

    def __init__(self, clock: Clock, pause: Callable[[float], object]) -> None:
        self._clock = clock
        self._pause = pause

    def until_complete(
        self,
        find: Callable[[], tuple[T, A]],
        retry_for_s: Callable[[T], float] = lambda _: ABSENCE_S,
    ) -> tuple[T, A]:
        """Return the last result of ``find``, and the parts that were missing when the time was up.

        Args:
            find: returns a result, and the missing parts of it.
            retry_for_s: how long to retry, for a result. The time of the first lookup does
                not count.
        """
        found, missing = find()
        began_s = self._clock()
        while missing and self._clock() - began_s < retry_for_s(found):
            self._pause(_PAUSE_S)
            found, missing = find()
        return found, missing
