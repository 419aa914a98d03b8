"""``minOffsetsPerTrigger`` and ``maxTriggerDelay``: few offsets wait for more, but not for long."""

from collections.abc import Mapping

from connectors.kafka.positions import PartitionKey
from connectors.kafka.splits import backlog_records
from runtime.contracts import Clock

__all__ = ["LeastOffsets"]


class LeastOffsets:
    """Since when splits have not moved. Driver; one thread at a time.

    Args:
        least: offsets that a cut needs; None: any number will do.
        delay_s: longest wait for them.
        clock: monotonic seconds.
    """

    def __init__(self, least: int | None, delay_s: float, clock: Clock) -> None:
        self._least = least
        self._delay_s = delay_s
        self._clock = clock
        self._moved_at_s: dict[PartitionKey, float] = {}

    def is_too_early(
        self, starts: Mapping[PartitionKey, int], ends: Mapping[PartitionKey, int]
    ) -> bool:
        """Whether these ranges are to wait."""
        if self._least is None or backlog_records(starts, ends) >= self._least:
            return False
        now_s = self._clock()
        # The first cut of a split begins its wait.
        moved_at_s = max(self._moved_at_s.setdefault(key, now_s) for key in starts)
        return now_s - moved_at_s < self._delay_s

    def note_moved(self, key: PartitionKey) -> None:
        """A range of this one was cut."""
        self._moved_at_s[key] = self._clock()
