"""The event time of repartition topics: how far each of their splits is. Pure.

The rows of a topic are as late as those that the writing regions have decided. So a watermark of
the writers is kept with the ends of the topic's logs at a later moment: all rows before it are
below these ends. Once an epoch of the reader that ends there is decided, the watermark is the
split's. Nothing of this is on record: a run finds it again within some epochs.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.model.splits import SplitKey, SplitRange
from sluice.runtime.model.timestamps import later

__all__ = ["TopicTime"]

_MOST_PENDING = 1_000  # of a split; the latest ones stay


@dataclass(slots=True)
class TopicTime:
    """Owned by the core, changed only inside its step.

    Attributes:
        writers: regions that write what a source reads, by its operator id.
    """

    writers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    _pending: dict[SplitKey, deque[tuple[int, int]]] = field(default_factory=dict)
    _marks: dict[SplitKey, int] = field(default_factory=dict)

    @classmethod
    def of(cls, plans: Iterable[RegionPlan]) -> "TopicTime":
        """The topics of a job with these regions."""
        return cls({i: plan.upstream for plan in plans for i in plan.source_ids if plan.upstream})

    def note_ends(self, ends: Mapping[SplitKey, int], watermark_ms: int) -> None:
        """All rows before a watermark of the writers are below these ends of their logs."""
        for key, end in ends.items():
            pending = self._pending.setdefault(key, deque(maxlen=_MOST_PENDING))
            if not pending or pending[-1][1] < watermark_ms:
                pending.append((end, watermark_ms))

    def marked(self, split: SplitRange) -> SplitRange:
        """A split at its decided end, with its watermark if it belongs to a topic."""
        if split.source_id not in self.writers:
            return split
        pending = self._pending.get(split.key, deque[tuple[int, int]]())
        while pending and pending[0][0] <= split.end_offset:
            mark = later(self._marks.get(split.key), pending.popleft()[1])
            if mark is not None:
                self._marks[split.key] = mark
        return replace(split, watermark_ms=self._marks.get(split.key))
