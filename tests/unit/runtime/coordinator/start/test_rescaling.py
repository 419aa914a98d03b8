"""A start with another number of regions: what is refused, settled, and on record afterwards."""

from dataclasses import replace

import pytest

from sluice.runtime.coordinator.policy.assignment import assignment_of
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.coordinator.start.rescaling import redistributed, verify_rescalable
from sluice.runtime.errors import WrongJobError
from sluice.runtime.functions.at_most_once import (
    Drops,
    decode_drops,
    dropped_in_all,
    drops_after,
    encode_drops,
)
from sluice.runtime.functions.record_counts import added, decode_totals, encode_totals, totals_after
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.checkpoint_record import (
    Assignment,
    CheckpointRecord,
    Redistribution,
    RegionRecord,
    RegionStatus,
    StateSnapshot,
)
from sluice.runtime.model.splits import BatchKey
from tests.kit.coordinator.checkpoint_records import keyed_state
from tests.kit.coordinator.core_driver import committable, split
from tests.kit.coordinator.starting_job import GRAPH, JOB_UID, PLAN, Job, record
from tests.kit.fakes import entry_of, transactional_id

_STATE = StateSnapshot(
    provider="rocksdb", checkpoint_format_version=2, state_version=1, state_partitions=1
)


def plan_of(*names: str, **changes: object) -> JobPlan:
    """The job with these regions of its source."""
    regions = tuple(replace(PLAN.regions[0], name=name, **changes) for name in names)  # type: ignore[arg-type]
    return replace(PLAN, regions=regions)


def two_regions(checkpoint_id: int, **changes: object) -> CheckpointRecord:
    """A decided record of ``main-0`` and ``main-1``, the second skipped from the one before."""
    regions = (
        RegionRecord(
            region="main-0", attempt_id=0, batch_id=2, splits=(split(0, 10, 20), split(2, 10, 20))
        ),
        RegionRecord(
            region="main-1",
            attempt_id=0,
            batch_id=1,
            status=RegionStatus.SKIPPED,
            snapshot_id=1,
            splits=(split(1, 0, 10),),
        ),
    )
    made = record(checkpoint_id, regions=regions, assignment=assignment_of(regions))
    return replace(made, **changes)  # type: ignore[arg-type]


def test_restore_by_attempt_a_start_with_other_regions_continues_at_the_end_of_each_snapshot() -> (
    None
):
    job = Job(record(0), two_regions(2), committed=(0, 2))
    found = job.start(plan=plan_of("main-0", "main-1", "main-2"))
    assert found.assignment.version == 2
    assert {
        name: [(s.partition, s.end_offset) for s in region.splits]
        for name, region in found.regions.items()
    } == {"main-0": [(0, 20)], "main-1": [(1, 10)], "main-2": [(2, 20)]}
    assert found.regions["main-2"].attempt_id == found.attempt_id
    assert sorted(s.end_offset for s in job.source.restored) == [10, 20, 20]


