"""How fast a region keeps up. Pure.

How many records its epochs may have, when it is polled again without records, and its pressure: the
share of time in which its next barrier was due and it still worked on the records of the last one.
"""

import enum
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice.runtime.model.splits import SplitRange

__all__ = [
    "IdleTime",
    "Pace",
    "PendingTime",
    "Pressure",
    "PressureAlarm",
    "left_unread",
    "records_in",
]

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


# --- pressure ------------------------------------------------------------------------------------

_WINDOW_S = 60.0
_MOST_EPOCHS = 1_000
_OK_RATIO = 0.10
_LOW_RATIO = 0.5


class Pressure(enum.Enum):
    """A ratio of pending time in one word."""

    OK = "ok"  # at most a tenth of the time
    LOW = "low"  # at most half of it
    HIGH = "high"

    @classmethod
    def of(cls, ratio: float) -> "Pressure":
        """The pressure for a ratio in [0, 1]."""
        if ratio <= _OK_RATIO:
            return cls.OK
        return cls.LOW if ratio <= _LOW_RATIO else cls.HIGH


def left_unread(requested: Iterable[SplitRange], read: Iterable[SplitRange]) -> int:
    """Records that were there at a barrier, and that its epoch has not read.

    Args:
        requested: the ranges of the barrier: up to the last visible record at that time.
        read: those of the epoch.
    """
    ends = {split.key: split.end_offset for split in read}
    return sum(
        max(0, split.end_offset - ends.get(split.key, split.end_offset)) for split in requested
    )


@dataclass(slots=True)
class PendingTime:
    """The epochs of a region in the last minute: when the next barrier was due, and how long its
    batch took beyond that. Bounded."""

    _first_s: float | None = None
    _open_s: float | None = None
    _due_in_s: float = 0.0
    _ended_s: float | None = None
    _over: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_MOST_EPOCHS))

    def begin(self, now_s: float, *, due_in_s: float) -> None:
        """The region got a barrier; the next one is due after ``due_in_s``."""
        self.end(now_s)
        self._first_s = now_s if self._first_s is None else self._first_s
        self._open_s = now_s + due_in_s
        self._due_in_s = due_in_s

    def end(self, now_s: float, *, read: int = 0, left: int = 0) -> None:
        """Its batch is pre-committed, or will never be.

        A streaming region answers a barrier at once, however many records are left. Reading these
        takes a time, at the pace of this epoch. If that ends after the next barrier, the region was
        pending for the same share of this epoch as of the next one.

        Args:
            read, left: records of the epoch, and records before the barrier that it has not read,
                see `left_unread`; 0 for a batch, which reads its whole range.
        """
        if self._open_s is None:
            return
        from_s = min(self._open_s, self._pending_since_s(now_s, read=read, left=left))
        if now_s > from_s:
            self._over.append((from_s, now_s))
        self._open_s, self._ended_s = None, now_s

    def _pending_since_s(self, now_s: float, *, read: int, left: int) -> float:
        if not left or self._ended_s is None:
            return now_s
        took_s = now_s - self._ended_s
        beyond = 1.0
        if read and self._due_in_s:
            beyond = left / read * took_s / self._due_in_s - 1.0
        return now_s - took_s * min(1.0, max(0.0, beyond))

    def ratio(self, now_s: float) -> float | None:
        """Pending time in the last minute, in [0, 1]; None before the first barrier."""
        if self._first_s is None:
            return None
        from_s = max(self._first_s, now_s - _WINDOW_S)
        if now_s <= from_s:
            return 0.0
        spans = [*self._over, (self._open_s, now_s)] if self._open_s is not None else self._over
        pending_s = sum(max(0.0, end_s - max(due_s, from_s)) for due_s, end_s in spans)
        return pending_s / (now_s - from_s)


class PressureAlarm:
    """Which regions have been under high pressure for too long. Pure but for what it remembers.

    Args:
        limit_s: so long; None: no region ever is.
    """

    def __init__(self, *, limit_s: float | None) -> None:
        self.limit_s = float("inf") if limit_s is None else limit_s
        self._high_since_s: dict[str, float] = {}
        self.alarmed: frozenset[str] = frozenset()

    def look(
        self, now_s: float, ratios: Mapping[str, float]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Regions whose alarm begins now, and whose ends; a region without a ratio has none.

        Args:
            now_s: monotonic seconds.
            ratios: of pending time, by region, each in [0, 1].
        """
        high = [name for name, ratio in ratios.items() if Pressure.of(ratio) is Pressure.HIGH]
        self._high_since_s = {name: self._high_since_s.get(name, now_s) for name in high}
        due = frozenset(
            name for name, at_s in self._high_since_s.items() if now_s - at_s >= self.limit_s
        )
        begun, ended = due - self.alarmed, self.alarmed - due
        self.alarmed = due
        return tuple(sorted(begun)), tuple(sorted(ended))
