"""Splits and regions, for any numbers: assignment, load balancing, and other numbers of regions."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.coordinator.policy.assignment import (
    Move,
    assignment_of,
    extended,
    hand_over,
    moved,
    recorded,
    to_least_loaded,
)
from sluice.runtime.coordinator.policy.balance import Choice, LoadBalancer, RegionLoad
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.coordinator.start.recovery import first_regions
from sluice.runtime.coordinator.start.rescaling import redistributed, verify_rescalable
from sluice.runtime.errors import ConfigError, DamagedCheckpointError, IllegalTransitionError
from sluice.runtime.model.checkpoint_record import (
    Assignment,
    CheckpointRecord,
    OperatorNode,
    RegionRecord,
    RegionStatus,
    StateEntry,
)
from sluice.runtime.model.splits import SplitKey, SplitRange
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.coordinator.core_driver import committable, split
from tests.kit.keyed_parts import state_at_ends

_NAMES = ("a", "b", "c", "d")
_regions = st.integers(1, len(_NAMES)).map(lambda count: _NAMES[:count])


def _records(places: dict[str, list[SplitRange]]) -> tuple[RegionRecord, ...]:
    return tuple(
        _keyed(RegionRecord(region=name, attempt_id=0, splits=tuple(splits)))
        for name, splits in places.items()
    )


def _keyed(region: RegionRecord) -> RegionRecord:
    """With keyed state: the file of each split's one names the end that it is of."""
    return replace(region, keyed_state=state_at_ends(region.splits))


def _states(regions: Iterable[RegionRecord]) -> dict[SplitKey, str]:
    """The file of each split's state; each must be where the split is."""
    found: dict[SplitKey, str] = {}
    for region in regions:
        state = region.keyed_state
        splits = () if state is None else state.splits
        assert {s.key for s in splits} == {s.key for s in region.splits}
        for each in splits:
            assert state is not None
            found[each.key] = state.files[each.parts[0].file].path
    return found


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
    assert _states(found) == _states(regions), "state-with-output: the state goes along"


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


def _key(number: int) -> SplitKey:
    return ("source", "orders", number)


def _loads(
    places: Mapping[SplitKey, str],
    records: Mapping[SplitKey, int],
    speeds: Mapping[str, float | None],
) -> dict[str, RegionLoad]:
    return {
        name: RegionLoad(
            records={key: records[key] for key, place in places.items() if place == name},
            records_per_s=speed,
        )
        for name, speed in speeds.items()
    }


def _seconds(load: RegionLoad, otherwise_per_s: float) -> float:
    return sum(load.records.values()) / (load.records_per_s or otherwise_per_s)


@st.composite
def _jobs(
    draw: st.DrawFn,
) -> tuple[dict[SplitKey, str], dict[SplitKey, int], dict[str, float | None]]:
    names = _NAMES[: draw(st.integers(2, len(_NAMES)))]
    keys = [_key(number) for number in range(draw(st.integers(0, 12)))]
    return (
        {key: draw(st.sampled_from(names)) for key in keys},
        {key: draw(st.integers(0, 10_000)) for key in keys},
        {name: draw(st.none() | st.floats(1.0, 1_000.0)) for name in names},
    )


_balancers = st.builds(
    LoadBalancer,
    ratio=st.floats(1.1, 4.0),
    least_s=st.floats(0.1, 60.0),
    patience=st.integers(1, 4),
    max_moves=st.integers(1, 3),
)


@given(_jobs(), _balancers)
def test_moves_end_and_no_assignment_comes_twice_under_constant_speeds(
    job: tuple[dict[SplitKey, str], dict[SplitKey, int], dict[str, float | None]],
    balancer: LoadBalancer,
) -> None:
    """Nothing plays ping-pong: each checkpoint moves at most ``max_moves``, only splits that are
    there, never the last one of a region; and then all is quiet."""
    places, records, speeds = job
    seen = [dict(places)]
    choice = Choice()
    quiet = 0
    while quiet <= balancer.patience:
        choice = balancer.choose(_loads(places, records, speeds), choice.overloaded)
        assert len(choice.moves) <= balancer.max_moves
        for move in choice.moves:
            assert places[move.split] == move.source_region != move.target_region
            assert move.target_region in speeds
            assert list(places.values()).count(move.source_region) > 1
            places[move.split] = move.target_region
            assert places not in seen
            seen.append(dict(places))
        quiet = 0 if choice.moves else quiet + 1
        assert len(seen) < 1_000


