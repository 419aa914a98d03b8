"""The pressure of a region: the share of time in which its next barrier was due and it still worked
on the records of the last one. Pure."""

import enum
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice.runtime.model.splits import SplitRange

__all__ = ["PendingTime", "Pressure", "PressureAlarm", "left_unread"]

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
