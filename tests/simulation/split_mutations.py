"""Rule `restore-by-attempt` broken: the region of a split, and the offset that it starts at."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sluice.runtime.coordinator.core import acknowledgements
from sluice.runtime.coordinator.core import reassignment as moving
from sluice.runtime.coordinator.policy.assignment import assignment_of
from sluice.runtime.coordinator.region.region_state import RegionState
from sluice.runtime.coordinator.start import rescaling, startup


def move_splits_of_skipped_regions(patch: pytest.MonkeyPatch) -> None:
    """Rule `restore-by-attempt`: a skipped region keeps its splits, because its running batch may
    have read them."""
    patch.setattr(moving, "may_move", lambda region, checkpoint: True)


def forget_the_assignment_at_a_start(patch: pytest.MonkeyPatch) -> None:
    """Rule `restore-by-attempt`: a run starts with the splits and offsets of the decision."""
    patch.setattr(rescaling, "recorded", lambda record: assignment_of(record.regions))


def keep_reassigned_splits(patch: pytest.MonkeyPatch) -> None:
    """Rule `restore-by-attempt`: a split has one region, before and after a decision."""
    decided = RegionState.decided

    def broken(self: Any, checkpoint_id: int, record: Any, goes_on: Any, **more: Any) -> None:
        known = {split.key for split in goes_on.splits}
        kept = tuple(split.at_end() for split in record.splits if split.key not in known)
        whole = replace(goes_on, splits=goes_on.splits + kept)
        decided(self, checkpoint_id, record, whole, **more)

    patch.setattr(RegionState, "decided", broken)
    patch.setattr(acknowledgements, "_require_own_splits", lambda state, ack: None)


def assign_splits_ahead_of_the_record(patch: pytest.MonkeyPatch) -> None:
    """Rule `restore-by-attempt`: a run with other regions resumes at exactly the end offsets of the
    record."""

    def broken(record: Any, plan: Any, *, attempt_id: int) -> Any:
        regions, assignment = rescaling.redistributed(record, plan, attempt_id=attempt_id)
        if {each.region for each in regions} == {each.region for each in record.regions}:
            return regions, assignment
        ahead = tuple(
            replace(
                region,
                splits=tuple(
                    replace(split, end_offset=split.end_offset + 1) for split in region.splits
                ),
            )
            for region in regions
        )
        return ahead, assignment

    patch.setattr(startup, "redistributed", broken)


def forget_a_split_of_a_removed_region(patch: pytest.MonkeyPatch) -> None:
    """Rule `restore-by-attempt`: a run with other regions reads every split that the run before it
    read."""

    def broken(record: Any, plan: Any, *, attempt_id: int) -> Any:
        regions, assignment = rescaling.redistributed(record, plan, attempt_id=attempt_id)
        keys = [split.key for region in regions for split in region.splits]
        if {each.region for each in regions} == {each.region for each in record.regions}:
            return regions, assignment
        kept = {name: found - set(keys[:1]) for name, found in assignment.regions.items()}
        fewer = tuple(
            replace(each, splits=tuple(s for s in each.splits if s.key in kept[each.region]))
            for each in regions
        )
        return fewer, replace(assignment, regions=kept)

    patch.setattr(startup, "redistributed", broken)


SPLIT_MUTATIONS: Mapping[
    str, tuple[Callable[[pytest.MonkeyPatch], None], Mapping[str, Any], str]
] = {
    "move splits of skipped regions": (
        move_splits_of_skipped_regions,
        {"regional": True, "regions": 3, "partitions": 5, "fail_region": 0.03, "move": 0.5},
        "a skipped region's split moved",
    ),
    "forget the assignment at a start": (
        forget_the_assignment_at_a_start,
        {"kill": 0.03, "regions": 3, "partitions": 5, "move": 0.5},
        "the assignment's version does not tell",
    ),
    "keep reassigned splits": (
        keep_reassigned_splits,
        {"partitions": 5, "move": 0.5},
        "a bug in a living region",
    ),
    "assign splits ahead of the record": (
        assign_splits_ahead_of_the_record,
        {"rescale": 4, "partitions": 5, "kill": 0.03, "start": 0.1},
        "not everything is visible in the end",
    ),
    "forget a split of a removed region": (
        forget_a_split_of_a_removed_region,
        {"rescale": 4, "partitions": 5, "kill": 0.03, "start": 0.1},
        "a split was lost",
    ),
}
