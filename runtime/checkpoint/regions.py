"""What the coordinator's core knows about one region: its life, its positions, what is decided."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from runtime.checkpoint.pacing import Pace
from runtime.checkpoint.plan import CheckpointSettings, RegionPlan
from runtime.errors import FencedError, IllegalTransitionError, WrongJobError
from runtime.model import Acknowledgement, BatchKey, RegionRecord, RegionStatus, SplitRange

__all__ = ["Fate", "RegionState", "SplitKey", "assign", "key_of", "region_of"]

SplitKey = tuple[str, str, int]


class Fate(enum.Enum):
    """What became of a batch, as far as a sweep must know."""

    OPEN = "open"  # may still be decided, or is decided and not marked: leave it alone
    SETTLED = "settled"  # committed on record: what it opened and did not name is an orphan
    DISCARDED = "discarded"  # will never be decided
    OUTDATED = "outdated"  # of an older generation


def key_of(split: SplitRange) -> SplitKey:
    """Which split it is, whatever its range."""
    return split.source_id, split.topic, split.partition


def _at_end(split: SplitRange) -> SplitRange:
    return replace(split, start_offset=split.end_offset)


def assign(
    splits: Iterable[SplitRange], loads: Mapping[str, int]
) -> dict[str, tuple[SplitRange, ...]]:
    """Give each split to the region with the fewest, ties by the order of ``loads``; pure."""
    counts = dict(loads)
    dealt: dict[str, list[SplitRange]] = {name: [] for name in counts}
    for split in splits:
        least = min(counts, key=lambda name: counts[name])
        dealt[least].append(split)
        counts[least] += 1
    return {name: tuple(found) for name, found in dealt.items()}


@dataclass(slots=True)
class RegionState:
    """One region. Owned by the core, changed only inside its step.

    Attributes:
        plan: what the job says about it.
        generation: its current life.
        record: as the last decided checkpoint has it.
        is_open: False once its batch was aborted or it failed, until it is restarted.
        finished: bounded sources have reached their ends with the last cut.
        discovered: splits that no decided checkpoint has yet.
        cuts: ranges of batches under way, by checkpoint id.
        held: acknowledged batch that no barrier asked for; joins the next checkpoint.
        fence: the checkpoint id whose aborted record ends this life; the next generation.
        discarded: committables of ``held`` when the life ended without a fence yet.
        restart_asked: somebody waits for the next life.
        pace: how large its epochs may be.
    """

    plan: RegionPlan
    generation: int
    record: RegionRecord
    pace: Pace
    is_open: bool = True
    finished: bool = False
    discovered: dict[SplitKey, SplitRange] = field(default_factory=dict)
    cuts: dict[int, tuple[SplitRange, ...]] = field(default_factory=dict)
    held: Acknowledgement | None = None
    fence: int | None = None
    discarded: list[Acknowledgement] = field(default_factory=list)
    restart_asked: bool = False

    def require(self, generation: int) -> None:
        """Refuse messages of another life (rule 12).

        Raises:
            FencedError: the generation is older, or its life has ended.
        """
        if generation != self.generation or not self.is_open:
            raise FencedError(
                "the region has been restarted, or is being stopped",
                {
                    "region": self.plan.name,
                    "generation": generation,
                    "current_generation": self.generation,
                },
                "This batch is no longer wanted; the region's next run reads its range again.",
            )

    def epoch_limit(self, settings: CheckpointSettings) -> int | None:
        """At most so many records per cut; the user's own limit stands above what was learnt."""
        if self.plan.max_records is not None or not settings.pace_epochs:
            return self.plan.max_records
        return self.pace.limit

    def is_behind(self, settings: CheckpointSettings) -> bool:
        """Whether our own limit, not the user's, left records behind at the last cut."""
        return self.plan.max_records is None and settings.pace_epochs and self.pace.is_behind

    def positions(self) -> tuple[SplitRange, ...]:
        """Where the next cut starts: the end of each split's last range."""
        found = {key_of(split): split for split in self.record.splits} | self.discovered
        for checkpoint_id in sorted(self.cuts):
            found |= {key_of(split): split for split in self.cuts[checkpoint_id]}
        return tuple(found.values())

    def is_decided(self, batch: BatchKey) -> bool:
        """Whether the last decided record contains the batch, or a later one (rule 8)."""
        last = self.record.batch_id
        if last is None or batch.batch_id > last:
            return False
        return batch.generation == self.record.generation or self.plan.batch_ids_continue

    def require_new_ranges(self, ack: Acknowledgement) -> None:
        """Refuse a batch that reads what a decided checkpoint contains.

        Raises:
            IllegalTransitionError: it would double those records.
        """
        ends = {key_of(split): split.end_offset for split in self.record.splits}
        for split in ack.region.splits:
            end = ends.get(key_of(split), 0)
            if split.start_offset < end:
                raise IllegalTransitionError(
                    "a batch reads records that a decided checkpoint contains",
                    {
                        "region": self.plan.name,
                        "split": split.name,
                        "start_offset": split.start_offset,
                        "decided_end_offset": end,
                        "batch_id": ack.batch.batch_id,
                    },
                    "Spark's log and the checkpoint do not fit; restart from the checkpoint.",
                )

    def record_with(self, ack: Acknowledgement | None) -> RegionRecord:
        """The region as the next decided record has it; without a batch it stays as it was."""
        if ack is None:
            return replace(
                self.record,
                status=RegionStatus.COMPLETED,
                carried_from=None,
                committables=(),
                splits=self.record.splits + tuple(self.discovered.values()),
            )
        covered = {key_of(split) for split in ack.region.splits}
        others = [_at_end(split) for split in self.record.splits if key_of(split) not in covered]
        others += [split for key, split in self.discovered.items() if key not in covered]
        return replace(
            ack.region,
            region=ack.batch.region,
            generation=ack.batch.generation,
            batch_id=ack.batch.batch_id,
            status=RegionStatus.COMPLETED,
            carried_from=None,
            splits=ack.region.splits + tuple(others),
        )

    def decided(self, checkpoint_id: int, record: RegionRecord) -> None:
        """The record is durable: positions count from it."""
        self.cuts.pop(checkpoint_id, None)
        self.record = record
        for split in record.splits:
            self.discovered.pop(key_of(split), None)

    def close(self, fence: int | None) -> Acknowledgement | None:
        """End this life; returns the held batch, whose callback has to be woken."""
        held, self.held = self.held, None
        if held is not None:
            self.discarded.append(held)
        self.is_open = False
        if fence is not None and self.fence is None:
            self.fence = fence
        return held

    def reopen(self) -> None:
        """Begin the next life behind the fence; its generation is the fence's id."""
        if self.fence is None:
            raise AssertionError("a region is reopened without a fence")
        self.generation, self.fence = self.fence, None
        self.is_open, self.restart_asked, self.finished = True, False, False
        self.cuts.clear()


def region_of(regions: Mapping[str, RegionState], name: str) -> RegionState:
    """The region of that name.

    Raises:
        WrongJobError: the job has none.
    """
    found = regions.get(name)
    if found is None:
        raise WrongJobError(
            "the job has no such region",
            {"region": name, "known": ",".join(regions)},
            "The message comes from another job, or from another version of this one.",
        )
    return found
