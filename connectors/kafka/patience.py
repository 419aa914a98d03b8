"""What is missing for a moment only: looked for again before it counts."""

from collections.abc import Callable, Sized
from typing import TypeVar

from runtime.contracts import Clock

__all__ = ["ABSENCE_S", "Patience"]

# Metadata lags behind for a moment after a broker's start; absence counts when it lasts.
ABSENCE_S = 3.0
_PAUSE_S = 0.2

T = TypeVar("T")
A = TypeVar("A", bound=Sized)


class Patience:
    """Looks until nothing is missing. Driver; one thread at a time.

    Args:
        clock: monotonic seconds.
        pause: between two looks.
    """

    def __init__(self, clock: Clock, pause: Callable[[float], object]) -> None:
        self._clock = clock
        self._pause = pause

    def unless_lasting(
        self,
        find: Callable[[], tuple[T, A]],
        patience_s: Callable[[T], float] = lambda _: ABSENCE_S,
    ) -> tuple[T, A]:
        """What was found, and what was missing in it: nothing, or what has been for so long.

        Args:
            find: looks.
            patience_s: for how long, by what was found.
        """
        began_s = None
        while True:
            found, absent = find()
            if began_s is None:  # behind the first look, whose time counts for nothing
                began_s = self._clock()
            if not absent or self._clock() - began_s >= patience_s(found):
                return found, absent
            self._pause(_PAUSE_S)
