"""Any history of numbers of regions: each split has one region, none is lost, none goes back."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.coordinator.policy.assignment import Move, assignment_of, hand_over, moved
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.coordinator.start.rescaling import redistributed, verify_rescalable
from sluice.runtime.model.checkpoint_record import (
    Assignment,
    CheckpointRecord,
    OperatorNode,
    RegionRecord,
    RegionStatus,
    StateEntry,
)
from sluice.runtime.model.splits import SplitKey
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.coordinator.core_driver import committable, split

GRAPH = (
    OperatorNode(operator_id="source", name="orders", kind="source", upstream=()),
    OperatorNode(operator_id="other", name="others", kind="source", upstream=()),
    OperatorNode(operator_id="sink", name="copy", kind="sink", upstream=("source",)),
)
_counts = st.integers(1, 5)


def plan_of(count: int) -> JobPlan:
    """``count`` regions of one source, named as a job names them, beside another source's one."""
    names = ["orders"] if count == 1 else [f"orders-{number}" for number in range(count)]
    mine = [RegionPlan(name=name, source_ids=("source",), sink_ids=("sink",)) for name in names]
    other = RegionPlan(name="others", source_ids=("other",))
    return JobPlan(name="job", regions=(*mine, other), graph=GRAPH)


def first(splits: int) -> CheckpointRecord:
    """A record of one region with so many splits, and a split of the other source."""
    regions = (
        RegionRecord(
            region="orders", attempt_id=0, splits=tuple(split(n, 0, 0) for n in range(splits))
        ),
        RegionRecord(
            region="others", attempt_id=0, splits=(split(0, 7, 9, source_id="other"),), batch_id=1
        ),
    )
    return replace(record(0), graph=GRAPH, regions=regions, assignment=assignment_of(regions))


def ends(regions: tuple[RegionRecord, ...]) -> dict[SplitKey, int]:
    found = [s for region in regions for s in region.splits]
    assert len({s.key for s in found}) == len(found), "a split stands in two regions"
    return {s.key: s.end_offset for s in found}


@given(st.integers(0, 12), st.lists(_counts, min_size=1, max_size=8), st.data())
def test_restore_by_attempt_every_split_has_one_region_whatever_the_numbers(
    splits: int, counts: list[int], data: st.DataObject
) -> None:
    """Runs with other numbers of regions, some of which decide nothing, some of which carry regions
    and move splits: none is lost, none is in two, no offset goes back. They are assigned evenly unless
    all of them are where they can stay."""
    last = first(splits)
    for run, count in enumerate(counts, start=1):
        plan = plan_of(count)
        verify_rescalable(last, plan)
        regions, assignment = redistributed(last, plan, attempt_id=run * 10)
        assert ends(regions) == ends(last.regions)
        assert regions == hand_over(regions, assignment), "positions and assignment fit"
        changed = {r.region for r in regions} != {r.region for r in last.regions}
        before = last.assignment or assignment_of(last.regions)
        assert assignment.version == before.version + changed
        sizes = [len(r.splits) for r in regions if r.region != "others"]
        names = {r.region for r in last.regions}
        left = {name for name in names if before.regions[name]} - {r.region for r in regions}
        has_to_move = left or {r.region for r in regions} - names
        assert not has_to_move or max(sizes) - min(sizes) <= 1
        assert next(r for r in regions if r.region == "others") in last.regions
        if data.draw(st.booleans(), label="decides"):
            last = _decided(last, regions, assignment, data)


def _decided(
    last: CheckpointRecord,
    regions: tuple[RegionRecord, ...],
    assignment: Assignment,
    data: st.DataObject,
) -> CheckpointRecord:
    """The run's first decision: some regions have read on, some are skipped; a split may move."""
    read = []
    for region in regions:
        if data.draw(st.booleans(), label="skipped"):
            read.append(replace(region, status=RegionStatus.SKIPPED, snapshot_id=0))
            continue
        steps = [data.draw(st.integers(0, 5)) for _ in region.splits]
        on = [
            replace(s, start_offset=s.end_offset, end_offset=s.end_offset + step)
            for s, step in zip(region.splits, steps, strict=True)
        ]
        read.append(replace(region, status=RegionStatus.COMPLETED, splits=tuple(on)))
    names = [region.region for region in read if region.region != "others"]
    source_region, target_region = (
        data.draw(st.sampled_from(names)),
        data.draw(st.sampled_from(names)),
    )
    given_away = (
        sorted(assignment.regions[source_region])[:1] if source_region != target_region else []
    )
    moves = [
        Move(split=key, source_region=source_region, target_region=target_region)
        for key in given_away
    ]
    return replace(last, regions=tuple(read), assignment=moved(assignment, moves))


@given(_counts, _counts, st.integers(1, 12))
def test_what_vanished_regions_keep_continues_once(before: int, after: int, splits: int) -> None:
    """Each entry in one region that reads its source and writes its sink; kept ones stay."""
    old, _ = redistributed(first(splits), plan_of(before), attempt_id=1)
    kept = [
        replace(r, operator_states=(_held(r.region),)) if r.region != "others" else r for r in old
    ]
    last = replace(first(splits), regions=tuple(kept), assignment=assignment_of(kept))
    verify_rescalable(last, plan_of(after))
    regions, _ = redistributed(last, plan_of(after), attempt_id=2)
    found = {r.region: [e.payload.decode() for e in r.operator_states] for r in regions}
    names = {r.region for r in kept if r.region != "others"}
    assert sorted(name for mine in found.values() for name in mine) == sorted(names)
    assert not found["others"]
    for name in names & found.keys():
        assert name in found[name]


def _held(name: str) -> StateEntry:
    return committable(name)
