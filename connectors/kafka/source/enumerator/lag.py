"""How far splits that nobody reads are behind, as the brokers say now.

``minOffsetsPerTrigger`` and ``maxTriggerDelay``: few offsets wait for more, but not for long.

Where a source is, published as a group's offsets for tools that measure lag; never read back.
"""

import logging
from collections.abc import Mapping, Sequence

from sluice.connectors.kafka.source.enumerator.discovery import Look, SourceCluster
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.splits import backlog_records, key_of
from sluice.runtime.contracts import Backlog, Clock
from sluice.runtime.errors import StreamError
from sluice.runtime.model.model import SplitKey, SplitRange

__all__ = ["LeastOffsets", "OffsetPublication", "measured"]


def measured(
    cluster: SourceCluster,
    positions: Sequence[SplitRange],
    ends: Mapping[PartitionKey, int] | None,
    *,
    timeout_s: float,
) -> Mapping[SplitKey, Backlog]:
    """Offsets behind each position, and those of them that retention took; driver.

    A topic that is gone, or was made anew under its name, is left out: the next cut judges it.

    Args:
        cluster: is asked once.
        positions: their ``end_offset`` is where to go on.
        ends: of a bounded run; None: it has none.
    Raises:
        UnreachableError: nobody answers.
    """
    if not positions:
        return {}
    look = cluster.look([key_of(split) for split in positions], timeout_s=timeout_s)
    return {
        split.key: _backlog(split, look, ends)
        for split in positions
        if key_of(split) in look.latest and _is_same(split, look)
    }


def _is_same(split: SplitRange, look: Look) -> bool:
    """Whether the topic is the one that was read; an end may have come just before its deletion."""
    found = look.topics.get(split.topic)
    return found is not None and found.topic_id == split.topic_id


def _backlog(split: SplitRange, look: Look, ends: Mapping[PartitionKey, int] | None) -> Backlog:
    key = key_of(split)
    latest = look.latest[key].offset
    end = latest if ends is None else min(latest, ends.get(key, latest))
    records = max(0, end - split.end_offset)
    first = look.earliest[key].offset if key in look.earliest else 0
    return Backlog(records=records, lost_records=min(max(0, first - split.end_offset), records))


class LeastOffsets:
    """Since when splits have not moved. Driver; one thread at a time.

    Args:
        least: offsets that a cut needs; None: any number will do.
        delay_s: longest wait for them.
        clock: monotonic seconds.
    """

    def __init__(self, least: int | None, delay_s: float, clock: Clock) -> None:
        self._least = least
        self._delay_s = delay_s
        self._clock = clock
        self._moved_at_s: dict[PartitionKey, float] = {}

    def is_too_early(
        self, starts: Mapping[PartitionKey, int], ends: Mapping[PartitionKey, int]
    ) -> bool:
        """Whether these ranges are to wait."""
        if self._least is None or backlog_records(starts, ends) >= self._least:
            return False
        now_s = self._clock()
        # The first cut of a split begins its wait.
        moved_at_s = max(self._moved_at_s.setdefault(key, now_s) for key in starts)
        return now_s - moved_at_s < self._delay_s

    def note_moved(self, key: PartitionKey) -> None:
        """A range of this one was cut."""
        self._moved_at_s[key] = self._clock()


log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_PAUSE_S = 60.0  # a group that nobody coordinates must not cost every epoch that time-out


class OffsetPublication:
    """Publishes positions; what cannot be published is told, and stops nothing. Driver; one thread
    at a time.

    Args:
        cluster: that holds the group.
        group_id: name of the group.
        clock: monotonic seconds.
    """

    def __init__(self, cluster: SourceCluster, group_id: str, clock: Clock) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._clock = clock
        self._again_at_s = float("-inf")

    def publish(self, positions: Sequence[SplitRange]) -> None:
        """Their ends become the group's offsets. Never raises."""
        if not positions or self._clock() < self._again_at_s:
            return
        offsets = {key_of(split): split.end_offset for split in positions}
        try:
            self._cluster.commit(self._group_id, offsets, timeout_s=_TIMEOUT_S)
        except StreamError as err:
            self._again_at_s = self._clock() + _PAUSE_S
            log.warning("group offsets not published: group=%s reason=%s", self._group_id, err)
