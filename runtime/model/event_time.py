"""Event time of a region: the progress of each split, and the splits that count. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.splits import SplitRange

__all__ = ["EventTime", "advanced", "least_of", "least_watermark_ms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTime:
    """How to make watermarks from the timestamps of records.

    Attributes:
        delay_ms: a record may be so much older than the newest one of its split; >= 0.
        idle_timeout_ms: a split without records for so long does not hold back other splits;
            None: it always does.
    """

    delay_ms: int = 0
    idle_timeout_ms: int | None = None

    def __post_init__(self) -> None:
        if self.delay_ms < 0 or (self.idle_timeout_ms is not None and self.idle_timeout_ms <= 0):
            raise ConfigError(
                "a setting of the event time is out of range",
                {"delay_ms": self.delay_ms, "idle_timeout_ms": self.idle_timeout_ms},
                "Give a delay of zero or more, and a timeout above zero.",
            )

    def is_live(self, split: SplitRange, *, now_ms: int) -> bool:
        """Whether the split had a record recently enough to hold back others."""
        if self.idle_timeout_ms is None or split.idle_since_ms is None:
            return True
        return now_ms - split.idle_since_ms < self.idle_timeout_ms


def advanced(split: SplitRange, largest_ms: int | None, settings: EventTime) -> SplitRange:
    """The split after its range was read; neither of its times ever decreases.

    Args:
        largest_ms: largest timestamp of a record in the range; None: the source reported none.
    """
    known = [ms for ms in (split.largest_timestamp_ms, largest_ms) if ms is not None]
    if not known:
        return split
    marks = [max(known) - settings.delay_ms]
    marks += [] if split.watermark_ms is None else [split.watermark_ms]
    return replace(split, largest_timestamp_ms=max(known), watermark_ms=max(marks))


def least_watermark_ms(
    splits: Iterable[SplitRange], settings: EventTime, *, now_ms: int
) -> int | None:
    """The region's progress: the least watermark of its live splits.

    None: one of them has no timestamp yet. If no split is live, all of them count.
    """
    every = list(splits)
    live = [split for split in every if settings.is_live(split, now_ms=now_ms)] or every
    return least_of(split.watermark_ms for split in live)


def least_of(watermarks_ms: Iterable[int | None]) -> int | None:
    """The least of them; None: one has no watermark yet, or there is none at all."""
    marks = list(watermarks_ms)
    known = [mark for mark in marks if mark is not None]
    return min(known, default=None) if len(known) == len(marks) else None
