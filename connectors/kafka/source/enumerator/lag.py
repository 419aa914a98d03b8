"""Lag of a source: its measurement, ``minOffsetsPerTrigger``, and group offsets for lag tools."""

import logging
from collections.abc import Collection, Mapping, Sequence

from sluice.connectors.kafka.source.enumerator.discovery import ClusterView, SourceCluster
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.splits import backlog_records, is_recreated, key_of
from sluice.runtime.contracts import Backlog, Clock
from sluice.runtime.errors import StreamError
from sluice.runtime.model.splits import SplitKey, SplitRange

__all__ = ["MinOffsets", "OffsetPublication", "measure_backlogs"]


def measure_backlogs(
    cluster: SourceCluster,
    positions: Sequence[SplitRange],
    ends: Mapping[PartitionKey, int] | None,
    *,
    timeout_s: float,
) -> Mapping[SplitKey, Backlog]:
    """Return the offsets after each position, and those of them that retention deleted. Driver.

    A topic that was deleted or recreated is left out: the next barrier raises the error.

    Args:
        cluster: gets one request.
        positions: ranges that end where the source has read to.
        ends: of a bounded run; None: the run is not bounded.
    Raises:
        UnreachableError: no broker answers.
    """
    if not positions:
        return {}
    view = cluster.fetch_view([key_of(split) for split in positions], timeout_s=timeout_s)
    return {
        split.key: _backlog(split, view, ends)
        for split in positions
        if key_of(split) in view.latest and _is_same(split, view)
    }


def _is_same(split: SplitRange, view: ClusterView) -> bool:
    """Whether the topic is still the one that was read: it may be deleted during the request."""
    found = view.topics.get(split.topic)
    return found is not None and not is_recreated(split.topic_id, found.topic_id)


def _backlog(
    split: SplitRange, view: ClusterView, ends: Mapping[PartitionKey, int] | None
) -> Backlog:
    key = key_of(split)
    latest = view.latest[key].offset
    end = latest if ends is None else min(latest, ends.get(key, latest))
    records = max(0, end - split.end_offset)
    first = view.earliest[key].offset if key in view.earliest else 0
    return Backlog(records=records, lost_records=min(max(0, first - split.end_offset), records))


class MinOffsets:
    """Delays a barrier until a minimum of offsets is there. Driver; one thread at a time.

    The first barrier of a start never waits, as in Spark.

    Args:
        min_offsets: per barrier, ``minOffsetsPerTrigger``; None: no minimum.
        max_delay_s: longest wait for them, ``maxTriggerDelay``.
        clock: monotonic seconds.
    """

    def __init__(self, min_offsets: int | None, max_delay_s: float, clock: Clock) -> None:
        self._min_offsets = min_offsets
        self._max_delay_s = max_delay_s
        self._clock = clock
        self._triggered_at_s: dict[PartitionKey, float] = {}

    def is_too_early(
        self, starts: Mapping[PartitionKey, int], ends: Mapping[PartitionKey, int]
    ) -> bool:
        """Whether these ranges should wait for more offsets; if not, the next wait starts now."""
        if self._min_offsets is None:
            return False
        now_s = self._clock()
        last_s = max(self._triggered_at_s.get(key, float("-inf")) for key in starts)
        if now_s - last_s < self._max_delay_s and backlog_records(starts, ends) < self._min_offsets:
            return True
        self._triggered_at_s |= dict.fromkeys(starts, now_s)
        return False


log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_PAUSE_S = 60.0  # a group without a coordinator must not delay each epoch by that timeout
# Brokers delete offsets that are older than offsets.retention.minutes, at least a minute, if the
# group has no members. An offset is published again when it is this old, and found 15 s later.
_OLD_S = 15.0
_RENEWAL_TIMEOUT_S = 1.0


class OffsetPublication:
    """Publishes positions as group offsets for lag tools; they are never read back.

    A failure is logged and has no other effect. Driver; one thread at a time.

    Args:
        cluster: holds the group.
        group_id: name of the group.
        clock: monotonic seconds.
    """

    def __init__(self, cluster: SourceCluster, group_id: str, clock: Clock) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._clock = clock
        self._retry_at_s = self._renew_at_s = float("-inf")
        self._known: dict[PartitionKey, tuple[int, float]] = {}  # offset, and when it was published

    def publish(self, positions: Sequence[SplitRange]) -> None:
        """Publish the ends of ``positions``. Never raises."""
        offsets = self.note(positions)
        self._commit(offsets, timeout_s=_TIMEOUT_S)

    def note(self, positions: Sequence[SplitRange]) -> Mapping[PartitionKey, int]:
        """Return the ends of ``positions``, and remember them as published by now."""
        offsets, now_s = {key_of(split): split.end_offset for split in positions}, self._clock()
        self._known |= {key: (offset, now_s) for key, offset in offsets.items()}
        return offsets

    def renew(self, *, without: Collection[PartitionKey]) -> None:
        """Publish old offsets again, if it is time: their topics are quiet. Never raises.

        ``without``: deleted partitions.
        """
        now_s = self._clock()
        if now_s < self._renew_at_s:
            return
        self._renew_at_s = now_s + _OLD_S
        old = {
            key: offset
            for key, (offset, at_s) in self._known.items()
            if now_s - at_s >= _OLD_S and key not in without
        }
        self._known |= {key: (offset, now_s) for key, offset in old.items()}
        self._commit(old, timeout_s=_RENEWAL_TIMEOUT_S)

    def _commit(self, offsets: Mapping[PartitionKey, int], *, timeout_s: float) -> None:
        if not offsets or self._clock() < self._retry_at_s:
            return
        try:
            self._cluster.commit(self._group_id, offsets, timeout_s=timeout_s)
        except StreamError as err:
            self._retry_at_s = self._clock() + _PAUSE_S
            log.warning("group offsets not published: group=%s reason=%s", self._group_id, err)