@pytest.mark.parametrize("names", [("main-0", "main-1"), ("main",)])
def test_a_topic_that_its_source_gives_up_leaves_the_record_and_the_others_continue(
    names: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that another region reads from now on; a later start finds it still on record."""
    old = two_regions(2)
    (kept, retired), (other,) = (region.splits for region in old.regions)
    retired = replace(retired, topic="retired", end_offset=17)
    moved = replace(kept, topic="retired", partition=9)
    regions = (
        replace(old.regions[0], splits=(kept, retired, moved)),
        replace(old.regions[1], splits=(other,)),
    )
    assignment = Assignment(
        version=5,
        regions={
            "main-0": frozenset({kept.key, retired.key}),
            "main-1": frozenset({other.key, moved.key}),
        },
    )
    job = Job(record(0), replace(old, regions=regions, assignment=assignment), committed=(0, 2))
    forgotten = frozenset({(kept.source_id, "retired"), ("another source", kept.topic)})
    found = job.start(plan=replace(plan_of(*names), forgotten=forgotten))
    ends = {s.key: s.end_offset for region in found.regions.values() for s in region.splits}
    assert ends == {kept.key: 20, other.key: 10}
    assert found.assignment.version > 5
    assert {s.key for s in job.source.restored} == {kept.key, other.key}
    assert "retired-2=17" in caplog.text
    assert len(job.start(plan=plan_of("main-0", "main-1")).assignment.regions["main-0"]) == 2


def test_a_crash_before_the_first_decision_leaves_the_old_assignment() -> None:
    """The seal says nothing of regions: the next run begins where this one did."""
    job = Job(record(0), two_regions(2), committed=(0, 2))
    job.start(plan=plan_of("main-0", "main-1", "main-2"))
    found = job.start(plan=plan_of("main"))
    assert found.assignment.version == 2
    assert [s.partition for s in found.regions["main"].splits] == [0, 1, 2]
    again = job.start(plan=plan_of("main-0", "main-1"))
    assert again.assignment == two_regions(2).assignment
    assert again.attempt_id > found.attempt_id


def test_ids_never_reused_what_vanished_regions_opened_is_settled_before_the_run_begins() -> None:
    """Committed if it is decided, aborted if not, whatever their names were."""
    job = Job(record(0), committed=(0,))

    def open_of(region: str, name: str) -> object:
        batch = BatchKey(region=region, attempt_id=0, batch_id=2)
        transaction = job.broker.init(transactional_id(JOB_UID, batch, name))
        job.broker.append(transaction, 0, name)
        return transaction

    decided = entry_of(open_of("main-0", "decided"))  # type: ignore[arg-type]
    open_of("main-1", "orphan")
    old = two_regions(2)
    regions = (replace(old.regions[0], committables=(decided,)), old.regions[1])
    job.store.records |= {1: record(1, verdict=old.verdict), 2: replace(old, regions=regions)}
    job.store.committed.add(1)
    job.start(plan=plan_of("main"))
    assert 2 in job.store.committed
    assert not job.broker.ongoing()
    assert job.broker.read_committed(0) == ["decided"]


def test_a_lost_transaction_of_a_vanished_region_is_one_of_its_heirs() -> None:
    """Regions of one source have the same functions: any of them may write it again."""
    (lost, _) = two_regions(2).regions
    heir = plan_of("main").heir_of(lost)
    assert heir.name == "main"
    kept = plan_of("main-0", "main-9").heir_of(lost)
    assert kept.name == "main-0"
    other = JobPlan(name="job", regions=(RegionPlan(name="x", source_ids=("other",)),))
    assert other.heir_of(lost) is None


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (plan_of("main", stateful=True), "regions=main"),
        (plan_of("main-0", "main-1", "main-2", keeps_logs=True), "regions=main-0,main-1,main-2"),
        (plan_of("main-0", "new", source_ids=("source", "new")), "regions=main-0,new"),
    ],
)
def test_regions_that_cannot_be_exchanged_are_refused_by_name(changed: JobPlan, says: str) -> None:
    job = Job(record(0), two_regions(2), committed=(0, 2))
    with pytest.raises(WrongJobError, match=says):
        job.start(plan=changed)
    assert set(job.store.records) == {0, 2}


def test_a_new_source_under_the_name_of_an_old_region_is_refused() -> None:
    """Its name is made from the topics that the old one has read; it has no positions here, and
    would begin at the earliest record, or never."""
    changed = replace(
        PLAN,
        regions=(
            replace(PLAN.regions[0], name="orders-refunds"),
            replace(PLAN.regions[0], name="main", source_ids=("new",)),
        ),
    )
    job = Job(record(0), record(1), committed=(0, 1))
    with pytest.raises(WrongJobError, match="regions=main"):
        job.start(plan=changed)


def test_regions_that_have_exchanged_their_sources_are_refused() -> None:
    graph = (*GRAPH, replace(GRAPH[0], operator_id="other", name="payments"))
    regions = (
        RegionRecord(region="a", attempt_id=0, batch_id=1, splits=(split(0, 0, 10),)),
        RegionRecord(
            region="b",
            attempt_id=0,
            batch_id=1,
            splits=(replace(split(0, 0, 10), source_id="other"),),
        ),
    )
    old = record(1, regions=regions, graph=graph, assignment=assignment_of(regions))
    one, two = (
        replace(PLAN.regions[0], name=name, source_ids=(source,))
        for name, source in (("a", "other"), ("b", "source"))
    )
    with pytest.raises(WrongJobError, match="regions=a,b"):
        verify_rescalable(old, replace(PLAN, regions=(one, two), graph=graph))


def test_a_region_with_state_does_not_vanish() -> None:
    old = two_regions(2)
    regions = (replace(old.regions[0], state=_STATE), old.regions[1])
    job = Job(record(0), replace(old, regions=regions), committed=(0, 2))
    with pytest.raises(WrongJobError, match="regions=main-0"):
        job.start(plan=plan_of("main"))


@pytest.mark.parametrize("redistribution", [Redistribution.KEYED_RANGE, Redistribution.BROADCAST])
def test_state_that_nobody_can_continue_with_is_refused(redistribution: Redistribution) -> None:
    old = two_regions(2)
    entry = replace(committable("kept"), redistribution=redistribution)
    regions = (old.regions[0], replace(old.regions[1], operator_states=(entry,)))
    job = Job(record(0), replace(old, regions=regions, graph=GRAPH), committed=(0, 2))
    with pytest.raises(
        WrongJobError, match=r"can take over the state of a removed.*region=main-1 sink=copy"
    ):
        job.start(plan=plan_of("main-0"))
    with pytest.raises(WrongJobError, match="can take over the state of a removed"):
        job.start(plan=plan_of("main-0", stateful_sink_ids=()))


def test_a_region_has_not_passed_a_time_that_a_split_it_gets_has_not() -> None:
    old = two_regions(2)
    (fast, slow) = (
        replace(
            region,
            least_watermark_ms=mark,
            splits=tuple(replace(s, watermark_ms=mark) for s in region.splits),
        )
        for region, mark in zip(old.regions, (900, 100), strict=True)
    )
    late = replace(old, regions=(fast, slow))
    (one,), _ = redistributed(late, plan_of("main-0"), attempt_id=3)
    assert one.least_watermark_ms == 100
    regions, _ = redistributed(late, plan_of("main-0", "main-1", "main-2"), attempt_id=3)
    assert [region.least_watermark_ms for region in regions] == [900, 100, 900]


@pytest.mark.parametrize("keyed", [True, False])
def test_a_keyed_region_without_splits_knows_the_numbers_of_tables(*, keyed: bool) -> None:
    """After a restore under other uids, they are not what the names give. A split that it gets
    later has its state under these numbers."""
    old = two_regions(2)
    first, second = old.regions
    state = keyed_state(*(s.key for s in first.splits))
    old = replace(old, regions=(replace(first, keyed_state=state), second))
    names = ("main-0", "main-1", "main-2", "main-3")
    regions, _ = redistributed(old, plan_of(*names, keyed=keyed), attempt_id=3)
    assert regions[3].splits == ()
    found = regions[3].keyed_state
    assert (found and (found.tables, found.splits)) == ((state.tables, ()) if keyed else None)
    same = replace(
        old,
        regions=(old.regions[0], replace(second, splits=())),
        assignment=assignment_of((first, replace(second, splits=()))),
    )
    regions, _ = redistributed(same, plan_of("main-0", "main-1", keyed=keyed), attempt_id=3)
    assert bool(regions[1].keyed_state) is keyed


def test_counts_of_regions_that_became_one_are_added() -> None:
    entries = [
        encode_totals(RecordCounts(read=read, skipped=1), operator_id="f") for read in (5, 7)
    ]
    (entry,) = totals_after(entries, {"f": RecordCounts(read=1)})
    assert decode_totals(entry) == RecordCounts(read=13, skipped=2)
    assert added([]) == {}


def test_dropped_ranges_of_a_vanished_region_stay_counted() -> None:
    """In the region that continues with its splits, whose next batch adds them up."""
    entries = [encode_drops(Drops(in_all=n, ranges=()), operator_id="source") for n in (5, 7)]
    old = two_regions(2)
    regions = tuple(
        replace(region, operator_states=(entry,))
        for region, entry in zip(old.regions, entries, strict=True)
    )
    (one,), _ = redistributed(replace(old, regions=regions), plan_of("main-0"), attempt_id=3)
    assert dropped_in_all(one.operator_states) == 12
    (entry,) = drops_after(one.operator_states, [split(0, 20, 23)])
    assert decode_drops(entry).in_all == 15


@pytest.mark.parametrize("kept", ["counted", "dropped", "held"])
def test_what_a_vanished_region_kept_stays_with_readers_of_its_source(kept: str) -> None:
    """A region of another source would count records that it has never read, or continue with files
    of another pipeline's rows."""
    audit = (replace(GRAPH[0], operator_id="audit", name="audit"),)
    entry = {
        "counted": encode_totals(RecordCounts(read=5), operator_id="source"),
        "dropped": encode_drops(Drops(in_all=5, ranges=()), operator_id="source"),
        "held": replace(committable("held"), redistribution=Redistribution.SPLIT),
    }[kept]
    main, side = two_regions(2).regions
    other = RegionRecord(region="a", attempt_id=0, batch_id=1, splits=(split(0, 0, 1),))
    other = replace(other, splits=(replace(other.splits[0], source_id="audit"),))
    regions = (other, main, replace(side, operator_states=(entry,)))
    old = replace(
        two_regions(2), regions=regions, assignment=assignment_of(regions), graph=(*GRAPH, *audit)
    )
    first, last = plan_of("a", "main-0").regions
    plan = replace(PLAN, regions=(replace(first, source_ids=("audit",)), last), graph=old.graph)
    verify_rescalable(old, plan)
    states = {
        each.region: each.operator_states for each in redistributed(old, plan, attempt_id=3)[0]
    }
    assert states == {"a": (), "main-0": (entry,)}


def test_what_a_function_that_the_graph_does_not_name_has_counted_stays_counted() -> None:
    """An older Sluice recorded no such operator: the splits of its region say what it read."""
    old = two_regions(2)
    counted = encode_totals(RecordCounts(read=5, skipped=1), operator_id="unnamed")
    regions = (old.regions[0], replace(old.regions[1], operator_states=(counted,)))
    (one,), _ = redistributed(replace(old, regions=regions), plan_of("main-0"), attempt_id=3)
    assert one.operator_states == (counted,)


def test_restore_by_attempt_a_region_that_stays_keeps_what_it_reads_of_another_source() -> None:
    """Only the source that loses a reader is assigned again: no range has two regions."""
    audit = split(0, 0, 7, source_id="audit")
    main, side = two_regions(2).regions
    regions = (replace(main, splits=(*main.splits, audit)), side)
    old = replace(two_regions(2), regions=regions, assignment=assignment_of(regions))
    both = ("source", "audit")
    plan = plan_of("main-0", "main-2")
    plan = replace(plan, regions=(replace(plan.regions[0], source_ids=both), plan.regions[1]))
    found = {region.region: region.splits for region in redistributed(old, plan, attempt_id=3)[0]}
    assert audit in found["main-0"]
    read = sorted(each.key for splits in found.values() for each in splits)
    assert read == sorted(each.key for region in regions for each in region.splits)
