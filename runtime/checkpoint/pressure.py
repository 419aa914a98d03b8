"""How far a region is behind its barriers: the share of time in which the next one was due and the
region was still at work. Pure."""

import enum
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["PendingTime", "Pressure", "PressureAlarm"]

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


@dataclass(slots=True)
class PendingTime:
    """The epochs of a region in the last minute: when the next barrier was due, and how long its
    batch took beyond that. Bounded."""

    _first_s: float | None = None
    _open_s: float | None = None
    _over: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_MOST_EPOCHS))

    def begin(self, now_s: float, *, due_in_s: float) -> None:
        """The region got a barrier; the next one is due after ``due_in_s``."""
        self.end(now_s)
        self._first_s = now_s if self._first_s is None else self._first_s
        self._open_s = now_s + due_in_s

    def end(self, now_s: float) -> None:
        """Its batch is pre-committed, or will never be."""
        if self._open_s is not None and now_s > self._open_s:
            self._over.append((self._open_s, now_s))
        self._open_s = None

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
