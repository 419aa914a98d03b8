"""The driver's side of one Kafka source: starts, new partitions and the ranges of barriers."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set

from sluice.connectors.kafka.client.retry import ABSENCE_S, CompletionRetry, Deadline
from sluice.connectors.kafka.source.enumerator.cluster_view import SharedView
from sluice.connectors.kafka.source.enumerator.discovery import (
    ClusterView,
    OffsetFact,
    SourceCluster,
    require_located,
)
from sluice.connectors.kafka.source.enumerator.lag import (
    MinOffsets,
    OffsetPublication,
    measure_backlogs,
)
from sluice.connectors.kafka.source.enumerator.lost_ranges import LossDetector
from sluice.connectors.kafka.source.enumerator.offset_resolution import resolve
from sluice.connectors.kafka.source.enumerator.short_logs import ShortLogs, check_short_ranges
from sluice.connectors.kafka.source.positions import Edge, PartitionKey, named_ends
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.connectors.kafka.source.splits import (
    NewStart,
    TopicFacts,
    absent,
    backlog_records,
    check_identity,
    key_of,
    known_id,
    limit_ends,
    new_partitions,
    next_range,
    on_other_log,
    out_of_reach,
    partitions_gone,
    require_forward,
    smallest_limit,
    stops_short,
    vanished,
)
from sluice.connectors.kafka.source.subscription import Pattern, require_named
from sluice.runtime.contracts import Backlog, Clock, SplitEnumerator
from sluice.runtime.model.splits import SplitKey, SplitRange

__all__ = ["KafkaSplitEnumerator"]

log = logging.getLogger(__name__)

KeySet = Set[PartitionKey]
Splits = tuple[SplitRange, ...]

# A new leader may report a lower end for a moment; a log that stays shorter is truncated.
_TRUNCATION_S = 30.0


class KafkaSplitEnumerator(SplitEnumerator):
    """Implements `SplitEnumerator`. Driver; called by one thread at a time."""

    def __init__(
        self,
        options: SourceOptions,
        cluster: SourceCluster,
        *,
        source_id: str,
        group_id: str,
        bounded: bool = False,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._where = {"servers": options.connection.bootstrap_servers}
        self._shared = SharedView(cluster, clock)
        self._short_logs = ShortLogs(clock)
        self._min_offsets = MinOffsets(options.min_offsets, options.max_trigger_delay_s, clock)
        self._losses = LossDetector(cluster, clock, fail_on_data_loss=options.fail_on_data_loss)
        self._source_id = source_id
        self._publication = OffsetPublication(cluster, group_id, clock)
        self._bounded = bounded
        self._clock = clock
        self._wall_clock = wall_clock
        self._retry = CompletionRetry(clock, pause)
        self._known: set[PartitionKey] = set()
        self._restored: frozenset[str] = frozenset()  # topics of an earlier run
        self._first_shown: frozenset[PartitionKey] | None = None  # partitions at the run's start
        self._ends: dict[PartitionKey, int] | None = None
        self._latest: dict[PartitionKey, int] = {}
        self._gone: frozenset[PartitionKey] = frozenset()
        self._discovered_at_s: float | None = None
        self._reported: frozenset[str] | None = None  # names that a pattern leaves out
        self.lacks_topic_ids = False
        """Whether the last check found a topic without an id."""

    def check(self, *, timeout_s: float) -> int:
        """Count the subscribed partitions; SourceChangedError if a topic does not exist."""
        topics = self._subscribed(timeout_s)
        self.lacks_topic_ids = any(known_id(each.topic_id) is None for each in topics.values())
        return len(new_partitions((), topics))

    # --- positions ---------------------------------------------------------------------------

    def resolve_start(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        """Return the starting position of every split as numbers.

        Raises:
            SourceChangedError: a topic of the subscription does not exist; or a partition, unless
                records may be lost. Spark's own source starts without such a partition, too.
            ConfigError: the positions do not fit the partitions, or end before they start.
        """
        topics = self._subscribed(timeout_s, topics_must_exist=True)
        keys = new_partitions((), topics)
        starts = resolve(
            self._cluster,
            self._options.starting,
            keys,
            option="startingOffsets",
            timeout_s=timeout_s,
        )
        self._known |= set(keys)
        self._discovered_at_s = self._clock()
        if self._bounded:
            self.fix_ends(timeout_s=timeout_s)
            now_ms = round(self._wall_clock() * 1000)
            # Other ends may be lower than the start: the first barrier finds a short log.
            require_forward(starts, named_ends(self._options.ending, self._ends or {}, now_ms))
        ends = self._losses.leaders_at_start(keys, timeout_s=timeout_s)
        return tuple(self._split(topics, key, starts[key], ends.get(key)) for key in keys)

    def restore(self, positions: Sequence[SplitRange], *, timeout_s: float) -> None:
        """Continue at the ends of ``positions``.

        Raises:
            SourceChangedError: a topic was recreated, or it or a partition was deleted.
            DataLostError: retention deleted records after a position.
            ConfigError: the source no longer subscribes to a topic that it has read.
        """
        if positions:
            view = self._losses.without_former_leaders(
                positions, self._fetch_view(positions, timeout_s)
            )
            lasting = [split for split in positions if key_of(split) not in self._gone]
            require_named(self._options.subscription, lasting, NewStart.at_ends(lasting))
            self._losses.skip_deleted(positions, view)
        self._known = {key_of(split) for split in positions}
        self._publication.note(positions)
        self._restored = frozenset(split.topic for split in positions)
        self._discovered_at_s = None
        if self._bounded:
            self.fix_ends(timeout_s=timeout_s)

    def adopt(self, positions: Sequence[SplitRange], *, timeout_s: float) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.adopt`.

        Raises:
            SourceChangedError: a partition does not exist, or a position is outside of its log.
            UnreachableError: a partition has no leader.
        """
        if not positions:
            return ()
        deadline = Deadline(timeout_s, self._clock)
        keys = [key_of(split) for split in positions]

        def find() -> tuple[ClusterView, Splits]:
            view = self._cluster.fetch_view(keys, timeout_s=deadline.request_s)
            return view, vanished(positions, view.topics)

        view, missing = self._retry.until_complete(find)
        ends = {} if missing else self._cluster.log_ends(keys, timeout_s=deadline.request_s)
        if not missing:
            require_located(keys, view.earliest.keys() & ends.keys())
        return on_other_log(
            positions,
            view.topics,
            {key: view.earliest[key].offset for key in ends},
            {key: fact.offset for key, fact in ends.items()},
        )

    def readable(self, ranges: Sequence[SplitRange], *, timeout_s: float) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.readable`.

        Raises:
            SourceChangedError: a topic was recreated or deleted.
        """
        if ranges:
            self._shared.forget()
            self._fetch_view(ranges, timeout_s)
        return tuple(split for split in ranges if key_of(split) not in self._gone)

    def replayable(
        self,
        ranges: Sequence[SplitRange],
        *,
        timeout_s: float,
        pause: Callable[[float], object] | None = None,
        is_decided: bool = True,
    ) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.replayable`.

        ``is_decided``: the sink has decided the ranges; else an error names their starts, too.

        Raises:
            SourceChangedError: as `readable`.
            ConfigError: the source does not subscribe to their topics.
            DataLostError: the log of one was truncated.
            UnreachableError: a leader does not answer.
        """
        start = NewStart.at_ends(ranges) if is_decided else NewStart.of_unfinished(ranges)
        if ranges:
            self._shared.forget()
            self._fetch_view(ranges, timeout_s, start)
        there = [s for s in ranges if key_of(s) not in self._gone and not s.is_empty]
        # Decided ranges must be whole, also those of a topic that this run gives up.
        kept = [split for split in there if split.topic not in self._options.forgotten]
        require_named(self._options.subscription, kept, start)
        return self._losses.require_replayable(
            there,
            lambda: self._fetch_view(there, timeout_s, start),
            self._retry if pause is None else CompletionRetry(self._clock, pause),
            retry_for_s=_TRUNCATION_S if self._ends is None else ABSENCE_S,
            timeout_s=timeout_s,
        )

    def discover(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        """Return new partitions, at their first record or the first that is left.

        Does nothing within a discovery interval. A bounded source discovers its missing partitions
        all at once: UnreachableError if one has no leader yet.
        """
        if not self._is_discovery_due():
            return ()
        self._discovered_at_s = self._clock()
        deadline = Deadline(timeout_s, self._clock)
        topics, keys = self._unread(timeout_s)
        if not keys:
            return ()
        wanted = dict.fromkeys(keys, Edge.EARLIEST)
        found = self._cluster.offsets(wanted, timeout_s=deadline.request_s)
        starts = {key: fact.offset for key in keys if (fact := found.get(key)) is not None}
        if self._ends is not None:  # an unbounded source retries at the next discovery
            require_located(keys, starts)
        self._short_logs.report_timed_out(key for key in keys if key not in starts)
        starts |= {key: 0 for key in starts if self._is_certainly_new(key)}
        self._known |= set(starts)
        log.info("partitions discovered: partitions=%s", ",".join(f"{t}-{n}" for t, n in starts))
        return tuple(self._split(topics, key, offset) for key, offset in starts.items())

    def fix_ends(self, *, timeout_s: float) -> None:
        """Make the source bounded: it ends where the partitions end now."""
        keys = set(new_partitions((), self._subscribed(timeout_s))) | (self._known - self._gone)
        self._ends = resolve(
            self._cluster,
            self._options.ending,
            sorted(keys),
            option="endingOffsets",
            timeout_s=timeout_s,
            all_before_ms=round(self._wall_clock() * 1000),
        )
        self._discovered_at_s = None

    # --- barriers --------------------------------------------------------------------------------

    def cut(
        self,
        positions: Sequence[SplitRange],
        *,
        max_records: int | None,
        timeout_s: float,
        at_once: bool = False,
    ) -> tuple[SplitRange, ...]:
        """Return the next range of each position, up to the end that readers may see.

        ``at_once``: do not wait for ``minOffsetsPerTrigger``.
        """
        if not positions:
            return ()
        return self._cut(positions, max_records, timeout_s, at_once=at_once)[0]

    def cut_to_ends(
        self,
        positions: Sequence[SplitRange],
        *,
        max_records: int | None,
        timeout_s: float,
        at_once: bool = False,
        whole: bool = False,
    ) -> tuple[SplitRange, ...]:
        """As `cut`, but an empty result means that the source has reached its fixed ends.

        Retries otherwise: a partition may have no leader for a while, and a new leader may report a
        lower end.

        ``whole``: no later cut follows, so the result must reach all ends.

        Raises:
            UnreachableError: a partition has no leader until the time is up, or its log stays
                shorter (if ``whole``, `require_readable_ends` checks that).
        """
        if not positions:
            return ()
        ends = self._ends or {}

        def find() -> tuple[tuple[Splits, bool], Splits]:
            ranges, view = self._cut(positions, max_records, timeout_s, at_once=at_once)
            if not whole and not all(split.is_empty for split in ranges):
                return (ranges, True), ()
            short = stops_short((s for s in ranges if key_of(s) not in self._gone), ends)
            return (ranges, all(key_of(split) in view.latest for split in short)), short

        (ranges, all_have_leaders), short = self._retry.until_complete(
            find, lambda found: ABSENCE_S if found[1] else timeout_s
        )
        if short and not (whole and all_have_leaders):
            raise out_of_reach(short, ends)
        return ranges

    def _cut(
        self,
        positions: Sequence[SplitRange],
        max_records: int | None,
        timeout_s: float,
        *,
        at_once: bool = False,
    ) -> tuple[Splits, ClusterView]:
        deadline = Deadline(timeout_s, self._clock)
        view = self._losses.without_former_leaders(
            positions, self._settled_view(positions, timeout_s)
        )
        starts = self._losses.next_starts(
            positions,
            view,
            retry_for_s=_TRUNCATION_S if self._ends is None else ABSENCE_S,
            timeout_s=deadline.request_s,
        )
        ends = self._visible_ends(starts, view)
        self._short_logs.report(view.latest, self._ends or {}, requested=starts, gone=self._gone)
        if not at_once and self._ends is None and self._min_offsets.is_too_early(starts, ends):
            ends = starts
        if self._options.commit_group_offsets:
            self._publication.renew(without=self._gone)
        limit = smallest_limit(max_records, self._options.max_offsets)
        ends = limit_ends(starts, ends, max_records=limit)
        return tuple(self._next(split, starts, ends, view) for split in positions), view

    def require_readable_ends(self, ranges: Sequence[SplitRange]) -> None:
        """See `check_short_ranges`, with the ends of this source."""
        check_short_ranges(ranges, self._ends or {}, is_error=self._options.fail_on_data_loss)

    def is_finished(self, positions: Sequence[SplitRange]) -> bool:
        """Whether a bounded source has read each position up to its end."""
        return self._ends is not None and all(
            split.end_offset >= self._ends.get(key_of(split), split.end_offset)
            for split in positions
            if key_of(split) not in self._gone
        )

    def fixed_ends(self) -> Mapping[SplitKey, int] | None:
        ends, name = self._ends, self._source_id
        return None if ends is None else {(name, *key): ends[key] for key in ends}

    def lag_records(self, positions: Sequence[SplitRange]) -> int | None:
        """Return the offsets that are not read yet, as of the last cut."""
        if not self._latest:
            return None
        return backlog_records({key_of(s): s.end_offset for s in positions}, self._latest)

    def measure(
        self, positions: Sequence[SplitRange], *, timeout_s: float
    ) -> Mapping[SplitKey, Backlog]:
        return measure_backlogs(self._cluster, positions, self._ends, timeout_s=timeout_s)

    def committed(self, positions: Sequence[SplitRange]) -> None:
        """Publish group offsets for lag tools. Never raises."""
        if self._options.commit_group_offsets:
            self._publication.publish([s for s in positions if key_of(s) not in self._gone])

    def latest(self) -> Mapping[PartitionKey, int]:
        """Return the visible ends at the last cut."""
        return dict(self._latest)

    def close(self) -> None:
        """Release connections."""
        self._cluster.close()

    @property
    def lost_records(self) -> int:
        """Offsets that retention deleted before the source read them (failOnDataLoss=false)."""
        return self._losses.lost_records

    # --- topics and partitions ---------------------------------------------------------------

    def _subscribed(
        self, timeout_s: float, *, topics_must_exist: bool = False
    ) -> Mapping[str, TopicFacts]:
        subscription = self._options.subscription
        existing: frozenset[str] = frozenset()
        if subscription.needs_names:
            existing = self._cluster.topic_names(timeout_s=timeout_s)
        wanted = subscription.choose(existing)
        if isinstance(subscription, Pattern):
            self._report_unread(subscription, existing, wanted)

        def find() -> tuple[Mapping[str, TopicFacts], frozenset[str]]:
            # A topic that a region reads is checked at that region's barrier, not here.
            read = {topic for topic, _ in self._known} if self._ends is None else set[str]()
            found = self._shared.topics(wanted, read, timeout_s=timeout_s)
            return found, subscription.missing(found, self._known)

        found, missing = self._retry.until_complete(find)
        is_refused = topics_must_exist and not wanted <= found.keys()
        if missing and (is_refused or self._options.fail_on_data_loss):
            raise absent(missing, self._where)
        if missing:
            log.warning(
                "topics or partitions do not exist, skipping them: missing=%s",
                ",".join(sorted(missing)),
            )
        topics = subscription.partitions(found)
        if self._first_shown is None:
            self._first_shown = frozenset(new_partitions((), topics))
        return topics

    def _report_unread(
        self, pattern: Pattern, existing: frozenset[str], wanted: frozenset[str]
    ) -> None:
        """Log once that no topic matches, and each name of which only a part matches."""
        if not wanted and self._reported is None:
            log.warning("no topic matches the pattern: pattern=%s", pattern)
        unread = pattern.partly_matched(existing)
        if new := unread - (self._reported or frozenset()):
            log.warning(
                "topics are not read, because only a part of the name matches: pattern=%s "
                "topics=%s; write the pattern for the whole name",
                pattern,
                ",".join(sorted(new)),
            )
        self._reported = (self._reported or frozenset()) | unread

    def _is_certainly_new(self, key: PartitionKey) -> bool:
        """Whether a discovered partition was created while this source ran, or before its restart.

        Then its first record has offset 0, and deleted records of it are lost. A partition that
        exists at the start of the run may be of any age, unless an earlier run has read its topic.
        """
        was_absent = key not in (self._first_shown or ())
        topics = {topic for topic, _ in self._known} if was_absent else self._restored
        return self._options.subscription.grows_by(key[0], topics, was_absent=was_absent)

    def _unread(
        self, timeout_s: float
    ) -> tuple[Mapping[str, TopicFacts], tuple[PartitionKey, ...]]:
        """Return the topics, and those of their partitions that no region reads yet.

        A bounded source retries while a partition that it has an end for is missing: the metadata
        of a broker may be incomplete for a moment.
        """

        def find() -> tuple[tuple[Mapping[str, TopicFacts], tuple[PartitionKey, ...]], KeySet]:
            topics = self._subscribed(timeout_s)
            keys = new_partitions(self._known, topics)
            if self._ends is None:
                return (topics, keys), frozenset()
            wanted = self._ends.keys() - self._known - self._gone
            return (topics, tuple(key for key in keys if key in wanted)), wanted.difference(keys)

        found, absent = self._retry.until_complete(find)
        self._drop_deleted(absent, NewStart.at_ends(()))
        return found

    def _fetch_view(
        self, positions: Sequence[SplitRange], timeout_s: float, start: NewStart | None = None
    ) -> ClusterView:
        """Fetch a view, check that no topic was recreated, and handle deleted partitions.

        ``start``: see `_drop_deleted`.
        """
        starts = {key_of(split): split.end_offset for split in positions}

        def find() -> tuple[ClusterView, tuple[SplitRange, ...]]:
            view = self._shared.view_of(starts, self._known - self._gone, timeout_s=timeout_s)
            check_identity(positions, view.topics)
            absent = vanished(positions, view.topics)
            self._gone -= starts.keys() - {key_of(split) for split in absent}
            # Do not wait again, at every barrier, for partitions that are known to be deleted.
            return view, tuple(split for split in absent if key_of(split) not in self._gone)

        view, gone = self._retry.until_complete(find)
        self._drop_deleted(
            {key_of(split) for split in gone},
            NewStart.at_ends(positions) if start is None else start,
        )
        return view

    def _drop_deleted(self, keys: KeySet, start: NewStart) -> None:
        """``start``: where else the source can continue, if this is an error."""
        if not keys:
            return
        if self._options.fail_on_data_loss:
            raise partitions_gone(keys, self._where, start)
        names = ",".join(f"{topic}-{number}" for topic, number in sorted(keys))
        self._gone |= keys  # not before the check: a suspended region is refused at its restart
        log.warning("partitions were deleted, skipping them: partitions=%s", names)

    def _settled_view(self, positions: Sequence[SplitRange], timeout_s: float) -> ClusterView:
        """Fetch a view. A bounded run waits for a short log here: it may have no later barrier.

        Raises:
            UnreachableError: a log end of a bounded run cannot be fetched.
        """
        starts = {key_of(split): split.end_offset for split in positions}

        def find() -> tuple[ClusterView, Mapping[PartitionKey, int | None]]:
            deadline = Deadline(timeout_s, self._clock)
            view = self._fetch_view(positions, timeout_s)
            view = self._losses.with_log_ends(starts, view, timeout_s=deadline.request_s)
            return view, {} if self._ends is None else self._losses.find_short_logs(starts, view)

        view, shorter = self._retry.until_complete(find)
        require_located(shorter, [key for key, end in shorter.items() if end is not None])
        return view

    # --- offsets -----------------------------------------------------------------------------

    def _visible_ends(
        self, starts: Mapping[PartitionKey, int], view: ClusterView
    ) -> dict[PartitionKey, int]:
        self._latest |= {key: fact.offset for key, fact in view.latest.items()}
        for key in self._gone:  # deleted records are no lag
            self._latest.pop(key, None)
        latest = view.latest
        ends = {k: latest[k].offset if k in latest else start for k, start in starts.items()}
        if self._ends is not None:
            ends = {key: min(end, self._ends.get(key, end)) for key, end in ends.items()}
        return {key: max(end, starts[key]) for key, end in ends.items()}

    def _next(
        self,
        split: SplitRange,
        starts: Mapping[PartitionKey, int],
        ends: Mapping[PartitionKey, int],
        view: ClusterView,
    ) -> SplitRange:
        key = key_of(split)
        fact = view.latest.get(key)
        return next_range(
            split,
            start_offset=starts[key],
            end_offset=ends[key],
            leader_epoch=fact.leader_up_to(ends[key]) if fact else None,
            now_ms=round(self._wall_clock() * 1000),
            topic=view.topics.get(split.topic),
        )

    def _is_discovery_due(self) -> bool:
        if self._ends is not None:  # until each partition that has an end has a start
            return bool(self._ends.keys() - self._known - self._gone)
        if self._discovered_at_s is None:
            return True
        return self._clock() - self._discovered_at_s >= (self._options.discovery_interval_s or 0)

    def _split(
        self,
        topics: Mapping[str, TopicFacts],
        key: PartitionKey,
        offset: int,
        log_end: OffsetFact | None = None,
    ) -> SplitRange:
        return SplitRange(
            source_id=self._source_id,
            topic=key[0],
            topic_id=topics[key[0]].topic_id,
            partition=key[1],
            start_offset=offset,
            end_offset=offset,
            leader_epoch=log_end.leader_up_to(offset) if log_end else None,
        )
