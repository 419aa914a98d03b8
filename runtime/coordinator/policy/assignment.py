"""Which region reads which split: assigned evenly, changed by decisions, restored from them. Pure.

A decided checkpoint has the range of each split in the record of the region that read it last. Its
`Assignment` names the region that reads the split from the end of that range on. `hand_over`
combines both, for a region that continues after a decision and for a restored one alike. So a crash
between the two changes nothing.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.runtime.errors import DamagedCheckpointError, IllegalTransitionError
from sluice.runtime.model.checkpoint_record import Assignment, CheckpointRecord, RegionRecord
from sluice.runtime.model.event_time import least_of
from sluice.runtime.model.splits import SplitKey, SplitRange
from sluice.runtime.model.state.keyed_state import KeyedState

__all__ = [
    "Move",
    "assignment_of",
    "extended",
    "hand_over",
    "keyed_state_of",
    "moved",
    "recorded",
    "to_least_loaded",
    "with_partitions",
    "with_tables",
    "without_topics",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A split changes its region at a decision: ``source_region`` has read it up to there."""

    split: SplitKey
    source_region: str
    target_region: str


def to_least_loaded(
    splits: Iterable[SplitRange], loads: Mapping[str, int]
) -> dict[str, tuple[SplitRange, ...]]:
    """Assign each split to the region with the fewest, ties by the order of ``loads``.

    Regions that were even stay so: their numbers of splits differ by one at most.
    """
    counts = dict(loads)
    assigned: dict[str, list[SplitRange]] = {name: [] for name in counts}
    for split in splits:
        least = min(counts, key=lambda name: counts[name])
        assigned[least].append(split)
        counts[least] += 1
    return {name: tuple(found) for name, found in assigned.items()}


def assignment_of(regions: Iterable[RegionRecord]) -> Assignment:
    """The first assignment: each region continues with the splits of its record."""
    return Assignment(
        version=1,
        regions={region.region: frozenset(s.key for s in region.splits) for region in regions},
    )


def recorded(record: CheckpointRecord) -> Assignment:
    """The assignment that a decision made."""
    return record.assignment or assignment_of(record.regions)


def without_topics(
    record: CheckpointRecord, forgotten: Collection[tuple[str, str]]
) -> CheckpointRecord:
    """The record without the splits of some topics, named by source id and topic."""

    def stays(key: SplitKey) -> bool:
        return key[:2] not in forgotten

    before = recorded(record)
    kept = {name: frozenset(filter(stays, keys)) for name, keys in before.regions.items()}
    if kept == before.regions:
        return record
    return replace(
        record,
        regions=tuple(
            replace(
                region,
                splits=tuple(split for split in region.splits if stays(split.key)),
                keyed_state=keyed_state_of([region], kept[region.region]),
            )
            for region in record.regions
        ),
        assignment=Assignment(version=before.version + 1, regions=kept),
    )


def extended(
    assignment: Assignment, regions: Iterable[RegionRecord], *, given_up: Collection[SplitKey] = ()
) -> Assignment:
    """With the splits that are new in the regions; the same one if there are none.

    Args:
        given_up: splits that no region reads any more.
    Raises:
        IllegalTransitionError: a region has read what belongs to another one.
    """
    owners = {key: name for name, keys in assignment.regions.items() for key in keys}
    found = {name: keys.difference(given_up) for name, keys in assignment.regions.items()}
    for region in regions:
        keys = frozenset(split.key for split in region.splits)
        taken = sorted(key for key in keys if owners.get(key, region.region) != region.region)
        if taken:
            raise IllegalTransitionError(
                "a region has read a split of another region",
                {
                    "region": region.region,
                    "splits": ",".join(f"{topic}-{number}" for _, topic, number in taken),
                },
                "Restart from the last checkpoint, and report this bug. Nothing was decided.",
            )
        owners |= dict.fromkeys(keys, region.region)
        found[region.region] = found.get(region.region, frozenset()) | keys
    if found == assignment.regions:
        return assignment
    return Assignment(version=assignment.version + 1, regions=found)


def moved(assignment: Assignment, moves: Iterable[Move]) -> Assignment:
    """With some splits in other regions; the same one if there are no moves.

    Raises:
        IllegalTransitionError: a giver does not have the split, or there is no such taker.
    """
    found = dict(assignment.regions)
    for move in moves:
        if move.split not in found.get(move.source_region, ()) or move.target_region not in found:
            raise IllegalTransitionError(
                "a reassigned split or its target region does not exist",
                {
                    "source_region": move.source_region,
                    "target_region": move.target_region,
                    "split": move.split,
                },
                "Restart from the last checkpoint, and report this bug. Nothing was decided.",
            )
        found[move.source_region] -= {move.split}
        found[move.target_region] |= {move.split}
    if found == assignment.regions:
        return assignment
    return Assignment(version=assignment.version + 1, regions=found)


