"""Finds records that a source should read, or has read, and that are gone from their logs.

Retention moves a partition's first record past a position. An unclean election, or a disk that lost
its newest records, moves the log's end before a position. If the log has grown again since, only
leader epochs show that other records have these offsets now (KIP-320). Records that an open
transaction hides are not gone.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.connectors.kafka.client.retry import CompletionRetry
from sluice.connectors.kafka.source.enumerator.discovery import (
    ClusterView,
    OffsetFact,
    SourceCluster,
)
from sluice.connectors.kafka.source.enumerator.leader_epochs import EpochRequest
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.splits import (
    LostRange,
    beyond,
    data_lost,
    key_of,
    log_truncated,
    lost_to_retention,
)
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.splits import SplitRange

__all__ = ["LossDetector"]

log = logging.getLogger(__name__)

_START_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class _ShortLog:
    """A log that ends before a position.

    Attributes:
        since_s: when its end became this low.
        end_offset: the lowest end since then.
    """

    since_s: float
    end_offset: int


class LossDetector:
    """Decides where each position continues, or that its records are lost. Driver; one thread at a
    time.

    Args:
        cluster: answers for leader epochs and log ends.
        clock: monotonic seconds.
        fail_on_data_loss: whether records that retention deleted are a DataLostError. A truncated
            log always is.

    Attributes:
        lost_records: offsets that retention deleted before the source read them, and that the
            source has skipped (failOnDataLoss=false).
    """

    def __init__(self, cluster: SourceCluster, clock: Clock, *, fail_on_data_loss: bool) -> None:
        self._cluster = cluster
        self._clock = clock
        self._fails = fail_on_data_loss
        self._short_logs: dict[PartitionKey, _ShortLog] = {}
        self._counted: dict[PartitionKey, LostRange] = {}
        self._answers: dict[PartitionKey, tuple[EpochRequest, int | None]] = {}
        self._outdated: set[PartitionKey] = set()
        self.lost_records = 0

    def next_starts(
        self,
        positions: Sequence[SplitRange],
        view: ClusterView,
        *,
        retry_for_s: float,
        timeout_s: float,
    ) -> dict[PartitionKey, int]:
        """Return the offset from which each position continues.

        That is its end, except that deleted records are skipped, and that transaction markers which
        a later leader may have rewritten are read again.

        Args:
            positions: ranges that end where the source has read to.
            view: the current offsets of their partitions.
            retry_for_s: how long a log may be shorter than a position.
            timeout_s: for the leaders' answers.
        Raises:
            DataLostError: a log was truncated, or retention deleted records and
                ``fail_on_data_loss`` is set.
            UnreachableError: a new leader does not answer.
        """
        starts = self.skip_deleted(positions, view)
        ends = self._epoch_ends(positions, view, timeout_s)
        self._require_not_truncated(positions, ends)
        first = {key: fact.offset for key, fact in view.earliest.items()}
        starts |= {
            key: max(ends[key], first.get(key, 0))
            for split in positions
            if ends.get(key := key_of(split), split.end_offset) < split.end_offset
        }
        # The present leader has confirmed the log up to these ends: readers only cannot see it yet.
        lasting, _ = self._short_for(retry_for_s, starts, view, confirmed=ends.keys())
        if lasting:
            raise log_truncated([_lost(key, end, starts[key]) for key, end in lasting.items()])
        return starts

    def leaders_at_start(
        self, keys: Collection[PartitionKey], *, timeout_s: float
    ) -> Mapping[PartitionKey, OffsetFact]:
        """Return log ends with their leaders, so that later leaders can be checked against them.

        Does not wait for a partition without a leader: the result is then empty.
        """
        try:
            timeout_s = min(timeout_s, _START_TIMEOUT_S)
            return self._cluster.log_ends(keys, timeout_s=timeout_s) if keys else {}
        except UnreachableError as err:
            log.info("leaders of the starting offsets are unknown: error=%s", err)
            return {}

    def with_log_ends(
        self, starts: Mapping[PartitionKey, int], view: ClusterView, *, timeout_s: float
    ) -> ClusterView:
        """Add the ends of logs in which readers cannot see up to their position.

        Raises:
            UnreachableError: a leader does not answer.
        """
        hidden = _hidden(starts, view)
        if not hidden:
            return view
        return replace(view, log_ends=self._cluster.log_ends(hidden, timeout_s=timeout_s))

    def without_former_leaders(
        self, positions: Sequence[SplitRange], view: ClusterView
    ) -> ClusterView:
        """Remove offsets that come from an earlier leader than a position's.

        A broker that is partitioned from its cluster still answers. Neither the end of its log nor
        its deletions count. Only the end shows the leader: the first offset comes with the epoch of
        the first record.
        """
        known = {key_of(split): split.leader_epoch for split in positions}
        outdated = {
            key
            for key, fact in view.latest.items()
            if (epoch := known.get(key)) is not None
            and fact.leader_epoch is not None
            and fact.leader_epoch < epoch
        }
        for topic, partition in sorted(outdated - self._outdated):
            log.warning(
                "a former leader answers, waiting for the current one: partition=%s-%d",
                topic,
                partition,
            )
        self._outdated = self._outdated - known.keys() | outdated  # keep those of other regions
        return replace(
            view,
            earliest={key: fact for key, fact in view.earliest.items() if key not in outdated},
            latest={key: fact for key, fact in view.latest.items() if key not in outdated},
        )

    def skip_deleted(
        self, positions: Sequence[SplitRange], view: ClusterView
    ) -> dict[PartitionKey, int]:
        """Return the end of each position, or the first record that retention has left after it.

        Raises:
            DataLostError: retention deleted records and ``fail_on_data_loss`` is set.
        """
        starts = {key_of(split): split.end_offset for split in positions}
        earliest = {key: fact.offset for key, fact in view.earliest.items()}
        lost = lost_to_retention(positions, earliest)
        if not lost:
            return starts
        if self._fails:
            raise data_lost(lost)
        self._count(lost)
        return {key: max(start, earliest.get(key, 0)) for key, start in starts.items()}

    def require_replayable(
        self,
        ranges: Sequence[SplitRange],
        fetch: Callable[[], ClusterView],
        retry: CompletionRetry,
        *,
        retry_for_s: float,
        timeout_s: float,
    ) -> tuple[SplitRange, ...]:
        """Return ranges of an earlier process without trailing markers that are gone.

        A later leader's answer is final. Without one, a log must stay shorter than a range for a
        while: a new leader may report a lower end for a moment.

        Args:
            ranges: not empty ones.
            fetch: returns the current offsets of their partitions.
            retry: waits between two fetches.
            retry_for_s: how long a log may be shorter than a range.
            timeout_s: for the leaders' answers.
        Raises:
            DataLostError: a log was truncated before the end of a range's records.
            UnreachableError: a leader does not answer.
        """
        wanted = {key_of(split): split.end_offset for split in ranges}

        def find() -> tuple[dict[PartitionKey, int], Collection[PartitionKey]]:
            view = self.without_former_leaders(ranges, fetch())
            view = self.with_log_ends(wanted, view, timeout_s=timeout_s)
            confirmed = self._epoch_ends(ranges, view, timeout_s)
            lasting, waiting = self._short_for(retry_for_s, wanted, view, confirmed=confirmed)
            lower = {key: end for key, end in confirmed.items() if end < wanted[key]}
            return wanted | lower | lasting, waiting

        ends, _ = retry.until_complete(find, lambda _: retry_for_s)
        self._require_not_truncated(ranges, ends)
        return tuple(_up_to(split, ends[key_of(split)]) for split in ranges)

    def find_short_logs(
        self, starts: Mapping[PartitionKey, int], view: ClusterView
    ) -> Mapping[PartitionKey, int | None]:
        """Return the ends of logs that end before their positions; None: the end is unknown.

        Remembers since when each is short. Entries of partitions that ``view`` or ``starts`` lacks
        stay.
        """
        ends = {key: _log_end(key, view) for key in _hidden(starts, view)}
        short = {key: end for key, end in ends.items() if end is None or end < starts[key]}
        before, now_s = self._short_logs, self._clock()
        unseen = before.keys() - (starts.keys() & view.latest.keys())
        self._short_logs = {key: before[key] for key in unseen}
        for key, end in short.items():
            found = before.get(key)
            if end is not None and (found is None or end < found.end_offset):
                found = _ShortLog(now_s, end)
            if found is not None:
                self._short_logs[key] = found
        return short

    def _epoch_ends(
        self, positions: Sequence[SplitRange], view: ClusterView, timeout_s: float
    ) -> Mapping[PartitionKey, int]:
        """Return where the records of each position's leader end in the log of a later leader.

        Sends one request per change of leader: the answer does not change afterwards.
        """
        requested = {
            key_of(split): request
            for split in positions
            if (request := _epoch_request(split, view.latest.get(key_of(split)))) is not None
        }
        new = {k: q for k, q in requested.items() if self._answers.get(k, (None, None))[0] != q}
        if new:
            ends = self._cluster.epoch_ends(new, timeout_s=timeout_s)
            self._answers |= {key: (request, ends.get(key)) for key, request in new.items()}
        return {key: end for key in requested if (end := self._answers[key][1]) is not None}

    def _require_not_truncated(
        self, splits: Sequence[SplitRange], ends: Mapping[PartitionKey, int]
    ) -> None:
        """Refuse logs that end, or that a later leader has rewritten, before a split's records end.

        A later leader may have written the markers after the last record: those are not lost.
        """
        lost = [
            _lost(key, ends[key], split.end_offset)
            for split in splits
            if ends.get(key := key_of(split), split.end_offset) < split.known_end
        ]
        if lost:
            raise log_truncated(lost)

    def _short_for(
        self,
        retry_for_s: float,
        starts: Mapping[PartitionKey, int],
        view: ClusterView,
        *,
        confirmed: Collection[PartitionKey],
    ) -> tuple[dict[PartitionKey, int], Collection[PartitionKey]]:
        """Return the lowest ends of logs that were short for that long, and the other short logs.

        A log that a later leader has ``confirmed`` is in neither.
        """
        now_s = self._clock()
        short = {
            key: self._short_logs[key]
            for key, end in self.find_short_logs(starts, view).items()
            if end is not None and key not in confirmed
        }
        lasting = {
            key: found.end_offset
            for key, found in sorted(short.items())
            if now_s - found.since_s >= retry_for_s
        }
        return lasting, short.keys() - lasting.keys()

    def _count(self, lost: Sequence[LostRange]) -> None:
        """Count each record once: a position stays before a loss until it has new records."""
        fresh = [found for found in lost if self._counted.get(found.key) != found]
        new = [beyond(found, self._counted.get(found.key)) for found in fresh]
        if not new:
            return
        self._counted |= {found.key: found for found in fresh}
        records = sum(r.end_offset - r.start_offset for r in new)
        self.lost_records += records
        log.warning(
            "records deleted by retention are skipped: records=%d ranges=%s",
            records,
            " ".join(map(str, new)),
        )


def _lost(key: PartitionKey, start_offset: int, end_offset: int) -> LostRange:
    topic, partition = key
    return LostRange(
        topic=topic, partition=partition, start_offset=start_offset, end_offset=end_offset
    )


def _up_to(split: SplitRange, end: int) -> SplitRange:
    """Return the range up to ``end``; its leader epoch stays, for no later leader's record is part
    of it."""
    if end == split.end_offset:
        return split
    known = None if end <= split.known_end else split.leader_epoch_end
    return replace(split, end_offset=max(split.start_offset, end), leader_epoch_end=known)


def _hidden(starts: Mapping[PartitionKey, int], view: ClusterView) -> list[PartitionKey]:
    """Return partitions that readers cannot see up to the position: the log ends before it, or a
    transaction is open."""
    return [key for key, fact in view.latest.items() if fact.offset < starts.get(key, 0)]


def _log_end(key: PartitionKey, view: ClusterView) -> int | None:
    """Return the end of a log; None: unknown, or from an earlier leader than the visible end."""
    end, visible_by = view.log_ends.get(key), view.latest[key].leader_epoch
    if end is None or (
        visible_by is not None and end.leader_epoch is not None and end.leader_epoch < visible_by
    ):
        return None
    return end.offset


def _epoch_request(split: SplitRange, fact: OffsetFact | None) -> EpochRequest | None:
    """Return the request for a later leader than the position's; None: there is no later one."""
    read, current = split.leader_epoch, None if fact is None else fact.leader_epoch
    if read is None or current is None or current <= read:
        return None
    return EpochRequest(leader_epoch=read, current_leader_epoch=current)
