"""How often a producer is to give its statistics, by how long the epochs are."""

import statistics
from collections import deque

from runtime.contracts import Clock

__all__ = ["StatisticsPace"]

_FIRST_MS = 20
_LEAST_MS = 10
_MOST_MS = 250
_SHARE = 0.4
_EPOCHS = 5


class StatisticsPace:
    """Of the producers of one pool, each made in a thread of its own: a gap may be missed or be
    short, and costs no more than an interval. Executor.

    librdkafka cannot be asked for its statistics, only told how often to give them. They are waited
    for once, when a producer is made ready, and that has the time of an epoch, of which the round
    trips take 20 ms; but they are made as long as it lives. Measured at 20 ms: 1 % of a core with 4
    partitions, 2 % with 100, 8 % with 1,000. So they come often only where epochs are short, and of
    the first producers of a task, for which it has to wait.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._made_s: float | None = None
        self._gaps: deque[float] = deque(maxlen=_EPOCHS)

    def next_ms(self) -> int:
        """For a producer that is made now; one is made for each epoch."""
        now_s = self._clock()
        if self._made_s is not None:
            self._gaps.append(now_s - self._made_s)
        self._made_s = now_s
        if len(self._gaps) < _EPOCHS:
            return _FIRST_MS
        wanted_ms = round(statistics.median(self._gaps) * 1000 * _SHARE)
        return max(_LEAST_MS, min(wanted_ms, _MOST_MS))
