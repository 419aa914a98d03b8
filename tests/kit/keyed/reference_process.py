"""A function with state and timers, called for one row after the other; timers are a plain set."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.runtime.contracts.keyed import BarrierTime
from tests.kit.keyed.reference_windows import Key, Timed

__all__ = ["Emission", "ReferenceProcess", "effect"]

Emission = tuple[Key, int | None, int]
"""Key, time of the timer or None for a row, and the count after the call."""

_EFFECTS = ("event", "time", "delete event", "delete time", "clear", "nothing")
_END_MS = 1 << 60


def effect(number: int) -> tuple[str, int]:
    """What a row of this value, or a timer of this time, makes the function do, and at what time:
    set or delete a timer that is later than this one, clear the state, or nothing."""
    return _EFFECTS[number % len(_EFFECTS)], number + 1 + number * number % 11


@dataclass(slots=True)
class ReferenceProcess:
    """Counts its calls for a key, in a state that is gone ``ttl_ms`` after the barrier of its last
    change. The time of a call is that of its barrier."""

    ttl_ms: int
    _counts: dict[Key, int] = field(default_factory=dict)
    _changed_ms: dict[Key, int] = field(default_factory=dict)
    _touched: set[Key] = field(default_factory=set)
    _timers: dict[str, set[tuple[int, bytes, Key]]] = field(
        default_factory=lambda: {"event": set(), "time": set()}
    )

    def epoch(self, rows: Sequence[Timed], time: BarrierTime) -> list[Emission]:
        """Every call, in order for each key."""
        for key in list(self._counts):
            if time.now_ms >= self._changed_ms[key] + self.ttl_ms:
                del self._counts[key]
        made = [self._call(row.key, None, row.value or 0) for row in rows]
        for split in (0, 1):
            now = _END_MS if time.is_end else time.watermark_ms
            for kind, until in (("event", now), ("time", time.now_ms)):
                made += self._fire(kind, split, until, once=time.is_end)
        for key in self._touched & self._counts.keys():
            self._changed_ms[key] = time.now_ms
        self._touched.clear()
        return made

    def _fire(self, kind: str, split: int, until: int | None, *, once: bool) -> list[Emission]:
        """In rounds: timers that are set meanwhile, and are due, fire in the next one."""
        made: list[Emission] = []
        timers = self._timers[kind]
        while until is not None:
            due = sorted(timer for timer in timers if timer[0] <= until and timer[2][0] == split)
            for timer in due:
                if timer in timers:
                    timers.remove(timer)
                    made.append(self._call(timer[2], timer[0], timer[0]))
            if once or not due:
                break
        return made

    def _call(self, key: Key, fired_ms: int | None, number: int) -> Emission:
        count = self._counts[key] = self._counts.get(key, 0) + 1
        self._touched.add(key)
        what, at = effect(number)
        timer = at, key[1] or b"", key
        match what:
            case "event" | "time":
                self._timers[what].add(timer)
            case "delete event" | "delete time":
                self._timers[what.removeprefix("delete ")].discard(timer)
            case "clear":
                del self._counts[key]
        return key, fired_ms, count
