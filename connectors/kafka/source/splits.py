"""Decisions about splits: limits, losses, identity, new partitions. Pure."""

import itertools
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.runtime.errors import ConfigError, DataLostError, SourceChangedError, UnreachableError
from sluice.runtime.model.splits import SplitRange

__all__ = [
    "LostRange",
    "NewStart",
    "TopicFacts",
    "absent",
    "backlog_records",
    "beyond",
    "check_identity",
    "data_lost",
    "is_recreated",
    "key_of",
    "known_id",
    "limit_ends",
    "log_truncated",
    "lost_to_retention",
    "new_partitions",
    "next_range",
    "on_other_log",
    "out_of_reach",
    "partitions_gone",
    "reach",
    "require_forward",
    "require_whole",
    "smallest_limit",
    "split_evenly",
    "stops_short",
    "vanished",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """Id and partitions of a topic.

    Attributes:
        topic_id: Kafka's UUID in its text form; see `known_id`.
        partitions: numbers of its partitions.
    """

    topic_id: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRange:
    """Offsets of records that are gone; the end is exclusive."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int

    @property
    def key(self) -> PartitionKey:
        """Topic and partition."""
        return self.topic, self.partition

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start_offset},{self.end_offset})"


def key_of(split: SplitRange) -> PartitionKey:
    """Topic and partition of a split."""
    return split.topic, split.partition


_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


def known_id(topic_id: str) -> str | None:
    """The id; None: unknown. Brokers without topic ids (before Kafka 2.8) make clients report the
    UUID zero, and checkpoints keep it."""
    return None if topic_id in ("", _NO_ID) else topic_id


def is_recreated(before: str, now: str) -> bool:
    """Whether both ids of a topic are known and differ: it was deleted and created again."""
    old, new = known_id(before), known_id(now)
    return old is not None and new is not None and old != new


def check_identity(positions: Iterable[SplitRange], found: Mapping[str, TopicFacts]) -> None:
    """Refuse topics that were deleted and recreated: their offsets mean other records.

    Raises:
        SourceChangedError: names both ids of every such topic.
    """
    recreated = {
        split.topic: f"{split.topic_id}->{found[split.topic].topic_id}"
        for split in positions
        if split.topic in found and is_recreated(split.topic_id, found[split.topic].topic_id)
    }
    if recreated:
        raise SourceChangedError(
            "a topic was deleted and recreated (old id->new id)",
            recreated,
            "Start from a new checkpoint directory to read the new topic: the offsets of the old "
            "one mean other records now.",
        )


def absent(missing: Collection[str], where: Mapping[str, object]) -> SourceChangedError:
    """The error for subscribed topics and partitions that do not exist."""
    return SourceChangedError(
        "a topic or partition of the source does not exist",
        {"missing": ",".join(sorted(missing)), **where},
        "Create it, or correct the name.",
    )


_SHOWN = 2_000  # characters
_UNFINISHED = (
    "Spark has not finished the batch from read_to to batch_end: start at read_to if the sink has "
    "not decided this batch, else at batch_end. 'sluice checkpoint inspect' shows the ends of the "
    "last batch that a Sluice sink has decided. If 'sluice checkpoint list' calls it unfinished, "
    "commit it first ('sluice txn commit')."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStart:
    """The offsets of a new checkpoint directory, for an error that refuses the old one.

    Attributes:
        offsets: by name, as starting offsets; shortened if they are long.
        is_batch_finished: the sink has decided all that was read: there is one place to start at.
    """

    offsets: Mapping[str, str]
    is_batch_finished: bool

    @classmethod
    def at_ends(cls, positions: Iterable[SplitRange]) -> Self:
        """At the ends of the last decided ranges."""
        ends = {key_of(split): split.end_offset for split in positions}
        return cls(offsets={"read_to": _as_offsets(ends)}, is_batch_finished=True)

    @classmethod
    def of_unfinished(cls, ranges: Sequence[SplitRange]) -> Self:
        """At one of the two bounds of a batch. Only its sink knows whether it has written it."""
        starts = {key_of(split): split.start_offset for split in ranges}
        ends = {key_of(split): split.end_offset for split in ranges}
        return cls(
            offsets={"read_to": _as_offsets(starts), "batch_end": _as_offsets(ends)},
            is_batch_finished=False,
        )

    @property
    def give_up(self) -> str:
        """The remedy for retired topics."""
        by_name = (
            "To give up whole topics, name them in forget= (drop-in: forgetTopics): all other "
            "topics continue. Or start from a new checkpoint directory"
        )
        if self.is_batch_finished:
            return f"{by_name} at the offsets in read_to."
        return f"{by_name}. {_UNFINISHED}"


def _as_offsets(bounds: Mapping[PartitionKey, int]) -> str:
    found: dict[str, dict[str, int]] = {}
    for topic, number in sorted(bounds):
        found.setdefault(topic, {})[str(number)] = bounds[topic, number]
    text = json.dumps(found, separators=(",", ":"))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… (sluice checkpoint inspect)"


def partitions_gone(
    keys: Collection[PartitionKey], where: Mapping[str, object], start: NewStart
) -> SourceChangedError:
    """The error for partitions that were deleted."""
    names = ",".join(f"{topic}-{number}" for topic, number in sorted(keys))
    return SourceChangedError(
        "partitions of the source were deleted",
        {"partitions": names, **where, **start.offsets},
        f"Set failOnDataLoss=false to skip them. {start.give_up}",
    )


def require_forward(starts: Mapping[PartitionKey, int], ends: Mapping[PartitionKey, int]) -> None:
    """ConfigError with the partitions whose read would end before it starts."""
    inverted = {
        f"{topic}-{number}": f"start={start} end={ends[topic, number]}"
        for (topic, number), start in sorted(starts.items())
        if ends.get((topic, number), start) < start
    }
    if inverted:
        raise ConfigError(
            "a read ends before it starts",
            inverted,
            "Correct the starting or the ending position.",
        )


def stops_short(
    ranges: Iterable[SplitRange], ends: Mapping[PartitionKey, int]
) -> tuple[SplitRange, ...]:
    """Return the ranges that do not reach the requested ends."""
    return tuple(split for split in ranges if split.end_offset < ends.get(key_of(split), 0))


def reach(short: Iterable[SplitRange], ends: Mapping[PartitionKey, int]) -> dict[str, str]:
    """Return actual and requested end of each range, by name."""
    return {
        split.name: f"readable={split.end_offset} ending={ends[key_of(split)]}" for split in short
    }


def require_whole(ranges: Sequence[SplitRange], ends: Mapping[PartitionKey, int]) -> None:
    """ConfigError with the ranges that do not reach the requested ends."""
    short = stops_short(ranges, ends)
    if short:
        raise ConfigError(
            "endingOffsets are after the end of the readable records",
            reach(short, ends),
            "Give endingOffsets that exist, or latest. Records after the start of an open "
            "transaction cannot be read yet.",
        )


def out_of_reach(short: Iterable[SplitRange], ends: Mapping[PartitionKey, int]) -> UnreachableError:
    """The error for a read that cannot reach the requested ends."""
    return UnreachableError(
        "records up to the requested end cannot be read",
        reach(short, ends),
        "Check that the partitions have leaders, then start again. If they have, an unclean leader "
        "election truncated a log: a new start ends at its present end.",
    )


def smallest_limit(first: int | None, second: int | None) -> int | None:
    """The smaller one; None: there is no limit."""
    given = [number for number in (first, second) if number is not None]
    return min(given, default=None)


def on_other_log(
    positions: Sequence[SplitRange],
    topics: Mapping[str, TopicFacts],
    first: Mapping[PartitionKey, int],
    ends: Mapping[PartitionKey, int],
) -> tuple[SplitRange, ...]:
    """Return the positions of one log as those of another one, which has the same records.

    Args:
        topics: of the other log.
        first: offset of the first record of each of its partitions.
        ends: its end offsets, records of open transactions included.
    Raises:
        SourceChangedError: it lacks a partition, or does not have the records at a position.
    """
    missing = vanished(positions, topics)
    outside = {
        split.name: f"position={split.end_offset} log=[{first[key]},{ends[key]})"
        for split in positions
        if (key := key_of(split)) in first and not first[key] <= split.end_offset <= ends[key]
    }
    if missing or outside:
        raise SourceChangedError(
            "a topic of topic_map does not hold the checkpoint's positions",
            {
                **({"missing": ",".join(split.name for split in missing)} if missing else {}),
                **outside,
            },
            "Name a topic with the same records at the same offsets. For another copy, start a "
            "new job without restore_from at its own offsets.",
        )
    return tuple(replace(split, topic_id=topics[split.topic].topic_id) for split in positions)


def vanished(
    positions: Iterable[SplitRange], found: Mapping[str, TopicFacts]
) -> tuple[SplitRange, ...]:
    """Splits whose topic or partition does not exist any more."""
    return tuple(
        split
        for split in positions
        if split.topic not in found or split.partition not in found[split.topic].partitions
    )


def new_partitions(
    known: Iterable[PartitionKey], found: Mapping[str, TopicFacts]
) -> tuple[PartitionKey, ...]:
    """Partitions that exist and are not known yet, sorted."""
    existing = {(name, number) for name, facts in found.items() for number in facts.partitions}
    return tuple(sorted(existing - set(known)))


def lost_to_retention(
    positions: Iterable[SplitRange], earliest: Mapping[PartitionKey, int]
) -> tuple[LostRange, ...]:
    """Return the offsets between each position and the first record that is left."""
    return tuple(
        LostRange(
            topic=split.topic,
            partition=split.partition,
            start_offset=split.end_offset,
            end_offset=earliest[key_of(split)],
        )
        for split in positions
        if split.end_offset < earliest.get(key_of(split), 0)
    )


def beyond(lost: LostRange, counted: LostRange | None) -> LostRange:
    """Return the part of a loss that was not counted before at the same position."""
    if counted is None or counted.start_offset != lost.start_offset:
        return lost
    return replace(lost, start_offset=min(counted.end_offset, lost.end_offset))


def data_lost(lost: Sequence[LostRange]) -> DataLostError:
    """The error that reports lost ranges exactly."""
    return DataLostError(
        "retention deleted records before they were read",
        {
            "records": sum(r.end_offset - r.start_offset for r in lost),
            "ranges": " ".join(map(str, lost)),
        },
        "Raise the topic's retention, then start from a new checkpoint directory; or set "
        "failOnDataLoss=false to skip, count and log the lost records.",
    )


def log_truncated(lost: Sequence[LostRange]) -> DataLostError:
    """The error for logs that end before a position, or that a later leader has rewritten there."""
    return DataLostError(
        "a log was truncated before its records were read",
        {"ranges": " ".join(map(str, lost))},
        "Start from a new checkpoint directory with startingOffsets at the last decided positions "
        "('sluice checkpoint inspect'), but not above the start of each range. An unclean leader "
        "election or a lost disk truncates a log; failOnDataLoss=false does not skip that. If "
        "startingOffsets are past the end of the log, lower them.",
    )


def backlog_records(starts: Mapping[PartitionKey, int], ends: Mapping[PartitionKey, int]) -> int:
    """Return the number of offsets between starts and ends."""
    return sum(max(0, ends[key] - start) for key, start in starts.items() if key in ends)


def limit_ends(
    starts: Mapping[PartitionKey, int],
    ends: Mapping[PartitionKey, int],
    *,
    max_records: int | None,
) -> dict[PartitionKey, int]:
    """Return the ends of the next ranges: all offsets, or a share in proportion to each backlog.

    As in Spark, a share below one record is one record, so that every partition moves.
    """
    ends = {key: max(start, ends.get(key, start)) for key, start in starts.items()}
    total = backlog_records(starts, ends)
    if max_records is None or total <= max_records:
        return ends
    return {
        key: min(ends[key], start + _share(ends[key] - start, total, max_records))
        for key, start in starts.items()
    }


def _share(size: int, total: int, limit: int) -> int:
    if size == 0:
        return 0
    # Integers: a float does not hold every offset exactly.
    return max(1, limit * size // total)


def next_range(
    position: SplitRange,
    *,
    start_offset: int,
    end_offset: int,
    leader_epoch: int | None,
    now_ms: int,
    topic: TopicFacts | None = None,
) -> SplitRange:
    """Return the range after ``position``; a split without records remembers since when.

    ``topic``: its id counts if the position has none.
    """
    idle = start_offset == end_offset
    idle_since_ms = (position.idle_since_ms or now_ms) if idle else None
    if topic is None or known_id(position.topic_id) is not None:
        topic_id = position.topic_id
    else:  # the brokers may have learned to give ids
        topic_id = topic.topic_id
    return replace(
        position,
        topic_id=topic_id,
        start_offset=start_offset,
        end_offset=end_offset,
        leader_epoch=position.leader_epoch if leader_epoch is None else leader_epoch,
        leader_epoch_end=position.leader_epoch_end if leader_epoch is None else None,
        idle_since_ms=idle_since_ms,
    )


def split_evenly(
    ranges: Sequence[SplitRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> tuple[SplitRange, ...]:
    """Split ranges into about ``min_partitions`` tasks, as Spark does; empty ones are left out.

    With more tasks than partitions, several tasks read and write the records of one partition at
    the same time: their order is lost.

    Source: Spark's ``KafkaOffsetRangeCalculator``. Ranges too small to split do not count in the
    proportions of the other ranges.
    """
    busy = [split for split in ranges if not split.is_empty]
    if max_records is not None:
        busy = [
            part for split in busy for part in _cut(split, math.ceil(_size(split) / max_records))
        ]
    if min_partitions is None or len(busy) >= min_partitions:
        return tuple(busy)
    total = sum(map(_size, busy))
    small = [s for s in busy if _share_of(min_partitions, _size(s), total) == 1]
    tasks, total = max(1, min_partitions - len(small)), total - sum(map(_size, small))
    return tuple(
        part
        for split in busy
        for part in _cut(split, 1 if split in small else _share_of(tasks, _size(split), total))
    )


def _share_of(tasks: int, size: int, total: int) -> int:
    return max(1, (2 * tasks * size + total) // (2 * total))  # rounded half up


def _size(split: SplitRange) -> int:
    return split.end_offset - split.start_offset


def _cut(split: SplitRange, parts: int) -> list[SplitRange]:
    bounds = [split.start_offset]
    for left in range(min(parts, _size(split)), 0, -1):
        bounds.append(bounds[-1] + (split.end_offset - bounds[-1]) // left)
    return [
        replace(split, start_offset=start, end_offset=end)
        for start, end in itertools.pairwise(bounds)
    ]
