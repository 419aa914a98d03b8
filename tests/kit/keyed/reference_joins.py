"""Joins and deduplication row by row: every row is kept and looked at."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.runtime.contracts.keyed import BarrierTime
from tests.kit.keyed.reference_windows import Key, Timed

__all__ = ["Pair", "ReferenceDeduplication", "ReferenceJoin", "Sided"]

LEFT, RIGHT = 0, 1
Pair = tuple[Timed, Timed | None]
"""A left row and its partner; None: it had none."""


@dataclass(frozen=True, slots=True)
class Sided:
    """A row of one side."""

    side: int
    row: Timed


@dataclass(slots=True)
class ReferenceJoin:
    """Pairs of rows with one key, where the right time is in [left - before, left + after].

    A row is late if it is before the watermark of the last barrier. A row that waits is forgotten
    if a barrier has passed the last time that a partner of it may have.

    Attributes:
        is_left: a left row that is forgotten without a partner comes out alone.
        late: rows that came too late, or have no time.
    """

    before_ms: int
    after_ms: int
    is_left: bool = False
    late: list[Timed] = field(default_factory=list)
    _waiting: list[tuple[Sided, list[Timed]]] = field(default_factory=list)
    _watermark_ms: int | None = None

    def epoch(self, rows: Sequence[Sided], time: BarrierTime) -> list[Pair]:
        """The pairs of the epoch of ``rows``, and what its barrier adds."""
        made: list[Pair] = []
        for given in rows:
            if given.row.time_ms is None or self._is_late(given.row.time_ms):
                self.late.append(given.row)
                continue
            partners: list[Timed] = []
            for other, of_other in self._waiting:
                if self._fits(given, other):
                    partners.append(other.row)
                    of_other.append(given.row)
                    ordered = (given, other) if given.side == LEFT else (other, given)
                    made.append((ordered[0].row, ordered[1].row))
            self._waiting.append((given, partners))
        self._watermark_ms = time.watermark_ms
        over = [each for each in self._waiting if time.is_end or self._is_over(each[0])]
        self._waiting = [each for each in self._waiting if each not in over]
        if self.is_left:
            made += [(s.row, None) for s, partners in over if s.side == LEFT and not partners]
        return made

    def _fits(self, one: Sided, other: Sided) -> bool:
        if one.side == other.side or one.row.key != other.row.key or one.row.key[1] is None:
            return False
        left, right = (one, other) if one.side == LEFT else (other, one)
        assert left.row.time_ms is not None
        assert right.row.time_ms is not None
        return -self.before_ms <= right.row.time_ms - left.row.time_ms <= self.after_ms

    def _is_late(self, time_ms: int) -> bool:
        return self._watermark_ms is not None and time_ms < self._watermark_ms

    def _is_over(self, given: Sided) -> bool:
        assert given.row.time_ms is not None
        reach = self.after_ms if given.side == LEFT else self.before_ms
        known = self._watermark_ms
        return known is not None and given.row.time_ms + reach < known


@dataclass(slots=True)
class ReferenceDeduplication:
    """The first row of each key passes. By processing time, its key is forgotten ``within_ms``
    after the barrier of that row. By event time, nothing is forgotten: a row passes unless a row of
    its key has passed that is less than ``within_ms`` earlier or later.

    Attributes:
        by_event: the rows' own time counts; else the processing time of their barrier.
        late: rows that are ``within_ms`` before the watermark, or have no time.
    """

    within_ms: int
    by_event: bool
    late: list[Timed] = field(default_factory=list)
    _passed: dict[Key, list[int]] = field(default_factory=dict)
    _new: list[Key] = field(default_factory=list)
    _watermark_ms: int | None = None

    def epoch(self, rows: Sequence[Timed], time: BarrierTime) -> list[Timed]:
        """The rows that pass."""
        passed = [row for row in rows if (self._by_event if self.by_event else self._is_new)(row)]
        self._passed |= {key: [time.now_ms] for key in self._new}
        self._new.clear()
        if not self.by_event:
            self._passed = {
                key: times
                for key, times in self._passed.items()
                if times[0] + self.within_ms > time.now_ms
            }
        self._watermark_ms = time.watermark_ms
        return passed

    def _by_event(self, row: Timed) -> bool:
        if row.time_ms is None or (
            self._watermark_ms is not None and row.time_ms + self.within_ms <= self._watermark_ms
        ):
            self.late.append(row)
            return False
        times = self._passed.setdefault(row.key, [])
        if any(abs(row.time_ms - time_ms) < self.within_ms for time_ms in times):
            return False
        times.append(row.time_ms)
        return True

    def _is_new(self, row: Timed) -> bool:
        if row.key in self._passed or row.key in self._new:
            return False
        self._new.append(row.key)
        return True
