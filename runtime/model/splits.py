"""The records that a region reads in one epoch: splits, batches and barriers. Frozen, picklable."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sluice.runtime.errors import ConfigError
from sluice.runtime.model.state.broadcast_version import BroadcastVersion
from sluice.runtime.model.state.keyed_state import KeyedState
from sluice.runtime.model.state.split_key import SplitKey

__all__ = ["Barrier", "BatchKey", "SplitKey", "SplitRange", "busy_by_source", "ranges_text"]

_MOST_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRange:
    """A range of one topic-partition that a region reads in one epoch.

    Attributes:
        source_id: operator id of the source.
        topic: name of the topic.
        topic_id: Kafka's topic UUID in its text form; distinguishes a recreated topic from the old
            one.
        partition: >= 0.
        start_offset: inclusive.
        end_offset: exclusive, the next one to read; >= ``start_offset``.
        leader_epoch: a leader of the partition, if known: no record before ``end_offset`` has a
            later one.
        leader_epoch_end: the offset after the last record known to be of that leader; only markers
            follow it up to ``end_offset``. None: ``end_offset`` itself.
        largest_timestamp_ms: largest record timestamp seen so far, if known.
        watermark_ms: the split's event-time watermark, if one is defined.
        idle_since_ms: time of the last record, or None while records come.
        barrier_watermark_ms: watermark of the barrier that ended this range. A row before it is
            late: its windows are closed, and its timers have fired. None: no barrier had one yet.
    """

    source_id: str
    topic: str
    topic_id: str
    partition: int
    start_offset: int
    end_offset: int
    leader_epoch: int | None = None
    leader_epoch_end: int | None = None
    largest_timestamp_ms: int | None = None
    watermark_ms: int | None = None
    idle_since_ms: int | None = None
    barrier_watermark_ms: int | None = None

    def __post_init__(self) -> None:
        if self.partition < 0 or not 0 <= self.start_offset <= self.end_offset:
            raise ConfigError(
                "a split's range is not valid",
                {
                    "topic": self.topic,
                    "partition": self.partition,
                    "start_offset": self.start_offset,
                    "end_offset": self.end_offset,
                },
                "Give start offsets >= 0 and end offsets that are not lower.",
            )

    @property
    def key(self) -> SplitKey:
        """The split, without its range."""
        return self.source_id, self.topic, self.partition

    @property
    def name(self) -> str:
        """``topic-partition``, the key of the split inside Spark's offset."""
        return f"{self.topic}-{self.partition}"

    @property
    def is_empty(self) -> bool:
        """Whether the range holds no offset."""
        return self.start_offset == self.end_offset

    @property
    def known_end(self) -> int:
        """The offset after the last record to which ``leader_epoch`` applies."""
        return self.end_offset if self.leader_epoch_end is None else self.leader_epoch_end

    def at_end(self) -> "SplitRange":
        """The start of the next range, as an empty range."""
        return self if self.is_empty else replace(self, start_offset=self.end_offset)


def busy_by_source(ranges: Iterable[SplitRange]) -> dict[str, list[SplitRange]]:
    """The ranges with records, by the operator id of their source."""
    found: dict[str, list[SplitRange]] = {}
    for split in ranges:
        if not split.is_empty:
            found.setdefault(split.source_id, []).append(split)
    return found


def ranges_text(ranges: Iterable[SplitRange]) -> str:
    """The ranges with records, as text for an error: ``orders-0[10,20)``."""
    found = [f"{r.name}[{r.start_offset},{r.end_offset})" for r in ranges if not r.is_empty]
    more = f",and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return ",".join(found[:_MOST_NAMED]) + more


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BatchKey:
    """The identity of a batch: never its offsets, never its checkpoint id (`batch-identity`).

    Attributes:
        region: name of the region.
        attempt_id: one attempt of the region between two restarts; >= 0, never used twice.
        batch_id: Spark's batch id inside the region's checkpoint location; >= 0.
    """

    region: str
    attempt_id: int
    batch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """A barrier of one region: the ranges of the epoch that checkpoint ``checkpoint_id`` ends.

    Attributes:
        checkpoint_id, region, attempt_id: of that epoch.
        splits: the ranges; all empty if a sink requested a batch without records.
        publishes_all: no sink may keep rows for a later epoch: the region's bounded sources end
            with it, or its checkpoint is a savepoint, a full or a final one.
        watermark_ms: event time that all splits of the source have passed, as of decided epochs;
            never back, and the same for all regions that read the source. Windows close and event
            timers fire by it. None: it has no time yet.
        aligned_ms: least watermark of the splits of other regions that are read in step with these
            (``max_drift``), as of decided epochs; None: there is none.
        time_ms: wall clock of the driver when the barrier was given; processing timers fire by it.
        is_end: the input ends with it: every window closes.
        new_state: of a keyed region: the state of each split that the attempt does not have; of
            all its splits, if it runs in batches. None: the region is not keyed.
        broadcasts: the versions of broadcast streams that the epoch which it ends uses; the same in
            all regions.
        next_broadcasts: those that the next epoch probably uses.
    """

    checkpoint_id: int
    region: str
    attempt_id: int
    splits: tuple[SplitRange, ...]
    publishes_all: bool = False
    watermark_ms: int | None = None
    aligned_ms: int | None = None
    time_ms: int = 0
    is_end: bool = False
    broadcasts: tuple[BroadcastVersion, ...] = ()
    next_broadcasts: tuple[BroadcastVersion, ...] = ()
    new_state: KeyedState | None = None
