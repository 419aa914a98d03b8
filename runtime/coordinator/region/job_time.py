"""The event time of a job: watermarks at each barrier, and the splits that hold them back. Pure.

The watermark of a source is the least of all its splits that may still have rows, in all regions
that read it. It counts decided epochs only: what a barrier announces is never taken back by an
epoch that is read again.

- A split without unread records for ``idle_after`` is idle, and does not count. If all are idle,
  the watermark stays. No split of a region that has failed or is suspended is idle.
- A split without a watermark holds the source's back: its first row may be of any time.
- A skipped region counts with its last snapshot, and so does a suspended one: when it resumes, its
  rows are not late.
- A region whose bounded sources have ended does not count.
- The split of a repartition topic has the watermark that `TopicTime` finds for it. Windows that
  wait in the state of a writing region hold it back: their rows come at a later barrier.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.coordinator.region.topic_time import TopicTime
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.event_time import EventTime, least_of
from sluice.runtime.model.splits import SplitKey, SplitRange
from sluice.runtime.model.timestamps import later

__all__ = ["JobTime", "TimeView"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeView:
    """The event time of a job, for people.

    Attributes:
        watermark_ms: of the last barrier: the least of all sources; None: one had none yet.
        slowest: the split that holds it back, as ``topic-partition``; None: all splits are idle.
        slowest_region: that reads this split.
        slowest_ms: watermark of this split; None: it has none yet.
        idle: splits that do not hold it back.
        paused: splits that are not read, because they are too far ahead (``max_drift``).
    """

    watermark_ms: int | None
    slowest: str | None = None
    slowest_region: str | None = None
    slowest_ms: int | None = None
    idle: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()


@dataclass(slots=True)
class JobTime:
    """Owned by the core, changed only inside its step.

    Idle time counts between two looks at a split's end offset. So neither a pause of the driver nor
    a region under way makes a split idle that has records. It begins again if the region restarts.

    Attributes:
        times: of the sources that have a time, by operator id.
        watermarks_ms: of the last barrier, by source; never back.
        topics: of the repartition topics.
    """

    times: Mapping[str, EventTime] = field(default_factory=dict)
    watermarks_ms: dict[str, int] = field(default_factory=dict)
    topics: TopicTime = field(default_factory=TopicTime)
    _empty_s: dict[SplitKey, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def restored(cls, plans: Collection[RegionPlan], records: Iterable[RegionRecord]) -> Self:
        """The time of a run that continues from these records. It begins with the latest watermarks
        by which epochs on record have ended: windows up to them are closed."""
        times = {
            source_id: plan.event_time
            for plan in plans
            for source_id in plan.source_ids
            if plan.event_time is not None
        }
        made = cls(times=times, topics=TopicTime.of(plans))
        made.note_ended(split for record in records for split in record.splits)
        return made

    def note_ended(self, splits: Iterable[SplitRange]) -> None:
        """Epochs have ended with these ranges. If an earlier coordinator gave their barrier, its
        watermark may be later than ours: ours must not go back."""
        if self.times:
            for split in splits:
                self._announce(split.source_id, split.barrier_watermark_ms)

    def note_unread(self, unread: Mapping[SplitKey, int], now_s: float) -> bool:
        """The sources have counted the unread records of these splits. Returns whether one of them
        became idle, or is not idle any more."""
        mine = [key for key in unread if key[0] in self.times]
        before = [self.is_idle(key) for key in mine]
        for key in mine:
            if unread[key]:
                self._empty_s.pop(key, None)
            else:
                self._empty_s[key] = (self._empty_s.get(key, (now_s, now_s))[0], now_s)
        return before != [self.is_idle(key) for key in mine]

    def note_unwatched(self, splits: Iterable[SplitKey]) -> None:
        """The region that reads these splits has no attempt, so nothing counts their unread
        records. They count until they are idle again: rows that come meanwhile must not be late."""
        for key in splits:
            self._empty_s.pop(key, None)

    def is_idle(self, split: SplitKey) -> bool:
        """Whether the split has had no unread record for so long that it does not count."""
        limit_ms = self.times[split[0]].idle_after_ms
        since_s, until_s = self._empty_s.get(split, (0.0, 0.0))
        return (
            limit_ms is not None and split in self._empty_s and until_s - since_s >= limit_ms / 1000
        )

    def advance(self, regions: Iterable[RegionState]) -> None:
        """Set the watermarks of the next barriers."""
        marks: dict[str, list[int | None]] = {}
        for _, split in self._counting(regions):
            marks.setdefault(split.source_id, []).append(split.watermark_ms)
        for source_id, found in marks.items():
            self._announce(source_id, least_of(found))

    def input_ms(self, plan: RegionPlan, regions: Mapping[str, RegionState]) -> int | None:
        """Watermark of the rows of the regions that write what a region reads, as of decided
        epochs; None: one has none, or the region reads no topic."""
        if not plan.upstream or not self.of(plan):
            return None
        writers = [regions[name] for name in plan.upstream]
        if not all(self.of(writer.plan) for writer in writers):
            return None  # rows of a source without a time may be of any time
        marks = [split.watermark_ms for _, split in self._counting(writers)]
        # The mark stays if all splits are idle. Else no row may come before it: neither one that is
        # not read yet, nor one that waits in the state of a writer, also of an idle one.
        return least_of([*marks, *self._waiting(writers)]) if marks else None

    def _waiting(self, writers: Iterable[RegionState]) -> Iterator[int | None]:
        """For each writer with keyed state, the time before which nothing waits in it: it comes out
        at a later barrier. None: not known."""
        for writer in writers:
            if not writer.plan.keyed or writer.is_written:
                continue
            due = writer.decided_due
            if due is None:
                yield least_of(split.barrier_watermark_ms for split in writer.record.splits)
            elif due.event_ms is not None:
                yield due.event_ms - 1  # a window of [0, 60) has rows of up to 59

    def _announce(self, source_id: str, watermark_ms: int | None) -> None:
        latest_ms = later(self.watermarks_ms.get(source_id), watermark_ms)
        if latest_ms is not None and source_id in self.times:
            self.watermarks_ms[source_id] = latest_ms

    def of(self, plan: RegionPlan) -> list[str]:
        """The sources of a region that have a time."""
        return [source_id for source_id in plan.source_ids if source_id in self.times]

    def least_of_others(self, region: str, regions: Iterable[RegionState]) -> int | None:
        """See `Barrier.aligned_ms`. A split without a watermark does not count: it may have no
        record for ever."""
        if all(time.max_drift_ms is None for time in self.times.values()):
            return None
        marks = (
            split.watermark_ms
            for name, split in self._counting(regions)
            if name != region and self.times[split.source_id].max_drift_ms is not None
        )
        return min((ms for ms in marks if ms is not None), default=None)

    def _counting(self, regions: Iterable[RegionState]) -> Iterator[tuple[str, SplitRange]]:
        """The splits that may still have rows and are not idle, with the names of their regions."""
        for region in regions:
            if region.is_written or not self.times:
                continue
            for split in (*region.record.splits, *region.discovered.values()):
                if split.source_id in self.times and not self.is_idle(split.key):
                    yield region.plan.name, self.topics.marked(split)

    def view(self, regions: Iterable[RegionState]) -> TimeView | None:
        """For people; None: no source has a time."""
        if not self.times:
            return None
        every = list(regions)
        names = {split.key: split.name for region in every for split in region.positions()}
        found = TimeView(
            watermark_ms=least_of(self.watermarks_ms.get(each) for each in self.times),
            idle=tuple(
                sorted(names[key] for key in self._empty_s.keys() & names if self.is_idle(key))
            ),
            paused=tuple(sorted(names[key] for r in every for key in r.paused if key in names)),
        )
        counting = list(self._counting(every))
        if not counting:
            return found
        region, slowest = min(counting, key=_progress)
        return replace(
            found,
            slowest=slowest.name,
            slowest_region=region,
            slowest_ms=slowest.watermark_ms,
        )


def _progress(found: tuple[str, SplitRange]) -> float:
    watermark_ms = found[1].watermark_ms
    return float("-inf") if watermark_ms is None else watermark_ms
