"""Which partitions are due, told from the last records of all regions. Pure.

Source: Flink's PartitionTimeCommitTrigger and ProcTimeCommitTrigger. Unlike there, silence marks
nothing, and neither does the end of a bounded run: a later run may go on with the same partition.
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
    """A region as its last decided record has it, all of whose files are published.

    Attributes:
        state: None before its first batch.
        is_completed: False: carried, so newer work of it is still to come.
        is_idle: it has had no batch for as long as the idle time-out, or reads no split at all.
        watermark_ms: the least of its live splits, None when one has none.
    """

    state: PartitionState | None
    is_completed: bool = True
    is_idle: bool = False
    watermark_ms: int | None = None

    @property
    def is_live(self) -> bool:
        """Whether partitions wait for it."""
        return not self.is_completed or not self.is_idle

    def only(self, path: str) -> "RegionView":
        """As if it had written into one partition."""
        return replace(self, state=None if self.state is None else self.state.only(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePartition:
    """A partition that is to be marked.

    Attributes:
        path: relative to the target.
        through: checkpoint id of the newest file by region: what the mark tells of.
        is_late: it was marked before, or forgotten.
    """

    path: str
    through: Mapping[str, int]
    is_late: bool

    @property
    def sequence(self) -> int:
        """Grows with each further mark of the partition."""
        return max(self.through.values())


def passed_ms(regions: Iterable[RegionView], *, before_ms: int | None) -> int | None:
    """What every live region has passed; None: not everyone has a watermark.

    Args:
        before_ms: what it was before, which it stays while no region is live.
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
        marked: what marks have told of.
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
    except ConfigError:  # an earlier run's, under settings by which values needed to make no time
        return False
    if begins_ms is None or watermark_ms is None:
        return False
    return watermark_ms > begins_ms + commit.delay_ms


def _is_old(commit: PartitionCommit, opened: Mapping[str, OpenPartition], now_ms: int) -> bool:
    return now_ms >= min(one.first_seen_ms for one in opened.values()) + commit.delay_ms
