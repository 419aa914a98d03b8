"""Splits and regions, for any number of either: each split has one region, and none is lost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.coordinator.policy.assignment import (
    assignment_of,
    extended,
    hand_over,
    recorded,
    to_least_loaded,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.coordinator.start.recovery import first_regions
from sluice.runtime.errors import ConfigError, DamagedCheckpointError, IllegalTransitionError
from sluice.runtime.model.checkpoint_record import Assignment, RegionRecord
from sluice.runtime.model.splits import SplitRange
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.coordinator.core_driver import split

_NAMES = ("a", "b", "c", "d")
_regions = st.integers(1, len(_NAMES)).map(lambda count: _NAMES[:count])


def _records(places: dict[str, list[SplitRange]]) -> tuple[RegionRecord, ...]:
    return tuple(
        RegionRecord(region=name, attempt_id=0, splits=tuple(splits))
        for name, splits in places.items()
    )


@st.composite
def _standing(draw: st.DrawFn) -> tuple[RegionRecord, ...]:
    """Regions whose records hold some splits, each split in one of them."""
    places: dict[str, list[SplitRange]] = {name: [] for name in draw(_regions)}
    for number in range(draw(st.integers(0, 8))):
        start = draw(st.integers(0, 50))
        found = split(number, start, start + draw(st.integers(0, 9)))
        places[draw(st.sampled_from(sorted(places)))].append(found)
    return _records(places)


@st.composite
def _handed_over(draw: st.DrawFn) -> tuple[tuple[RegionRecord, ...], Assignment]:
    """Regions, and an assignment of the same splits that has nothing to do with where they are."""
    regions = draw(_standing())
    new: dict[str, set[tuple[str, str, int]]] = {region.region: set() for region in regions}
    for region in regions:
        for found in region.splits:
            new[draw(st.sampled_from(sorted(new)))].add(found.key)
    keys = {name: frozenset(mine) for name, mine in new.items()}
    return regions, Assignment(version=draw(st.integers(1, 9)), regions=keys)


# --- dealing --------------------------------------------------------------------------------------


@given(st.integers(0, 40), st.integers(0, 7), _regions)
def test_the_first_assignment_is_even_and_whole(
    many: int, few: int, names: tuple[str, ...]
) -> None:
    """Every split of every source once; regions that read the same sources differ by one split."""
    plan = JobPlan(
        name="job",
        regions=tuple(RegionPlan(name=name, source_ids=("many", "few")) for name in names),
    )
    starts = {
        source_id: [split(number, 5, 5, source_id=source_id) for number in range(count)]
        for source_id, count in (("many", many), ("few", few))
    }
    regions = first_regions(plan, starts)
    dealt = [found for region in regions for found in region.splits]
    assert sorted(s.key for s in dealt) == sorted(s.key for some in starts.values() for s in some)
    sizes = [len(region.splits) for region in regions]
    assert max(sizes) - min(sizes) <= 1
    assert regions == first_regions(plan, starts)
    assert assignment_of(regions).version == 1


@given(st.integers(0, 20), st.dictionaries(st.sampled_from(_NAMES), st.integers(0, 9), min_size=1))
def test_new_splits_go_to_the_least_loaded_regions(count: int, loads: dict[str, int]) -> None:
    new = [split(number, 0, 0) for number in range(count)]
    dealt = to_least_loaded(new, loads)
    assert sorted((s for mine in dealt.values() for s in mine), key=lambda s: s.partition) == new
    now = dict(loads)
    order = {s.partition: name for name, mine in dealt.items() for s in mine}
    for number in range(count):
        first_least = min(now, key=lambda name: now[name])
        assert order[number] == first_least
        now[first_least] += 1


# --- one value that decisions change --------------------------------------------------------------


@given(_standing(), st.lists(st.integers(8, 12), unique=True), st.data())
def test_a_new_split_keeps_its_region(
    regions: tuple[RegionRecord, ...], new: list[int], data: st.DataObject
) -> None:
    before = assignment_of(regions)
    grown = list(regions)
    for number in new:
        at = data.draw(st.integers(0, len(grown) - 1))
        grown[at] = replace(grown[at], splits=(*grown[at].splits, split(number, 0, 0)))
    after = extended(before, grown)
    assert after.version == before.version + bool(new)
    assert all(mine <= after.regions[name] for name, mine in before.regions.items())
    assert after.regions == assignment_of(grown).regions
    assert extended(after, grown) is after


def test_restore_by_attempt_a_new_split_in_two_regions_is_refused() -> None:
    """Nothing is decided by which both would read it."""
    before = assignment_of(_records({"a": [split(0, 0, 0)], "b": []}))
    both = _records({"a": [split(0, 0, 0), split(1, 0, 0)], "b": [split(1, 0, 0)]})
    with pytest.raises(IllegalTransitionError, match=r"region=b splits=input-1"):
        extended(before, both)


@given(_standing(), st.data())
def test_a_split_of_another_region_is_refused(
    regions: tuple[RegionRecord, ...], data: st.DataObject
) -> None:
    """Two regions never read one split: neither in one decision, nor in the next."""
    found = [s for region in regions for s in region.splits]
    taken = data.draw(st.sampled_from(found)) if found else split(0, 0, 1)
    before = extended(
        assignment_of(regions),
        [] if found else [RegionRecord(region="a", attempt_id=0, splits=(taken,))],
    )
    thief = RegionRecord(region="thief", attempt_id=0, splits=(taken,))
    with pytest.raises(IllegalTransitionError, match="split of another region"):
        extended(before, [thief])


def test_an_assignment_gives_a_split_to_one_region() -> None:
    key = split(0, 0, 0).key
    with pytest.raises(ConfigError):
        Assignment(version=1, regions={"a": frozenset({key}), "b": frozenset({key})})


# --- handing over ---------------------------------------------------------------------------------


@given(_handed_over())
def test_restore_by_attempt_regions_continue_where_the_record_says_with_what_it_assigns(
    handed: tuple[tuple[RegionRecord, ...], Assignment],
) -> None:
    """Each split once, at the end of its last range, in the region that it is assigned to; doing
    it again, as a restart does after a decision that was handed over, changes nothing."""
    regions, assignment = handed
    found = hand_over(regions, assignment)
    assert {r.region: frozenset(s.key for s in r.splits) for r in found} == assignment.regions
    ends = {s.key: s.end_offset for region in regions for s in region.splits}
    assert {s.key: s.end_offset for region in found for s in region.splits} == ends
    assert sum(len(region.splits) for region in found) == len(ends)
    before = {(r.region, s) for r in regions for s in r.splits}
    assert all(s.is_empty or (r.region, s) in before for r in found for s in r.splits)
    assert hand_over(found, assignment) == found


@given(_standing())
def test_a_record_without_an_assignment_leaves_every_split_where_it_is(
    regions: tuple[RegionRecord, ...],
) -> None:
    assert hand_over(regions, recorded(record(regions=regions))) == regions


@pytest.mark.parametrize("how", ["missing", "twice", "unknown", "region"])
@given(handed=_handed_over())
def test_positions_and_assignment_that_do_not_fit_are_damage(
    handed: tuple[tuple[RegionRecord, ...], Assignment], how: str
) -> None:
    regions, assignment = handed
    extra = split(99, 0, 5)
    first = regions[0]
    if how == "missing":
        regions = (replace(first, splits=(*first.splits, extra)), *regions[1:])
    elif how == "twice":
        regions = (*regions, RegionRecord(region="e", attempt_id=0, splits=(extra,)))
        regions = (replace(first, splits=(*first.splits, extra)), *regions[1:])
        keys = {**assignment.regions, "e": frozenset({extra.key})}
        assignment = replace(assignment, regions=keys)
    elif how == "unknown":
        keys = {**assignment.regions, first.region: assignment.regions[first.region] | {extra.key}}
        assignment = replace(assignment, regions=keys)
    else:
        regions = (*regions, RegionRecord(region="e", attempt_id=0))
    with pytest.raises(DamagedCheckpointError, match="name different splits"):
        hand_over(regions, assignment)
