"""How many records an epoch may have: learnt from the epochs before. Pure.

How often a region that has nothing to read is polled again. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sluice.runtime.model.splits import SplitRange

__all__ = ["IdleTime", "Pace", "records_in"]

_LARGEST_CHANGE = 10
_FEWEST_RECORDS = 1_000


def records_in(splits: Iterable[SplitRange]) -> int:
    """Offsets in the ranges: an upper bound of the records."""
    return sum(split.end_offset - split.start_offset for split in splits)


@dataclass(slots=True)
class Pace:
    """A region's limit. It moves only when an epoch has reached it, was late or expired.

    Small epochs say nothing about the rate, since most of their time is Spark's own.

    Attributes:
        limit: records of the next epoch.
        has_backlog: the last epoch reached the limit: more records wait.
        records_per_s: of the last epoch that read something, from its barrier to its
            acknowledgement; None: there was none.
    """

    limit: int
    has_backlog: bool = False
    records_per_s: float | None = None
    _begun_s: float = 0.0
    _records: int = 0

    def begin(self, splits: tuple[SplitRange, ...], now_s: float) -> None:
        """A barrier was given."""
        self._begun_s = now_s
        self._records = records_in(splits)
        # Shares of several partitions are rounded down, one record each at most.
        self.has_backlog = self._records > 0 and self._records + len(splits) >= self.limit

    def finished(self, now_s: float, *, target_s: float) -> None:
        """Its batch is pre-committed: aim at ``target_s`` for the next one."""
        took_s = max(now_s - self._begun_s, 1e-3)
        if self._records:
            self.records_per_s = self._records / took_s
        if not self.has_backlog:
            return
        factor = target_s / took_s
        change = min(max(factor, 1 / _LARGEST_CHANGE), _LARGEST_CHANGE)
        # On a busy machine the fixed part of an epoch alone may take longer than the target.
        # Without a floor each epoch would be smaller than the one before, down to one record, for
        # nothing.
        floor = min(self._records, _FEWEST_RECORDS)
        self.limit = max(floor, int(self._records * change))

    def expired(self) -> None:
        """It was too large for the timeout: halve the next one (`restore-by-attempt`)."""
        if self._records:
            self.limit = max(1, min(self.limit, self._records) // 2)

    def timed_out(self) -> None:
        """Its checkpoint was decided without it: halve the next epoch, to a floor. It is not read
        again, so it cannot time out with the same records for ever."""
        if self._records > _FEWEST_RECORDS:
            self.limit = max(_FEWEST_RECORDS, min(self.limit, self._records) // 2)


_SHARE = 10


@dataclass(slots=True)
class IdleTime:
    """Polls of one region, for an armed barrier, that found no records.

    Each poll sends requests to the brokers. So the pause before the next one grows to a tenth of
    the time since the first. A record that arrives then waits for at most a tenth of the time
    before.

    Attributes:
        checkpoint_id: of the barrier; None: no poll has found nothing yet.
        since_s: clock of the first poll.
        again_s: clock of the next one.
    """

    checkpoint_id: int | None = None
    since_s: float = 0.0
    again_s: float = float("-inf")

    def found_nothing(
        self, checkpoint_id: int, now_s: float, *, least_s: float, longest_s: float
    ) -> float:
        """A poll found nothing; seconds until the next one, in the given bounds."""
        if self.checkpoint_id != checkpoint_id:
            self.checkpoint_id, self.since_s = checkpoint_id, now_s
        pause_s = min((now_s - self.since_s) / _SHARE, longest_s)
        # The poller itself makes short pauses: an earlier poll is answered.
        self.again_s = now_s + pause_s if pause_s > least_s else now_s
        return max(pause_s, least_s)

    def left_s(self, checkpoint_id: int, now_s: float) -> float:
        """Seconds before the next poll for this barrier; 0: now."""
        if self.checkpoint_id != checkpoint_id:
            return 0.0
        return max(0.0, self.again_s - now_s)
