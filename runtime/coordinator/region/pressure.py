"""How far a region is behind its barriers: the share of time in which the next one was due and the
region was still at work on what lay there at the last one. Pure."""

import enum
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice.runtime.model.model import SplitRange

__all__ = ["PendingTime", "Pressure", "PressureAlarm", "left_behind"]

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
        """Of a ratio in [0, 1]."""
        if ratio <= _OK_RATIO:
            return cls.OK
        return cls.LOW if ratio <= _LOW_RATIO else cls.HIGH


def left_behind(asked: Iterable[SplitRange], read: Iterable[SplitRange]) -> int:
    """Records that lay there at a barrier, and that the epoch that it ended has not read.

    Args:
        asked: the ranges of the barrier: up to what readers could see when it was cut.
        read: those of the epoch.
    """
    ends = {split.key: split.end_offset for split in read}
    return sum(max(0, split.end_offset - ends.get(split.key, split.end_offset)) for split in asked)


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

        One that follows its splits answers a barrier at once, however much lies before it. What it
        left is then at work, at the pace of this epoch, for so long; where that is beyond the next
        barrier, it was pending for as large a share of the epoch as it will be of the next one.

        Args:
            read, left: records of the epoch, and of those that the barrier was about and it has
                not read, see `left_behind`; 0 where a batch reads what was cut.
        """
        if self._open_s is None:
            return
        from_s = min(self._open_s, self._behind_since_s(now_s, read=read, left=left))
        if now_s > from_s:
            self._over.append((from_s, now_s))
        self._open_s, self._ended_s = None, now_s

    def _behind_since_s(self, now_s: float, *, read: int, left: int) -> float:
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
