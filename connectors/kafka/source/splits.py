"""Decisions about splits: limits, loss, identity, new partitions. Pure.

Everything here is told what the brokers said and answers with values; `enumerator` asks them.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.runtime.errors import ConfigError, DataLostError, SourceChangedError, UnreachableError
from sluice.runtime.model.model import SplitRange

__all__ = [
    "LostRange",
    "TopicFacts",
    "absent",
    "backlog_records",
    "beyond",
    "check_identity",
    "data_lost",
    "key_of",
    "limit_ends",
    "log_truncated",
    "lost_to_retention",
    "new_partitions",
    "next_range",
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
    """What a topic is now.

    Attributes:
        topic_id: Kafka's UUID in its text form.
        partitions: numbers of its partitions.
    """

    topic_id: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRange:
    """Offsets that were still to be read and are gone; the end is exclusive."""

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


def check_identity(positions: Iterable[SplitRange], found: Mapping[str, TopicFacts]) -> None:
    """Refuse topics that were deleted and made again: their offsets mean other records.

    Raises:
        SourceChangedError: names both ids of every such topic.
    """
    recreated = {
        split.topic: f"{split.topic_id}->{found[split.topic].topic_id}"
        for split in positions
        if split.topic in found and found[split.topic].topic_id != split.topic_id
    }
    if recreated:
        raise SourceChangedError(
            "a topic was deleted and made again under its name (old id->new id)",
            recreated,
            "Its offsets mean other records now. Start from a new checkpoint directory to read "
            "the new topic.",
        )


def absent(missing: Collection[str], where: Mapping[str, object]) -> SourceChangedError:
    """The error for topics and partitions that are named and do not exist."""
    return SourceChangedError(
        "what the source names does not exist",
        {"missing": ",".join(sorted(missing)), **where},
        "Create it, or correct the name.",
    )


def partitions_gone(
    keys: Collection[PartitionKey], where: Mapping[str, object]
) -> SourceChangedError:
    """The error for partitions that were read and do not exist any more."""
    names = ",".join(f"{topic}-{number}" for topic, number in sorted(keys))
    return SourceChangedError(
        "partitions that are to be read do not exist any more",
        {"partitions": names, **where},
        "Start from a new checkpoint directory, or go on without them with failOnDataLoss=false.",
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
    """Ranges that stop short of the ends asked for."""
    return tuple(split for split in ranges if split.end_offset < ends.get(key_of(split), 0))


def reach(short: Iterable[SplitRange], ends: Mapping[PartitionKey, int]) -> dict[str, str]:
    """How far such ranges come, and how far they should, by name."""
    return {
        split.name: f"readable={split.end_offset} ending={ends[key_of(split)]}" for split in short
    }


def require_whole(ranges: Sequence[SplitRange], ends: Mapping[PartitionKey, int]) -> None:
    """ConfigError with the ranges that stop short of the ends asked for."""
    short = stops_short(ranges, ends)
    if short:
        raise ConfigError(
            "a read ends behind what can be read",
            reach(short, ends),
            "Give endingOffsets that exist, or latest. An open transaction hides what lies "
            "behind its first record.",
        )


def out_of_reach(short: Iterable[SplitRange], ends: Mapping[PartitionKey, int]) -> UnreachableError:
    """The error for a read that would be over before the ends asked for."""
    return UnreachableError(
        "records that are to be read cannot be reached",
        reach(short, ends),
        "Are the leaders of these partitions up? Start again when they are. If they are, a log was "
        "cut off, as an unclean leader election does: a new start reads what is left.",
    )


def smallest_limit(first: int | None, second: int | None) -> int | None:
    """The smaller one; None: there is no limit."""
    given = [number for number in (first, second) if number is not None]
    return min(given, default=None)


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
    """What lay between each position and the first record that is still there."""
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
    """What of a loss was not part of the one seen before at the same position."""
    if counted is None or counted.start_offset != lost.start_offset:
        return lost
    return replace(lost, start_offset=min(counted.end_offset, lost.end_offset))


def data_lost(lost: Sequence[LostRange]) -> DataLostError:
    """The error that reports lost ranges exactly."""
    return DataLostError(
        "records that were still to be read have been deleted",
        {
            "records": sum(r.end_offset - r.start_offset for r in lost),
            "ranges": " ".join(map(str, lost)),
        },
        "Raise the topic's retention. With failOnDataLoss=false the loss is counted, logged, and "
        "the run goes on at the first record that is left.",
    )


def log_truncated(lost: Sequence[LostRange]) -> DataLostError:
    """The error for logs that end before a position, or that a later leader has rewritten there."""
    return DataLostError(
        "a log was truncated, and records that were to be read are gone",
        {"ranges": " ".join(map(str, lost))},
        "Start from a new checkpoint directory with startingOffsets at the start of each range. "
        "An unclean leader election or a lost disk truncates a log; failOnDataLoss=false does not "
        "skip that. If startingOffsets are past the end of the log, lower them.",
    )


def backlog_records(starts: Mapping[PartitionKey, int], ends: Mapping[PartitionKey, int]) -> int:
    """Offsets that wait to be read."""
    return sum(max(0, ends[key] - start) for key, start in starts.items() if key in ends)


def limit_ends(
    starts: Mapping[PartitionKey, int],
    ends: Mapping[PartitionKey, int],
    *,
    max_records: int | None,
) -> dict[PartitionKey, int]:
    """Ends of the next ranges: all there is, or a share in proportion to each one's backlog.

    As Spark does it, so a share below one record is one record: every partition moves.
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
    # In integers: offsets may be larger than what a float holds exactly.
    return max(1, limit * size // total)


def next_range(
    position: SplitRange,
    *,
    start_offset: int,
    end_offset: int,
    leader_epoch: int | None,
    now_ms: int,
) -> SplitRange:
    """The range that follows ``position``; a split without records remembers since when."""
    idle = start_offset == end_offset
    idle_since_ms = (position.idle_since_ms or now_ms) if idle else None
    return replace(
        position,
        start_offset=start_offset,
        end_offset=end_offset,
        leader_epoch=position.leader_epoch if leader_epoch is None else leader_epoch,
        leader_epoch_end=position.leader_epoch_end if leader_epoch is None else None,
        idle_since_ms=idle_since_ms,
        set_back_from=position.end_offset if start_offset < position.end_offset else None,
    )


def split_evenly(
    ranges: Sequence[SplitRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> tuple[SplitRange, ...]:
    """Cut ranges into more tasks, in proportion to their size; empty ones are left out.

    More tasks than partitions means that one partition's records are read, and written, by
    several tasks at once: their order is lost.
    """
    busy = [split for split in ranges if not split.is_empty]
    if max_records is not None:
        busy = [
            part for split in busy for part in _cut(split, math.ceil(_size(split) / max_records))
        ]
    if min_partitions is None or len(busy) >= min_partitions:
        return tuple(busy)
    total = sum(map(_size, busy))
    return tuple(
        part
        for split in busy
        for part in _cut(split, math.ceil(min_partitions * _size(split) / total))
    )


def _size(split: SplitRange) -> int:
    return split.end_offset - split.start_offset


def _cut(split: SplitRange, parts: int) -> list[SplitRange]:
    parts = min(max(1, parts), _size(split))
    bounds = [split.start_offset + _size(split) * i // parts for i in range(parts + 1)]
    return [
        replace(split, start_offset=start, end_offset=end)
        for start, end in itertools.pairwise(bounds)
    ]
