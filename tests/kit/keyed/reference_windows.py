"""Windows row by row: every row is kept, and every window is computed anew from its rows.

A window is closed by the first barrier whose watermark has passed its end. A row is late if an
earlier barrier has passed the end of its window and the allowed lateness, and then only. So what
comes out depends on rows and barriers, and not on batches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sluice.runtime.contracts.keyed import BarrierTime
from sluice.runtime.keyed.declarations import Session, Sliding, Tumbling, Window
from sluice.runtime.model.timestamps import duration_ms

__all__ = ["Key", "Pane", "ReferenceWindows", "Timed", "spans"]

Key = tuple[int, bytes | None]
"""The split and the key of a row: state belongs to both."""

Span = tuple[int, int]
"""From the start of a window to its end, which it does not contain."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A row; ``time_ms`` None: it has no time."""

    key: Key
    time_ms: int | None
    value: int | None


@dataclass(frozen=True, slots=True)
class Pane:
    """What comes out: a window of a key, and the rows in it so far."""

    key: Key
    span: Span
    rows: tuple[Timed, ...]


def spans(window: Tumbling | Sliding, time_ms: int) -> Iterator[Span]:
    """The windows of a time, earliest first; found by trying every start that may be one."""
    size = duration_ms(window.size, setting="size")
    step = size if isinstance(window, Tumbling) else duration_ms(window.slide, setting="slide")
    offset = duration_ms(window.offset, setting="offset")
    for start in range(time_ms - size + 1, time_ms + 1):
        if (start - offset) % step == 0:
            yield start, start + size


@dataclass(slots=True)
class ReferenceWindows:
    """All windows of one job.

    Attributes:
        window: their kind.
        lateness_ms: how much later than its end a window still takes rows.
        updates: each changed window comes out at each barrier; else first when it closes.
        late: rows that came too late for all of their windows, or have no time.
    """

    window: Window
    lateness_ms: int = 0
    updates: bool = False
    late: list[Timed] = field(default_factory=list)
    _rows: dict[Key, dict[Span, list[Timed]]] = field(default_factory=dict)
    _fired: set[tuple[Key, Span]] = field(default_factory=set)
    _changed: set[tuple[Key, Span]] = field(default_factory=set)
    _watermark_ms: int | None = None

    def epoch(self, rows: Sequence[Timed], time: BarrierTime) -> list[Pane]:
        """The windows that come out at the barrier after ``rows``."""
        for row in rows:
            self._add(row)
        self._watermark_ms = time.watermark_ms
        made = sorted(self._due(time), key=lambda pane: (pane.span, repr(pane.key)))
        self._forget(time)
        return made

    def _add(self, row: Timed) -> None:
        if row.time_ms is None:
            self.late.append(row)
            return
        if isinstance(self.window, Session):
            self._add_to_session(row, row.time_ms)
            return
        open_spans = [s for s in spans(self.window, row.time_ms) if not self._is_over(s)]
        for span in open_spans:
            self._rows.setdefault(row.key, {}).setdefault(span, []).append(row)
            self._changed.add((row.key, span))
        if not open_spans:
            self.late.append(row)

    def _add_to_session(self, row: Timed, time_ms: int) -> None:
        assert isinstance(self.window, Session)
        gap = duration_ms(self.window.gap, setting="gap")
        sessions = self._rows.setdefault(row.key, {})
        near = [s for s in sessions if s[0] - gap <= time_ms <= s[1]]
        start = min([time_ms, *(s[0] for s in near)])
        span = start, max([time_ms + gap, *(s[1] for s in near)])
        if self._is_over(span):
            self.late.append(row)
            return
        merged = [each for s in sorted(near) for each in sessions.pop(s)]
        sessions[span] = [*merged, row]
        self._changed -= {(row.key, s) for s in near}
        self._changed.add((row.key, span))

    def _is_over(self, span: Span) -> bool:
        known = self._watermark_ms
        return known is not None and span[1] + self.lateness_ms <= known

    def _due(self, time: BarrierTime) -> Iterator[Pane]:
        for key, span in list(self._changed):
            is_closed = time.is_end or (
                time.watermark_ms is not None and span[1] <= time.watermark_ms
            )
            if self.updates or is_closed:
                self._changed.discard((key, span))
                yield Pane(key, span, tuple(self._rows[key][span]))

    def _forget(self, time: BarrierTime) -> None:
        for of_key in self._rows.values():
            for span in [s for s in of_key if time.is_end or self._is_over(s)]:
                del of_key[span]