@given(_jobs(), _balancers)
def test_a_move_makes_the_larger_load_of_its_regions_smaller(
    job: tuple[dict[SplitKey, str], dict[SplitKey, int], dict[str, float | None]],
    balancer: LoadBalancer,
) -> None:
    places, records, speeds = job
    known = [speed for speed in speeds.values() if speed]
    before = _loads(places, records, speeds)
    patient = dict.fromkeys(speeds, balancer.patience)
    for move in balancer.choose(before, patient).moves[:1]:
        after = _loads({**places, move.split: move.target_region}, records, speeds)
        larger = max(
            _seconds(after[name], max(known)) for name in (move.source_region, move.target_region)
        )
        assert larger < _seconds(before[move.source_region], max(known))


def _slow(*, records: int = 1_000) -> dict[str, RegionLoad]:
    keys = [_key(number) for number in range(4)]
    return _loads(
        {key: "a" if at < 2 else "b" for at, key in enumerate(keys)},
        dict.fromkeys(keys, records),
        {"a": 25.0, "b": 100.0},
    )


def test_a_region_is_relieved_after_as_many_checkpoints_as_patience_says() -> None:
    balancer = LoadBalancer(patience=3)
    choice = Choice()
    moves = []
    for _ in range(6):
        choice = balancer.choose(_slow(), choice.overloaded)
        moves.append(len(choice.moves))
    assert moves == [0, 0, 1, 0, 0, 1]


def test_no_more_splits_move_at_a_time_than_it_was_reported() -> None:
    keys = [_key(number) for number in range(6)]
    places = dict(zip(keys, "aabbcd", strict=True))
    records = dict(zip(keys, (3_000, 3_000, 2_000, 2_000, 0, 0), strict=True))
    loads = _loads(places, records, dict.fromkeys(_NAMES, 100.0))
    first = LoadBalancer(patience=1, max_moves=1).choose(loads, {})
    assert [move.source_region for move in first.moves] == ["a"]
    assert len(LoadBalancer(patience=1, max_moves=2).choose(loads, {}).moves) == 2


def test_a_region_that_has_waited_is_relieved_though_a_more_loaded_one_has_not() -> None:
    keys = [_key(number) for number in range(5)]
    places = dict(zip(keys, "aabbc", strict=True))
    records = dict(zip(keys, (3_000, 3_000, 2_000, 2_000, 0), strict=True))
    loads = _loads(places, records, dict.fromkeys(("a", "b", "c"), 100.0))
    choice = LoadBalancer(patience=2).choose(loads, {"b": 1})
    assert [move.source_region for move in choice.moves] == ["b"]
    assert choice.overloaded == {"a": 1, "b": 0}


def test_a_split_that_moves_counts_where_it_goes_and_nowhere_else() -> None:
    keys = [_key(number) for number in range(5)]
    places = dict(zip(keys, "aabbc", strict=True))
    records = dict(zip(keys, (3_000, 3_000, 4_000, 1_500, 0), strict=True))
    loads = _loads(places, records, {"a": 100.0, "b": 100.0, "c": 90.0})
    choice = LoadBalancer(patience=1, max_moves=2).choose(loads, {})
    assert [(move.source_region, move.target_region) for move in choice.moves] == [
        ("a", "c"),
        ("b", "a"),
    ]


def test_an_overload_that_passes_is_forgotten() -> None:
    """One even checkpoint in between, and the count begins again."""
    balancer = LoadBalancer(patience=2)
    choice = balancer.choose(_slow(), {})
    choice = balancer.choose(_slow(records=1), choice.overloaded)
    assert balancer.choose(_slow(), choice.overloaded).moves == ()


def test_small_loads_and_unknown_speeds_move_nothing() -> None:
    """Most of a small epoch's time is Spark's own: it says nothing about speed."""
    balancer = LoadBalancer(patience=1)
    assert balancer.choose(_slow(), {}).moves
    assert not balancer.choose(_slow(records=30), {}).moves
    unknown = {
        name: RegionLoad(records=load.records, records_per_s=None) for name, load in _slow().items()
    }
    assert balancer.choose(unknown, {}) == Choice()


@pytest.mark.parametrize(
    "wrong", [{"ratio": 1.0}, {"least_s": 0.0}, {"patience": 0}, {"max_moves": 0}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="load balancing"):
        LoadBalancer(**wrong)  # type: ignore[arg-type]


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
        _keyed(
            RegionRecord(
                region="orders", attempt_id=0, splits=tuple(split(n, 0, 0) for n in range(splits))
            )
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
        keyed = [r for r in regions if r.region != "others"]
        assert _states(keyed) == _states(r for r in last.regions if r.region != "others")
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
        done = replace(region, status=RegionStatus.COMPLETED, splits=tuple(on))
        read.append(done if region.region == "others" else _keyed(done))
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
