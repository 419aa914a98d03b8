"""The event time of a job: its watermark at each barrier, and the splits that hold it back. Pure.

The watermark is the least of all splits that may still have rows. It counts decided epochs only:
what a barrier announces is never taken back by an epoch that is read again.

- A split without unread records for ``idle_after`` is idle, and does not count. If all are idle,
  the watermark stays.
- A split without a watermark holds the job's back: its first row may be of any time.
- A skipped region counts with its last snapshot, and so does a suspended one: when it resumes, its
  rows are not late.
- A region whose bounded sources have ended does not count.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.model.event_time import EventTime
from sluice.runtime.model.splits import SplitKey, SplitRange

__all__ = ["JobTime", "TimeView"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeView:
    """The event time of a job, for people.

    Attributes:
        watermark_ms: of the last barrier; None: no split has a time yet.
        slowest: the split that holds it back, as ``topic-partition``, and its region and watermark;
            None: there is none.
        slowest_region, slowest_ms: of that split.
        idle: splits that do not hold it back.
        paused: splits that are not read, because they are further ahead than ``max_drift``.
    """

    watermark_ms: int | None
    slowest: str | None = None
    slowest_region: str | None = None
    slowest_ms: int | None = None
    idle: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()


@dataclass(slots=True)
class _Quiet:
    """A split has had no unread record from one moment to another, on the core's clock."""

    since_s: float
    until_s: float


@dataclass(slots=True)
class JobTime:
    """Owned by the core, changed only inside its step.

    Idle time counts between two looks at a split's end offset. So neither a pause of the driver nor
    a region under way makes a split idle that has records.

    Attributes:
        times: of the sources that have a time, by operator id.
        watermark_ms: of the last barrier; never back.
    """

    times: Mapping[str, EventTime]
    watermark_ms: int | None = None
    _quiet: dict[SplitKey, _Quiet] = field(default_factory=dict)

    def restore(self, splits: Iterable[SplitRange]) -> None:
        """Go on with the latest watermark by which an epoch on record has ended: windows up to it
        are closed."""
        known = (split.barrier_watermark_ms for split in splits)
        self.watermark_ms = max((ms for ms in known if ms is not None), default=None)

    def note_unread(self, unread: Mapping[SplitKey, int], now_s: float) -> None:
        """The sources have counted the unread records of these splits."""
        for key, records in unread.items():
            if records or key[0] not in self.times:
                self._quiet.pop(key, None)
            elif key in self._quiet:
                self._quiet[key].until_s = now_s
            else:
                self._quiet[key] = _Quiet(now_s, now_s)

    def advance(self, regions: Iterable[RegionState]) -> int | None:
        """The watermark of the next barrier."""
        marks = [split.watermark_ms for _, split in self._counting(regions)]
        known = [ms for ms in marks if ms is not None]
        if marks and len(known) == len(marks):
            self.watermark_ms = max([min(known), *self._announced()])
        return self.watermark_ms

    def _announced(self) -> tuple[int, ...]:
        return () if self.watermark_ms is None else (self.watermark_ms,)

    def _counting(self, regions: Iterable[RegionState]) -> list[tuple[str, SplitRange]]:
        """The splits that may still have rows and are not idle, with their regions."""
        return [
            (region.plan.name, split)
            for region in regions
            if not region.is_written
            for split in (*region.record.splits, *region.discovered.values())
            if split.source_id in self.times and not self.is_idle(split.key)
        ]

    def is_idle(self, split: SplitKey) -> bool:
        """Whether the split has had no unread record for so long that it does not count."""
        limit_ms, quiet = self.times[split[0]].idle_after_ms, self._quiet.get(split)
        if limit_ms is None or quiet is None:
            return False
        return (quiet.until_s - quiet.since_s) * 1000 >= limit_ms

    def view(self, regions: Iterable[RegionState]) -> TimeView | None:
        """For people; None: no source has a time."""
        if not self.times:
            return None
        every = list(regions)
        slowest = min(
            self._counting(every),
            key=lambda found: float("-inf") if (ms := found[1].watermark_ms) is None else ms,
            default=None,
        )
        names = {split.key: split.name for region in every for split in region.positions()}
        return TimeView(
            watermark_ms=self.watermark_ms,
            slowest=None if slowest is None else slowest[1].name,
            slowest_region=None if slowest is None else slowest[0],
            slowest_ms=None if slowest is None else slowest[1].watermark_ms,
            idle=tuple(
                sorted(names[key] for key in self._quiet if key in names and self.is_idle(key))
            ),
        )
