"""Which partitions are due, from the last records of all regions. Pure.

Source: Flink's PartitionTimeCommitTrigger and ProcTimeCommitTrigger. Unlike Flink, neither a time
without records nor the end of a bounded run marks a partition: a later run may add files to it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from sluice.connectors.hdfs.partition_commit.partition_state import (
    Marked,
    OpenPartition,
    PartitionState,
)
from sluice.connectors.hdfs.partition_commit.settings import PartitionCommit
from sluice.runtime.errors import ConfigError

__all__ = ["DuePartition", "RegionView", "due_partitions", "passed_ms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionView:
    """A region after its last decided record, whose files are all published.

    Attributes:
        state: None before its first batch.
        is_completed: False: the checkpoint skipped it, so newer work of it is still to come.
        is_idle: it had no records for the idle time-out, or reads no split.
        watermark_ms: the least of its live splits; None if one has none.
    """

    state: PartitionState | None
    is_completed: bool = True
    is_idle: bool = False
    watermark_ms: int | None = None

    @property
    def is_live(self) -> bool:
        """Whether partitions must wait for it."""
        return not self.is_completed or not self.is_idle

    def only(self, path: str) -> "RegionView":
        """The region reduced to one partition."""
        return replace(self, state=None if self.state is None else self.state.only(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePartition:
    """A partition to mark.

    Attributes:
        path: relative to the target.
        through: by region the checkpoint id of the newest file that the mark covers.
        is_late: it was marked before, and perhaps forgotten since.
    """

    path: str
    through: Mapping[str, int]
    is_late: bool

    @property
    def sequence(self) -> int:
        """Grows with each further mark of the partition."""
        return max(self.through.values())


def passed_ms(regions: Iterable[RegionView], *, before_ms: int | None) -> int | None:
    """The least watermark of all live regions; None if one has no watermark.

    Args:
        before_ms: the value before, which stays while no region is live.
    """
    every = list(regions)
    live = [region.watermark_ms for region in every if region.is_live]
    if not live:
        return before_ms
    known = [mark for mark in live if mark is not None]
    return min(known) if len(known) == len(live) else None


def due_partitions(
    commit: PartitionCommit,
    regions: Mapping[str, RegionView],
    *,
    marked: Marked,
    staged: Collection[str],
    watermark_ms: int | None,
    now_ms: int,
) -> list[DuePartition]:
    """The partitions to be marked now, oldest first.

    Args:
        marked: the files that marks cover.
        staged: partitions with files that are not published yet: none of them is complete.
        watermark_ms: see `passed_ms`.
        now_ms: the driver's wall clock.
    """
    found: dict[str, dict[str, OpenPartition]] = {}
    for name, region in regions.items():
        if region.state is not None:
            for path, opened in region.state.unmarked(name, marked).items():
                found.setdefault(path, {})[name] = opened
    whole = {
        path: opened
        for path, opened in found.items()
        if path not in staged and not any(one.is_pending for one in opened.values())
    }
    if commit.is_by_partition_time:
        due = [path for path in whole if _has_passed(commit, path, watermark_ms)]
    elif all(region.is_completed for region in regions.values()):
        due = [path for path, opened in whole.items() if _is_old(commit, opened, now_ms)]
    else:
        due = []
    return [
        DuePartition(
            path=path,
            through={name: one.checkpoint_id for name, one in whole[path].items()},
            is_late=path in marked or any(one.is_late for one in whole[path].values()),
        )
        for path in sorted(due, key=lambda path: min(o.first_seen_ms for o in whole[path].values()))
    ]


def _has_passed(commit: PartitionCommit, path: str, watermark_ms: int | None) -> bool:
    try:
        begins_ms = commit.times.begins_ms(path)
    except ConfigError:  # an earlier run's partition: under its settings, values needed no time
        return False
    if begins_ms is None or watermark_ms is None:
        return False
    return watermark_ms > begins_ms + commit.delay_ms


def _is_old(commit: PartitionCommit, opened: Mapping[str, OpenPartition], now_ms: int) -> bool:
    return now_ms >= min(one.first_seen_ms for one in opened.values()) + commit.delay_ms