def hand_over(regions: Iterable[RegionRecord], assignment: Assignment) -> tuple[RegionRecord, ...]:
    """The regions after a decision: each with its own splits, from any region's record.

    Raises:
        DamagedCheckpointError: positions and assignment do not name the same regions and splits.
    """
    found = tuple(regions)
    standing = {split.key: split for region in found for split in region.splits}
    _require_whole(found, standing, assignment)
    return tuple(_with_own(r, found, standing, assignment.regions[r.region]) for r in found)


def keyed_state_of(regions: Iterable[RegionRecord], own: Collection[SplitKey]) -> KeyedState | None:
    """The keyed state of some splits, from the regions that have read them; None: they have none.
    A region without splits keeps the numbers of its tables (`with_tables`).

    Raises:
        DamagedCheckpointError: two regions have the state of one split.
    """
    return KeyedState.merged(
        region.keyed_state.of(own)
        for region in regions
        if region.keyed_state is not None and any(split.key in own for split in region.splits)
    )


def with_partitions(regions: Iterable[RegionRecord]) -> tuple[RegionRecord, ...]:
    """With the number of partitions by which the state of keyed regions is divided."""
    found = tuple(regions)
    if all(region.keyed_state is None for region in found):
        return found
    count = Counter(split.key[:2] for region in found for split in region.splits)

    def counted(region: RegionRecord) -> RegionRecord:
        if region.keyed_state is None:
            return region
        partitions = max((count[split.key[:2]] for split in region.splits), default=0)
        return replace(region, keyed_state=replace(region.keyed_state, partitions=partitions))

    return tuple(map(counted, found))


def _with_own(
    region: RegionRecord,
    regions: Sequence[RegionRecord],
    standing: Mapping[SplitKey, SplitRange],
    own: frozenset[SplitKey],
) -> RegionRecord:
    read = {split.key for split in region.splits}
    if read == own:
        return region
    stay = tuple(split for split in region.splits if split.key in own)
    new = tuple(standing[key].at_end() for key in sorted(own - read))
    # The region has passed only the time that all its splits have passed.
    least_ms = least_of([region.least_watermark_ms, *(split.watermark_ms for split in new)])
    return replace(
        region,
        splits=stay + new,
        least_watermark_ms=least_ms,
        keyed_state=keyed_state_of(regions, own) or _without_splits([region]),
    )


def with_tables(
    regions: Iterable[RegionRecord], keyed: Collection[str], recorded: Sequence[RegionRecord]
) -> tuple[RegionRecord, ...]:
    """With the tables on record for each keyed region that has no state: after a restore their
    numbers are not what their names say, and splits that it gets have these numbers.

    They are the tables of all regions. Their numbers of key groups and partitions are left out:
    those of a region that reads another topic differ."""
    found = _without_splits(recorded)
    tables = found and replace(found, max_parallelism=0, partitions=0)
    return tuple(
        replace(region, keyed_state=tables)
        if region.keyed_state is None and region.region in keyed
        else region
        for region in regions
    )


def _without_splits(regions: Iterable[RegionRecord]) -> KeyedState | None:
    return KeyedState.merged(r.keyed_state.of(()) for r in regions if r.keyed_state is not None)


def _require_whole(
    regions: tuple[RegionRecord, ...],
    standing: Mapping[SplitKey, SplitRange],
    assignment: Assignment,
) -> None:
    assigned = frozenset[SplitKey]().union(*assignment.regions.values())
    in_regions = [{split.key for split in region.splits} for region in regions]
    is_once = len(standing) == sum(map(len, in_regions))
    names = {region.region for region in regions}
    if not is_once or assigned != standing.keys() or names != assignment.regions.keys():
        odd = sorted(assigned ^ standing.keys())
        raise DamagedCheckpointError(
            "a checkpoint's positions and assignment name different splits, or one twice",
            {
                "assignment_version": assignment.version,
                "regions": ",".join(sorted(names ^ assignment.regions.keys())),
                "splits": ",".join(f"{topic}-{number}" for _, topic, number in odd),
            },
            "Restore from another checkpoint (sluice checkpoint list), and report this one.",
        )
