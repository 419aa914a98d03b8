"""Where a run begins: which checkpoint, which seal, what is settled first; on a store in memory."""

import dataclasses

import pytest

from sluice.runtime.checkpoint.lost_work import LostCommittables
from sluice.runtime.contracts import OpenWork, RegionRegistration
from sluice.runtime.coordinator.committing.commit_steps import Steps, drive
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, OnLost, RegionPlan
from sluice.runtime.coordinator.start import recovery
from sluice.runtime.coordinator.start.startup import MAY_STOP_AT, Found
from sluice.runtime.errors import (
    ConfigError,
    TransactionLostError,
    TransactionUnknownError,
    UnreachableError,
)
from sluice.runtime.model.checkpoint_record import StateEntry, Verdict
from sluice.runtime.model.splits import BatchKey, SplitRange
from tests.kit.coordinator.core_driver import split
from tests.kit.coordinator.starting_job import NEVER_WRITTEN, PLAN, Job, aborted, record
from tests.kit.fakes import TransactionState, entry_of

# --- a new job ------------------------------------------------------------------------------------


def test_a_new_job_stores_its_start_as_numbers_before_anything_runs() -> None:
    """Checkpoint 0: job uid, graph, resolved offsets; decided and committed on record."""
    job = Job()
    found = job.start()
    first = job.store.records[0]
    assert (first.verdict, first.run_attempt, first.restored_from) == (Verdict.DECIDED, 1, None)
    assert [(s.partition, s.end_offset) for s in first.regions[0].splits] == [(0, 0)]
    assert first.job_uid
    assert job.store.committed == {0}
    assert (found.attempt_id, found.is_new, found.cluster_ids) == (0, True, ("fake-cluster",))
    assert job.sink.calls == ["check", "claim", "sweep"]


def test_splits_are_assigned_to_the_regions_that_read_the_source() -> None:
    plan = dataclasses.replace(
        PLAN,
        regions=(
            RegionPlan(name="a", source_ids=("source",)),
            RegionPlan(name="b", source_ids=("source", "other")),
            RegionPlan(name="c", source_ids=("other",)),
        ),
    )
    starts = {
        "source": [split(n, 5, 5) for n in range(3)],
        "unread": [split(0, 0, 0, source_id="unread")],
    }
    regions = recovery.first_regions(plan, starts)
    assert [[s.partition for s in region.splits] for region in regions] == [[0, 2], [1], []]


def test_a_keyed_pipeline_reads_one_topic() -> None:
    """A key that is in two topics would have two states."""
    region = RegionPlan(name="a", source_ids=("source",), keyed=True)
    starts = {"source": [split(0, 0, 0), dataclasses.replace(split(0, 0, 0), topic="another")]}
    with pytest.raises(ConfigError, match="topics=another,input"):
        recovery.first_regions(dataclasses.replace(PLAN, regions=(region,)), starts)


def _finish(steps: Steps[Found]) -> Found:
    return drive(steps)


# --- the seal -------------------------------------------------------------------------------------


def test_a_start_seals_the_first_empty_place() -> None:
    """Rule `fence-first`: an ABORTED record of the new session; its id is the run's attempt."""
    job = Job(record(0), record(1), committed=(0, 1))
    found = job.start()
    fencing_record = job.store.records[2]
    assert (
        fencing_record.verdict,
        fencing_record.requested_by,
        fencing_record.leader_session_id,
    ) == (Verdict.ABORTED, "fencing", "new")
    assert (fencing_record.restored_from, fencing_record.run_attempt) == (1, 2)
    assert (found.attempt_id, found.record.checkpoint_id) == (2, 1)
    assert [s.end_offset for s in job.source.restored] == [10]


def test_a_seal_below_a_taken_place_does_not_count() -> None:
    job = Job(record(0), record(1), committed=(0, 1))

    def others_run(point: str) -> None:
        if point == "before-fencing" and 5 not in job.store.records:
            job.store.records[4] = aborted(4, leader_session_id="other", requested_by="fencing")
            job.store.records[5] = record(5, leader_session_id="other")
            job.store.committed.add(5)

    found = job.start(at=others_run)
    assert (found.attempt_id, found.record.checkpoint_id) == (6, 5)
    assert job.store.records[6].leader_session_id == "new"


def test_an_unanswered_seal_is_published_again_until_time_is_over() -> None:
    job = Job(record(0), committed=(0,))
    answers = iter([True, True, False])
    job.store.lose_answer = lambda: next(answers, False)
    assert job.start().attempt_id == 1
    job.store.lose_answer = lambda: True
    with pytest.raises(UnreachableError):
        job.start(session="third")


def test_a_run_that_crashed_after_its_seal_counts_as_an_attempt() -> None:
    job = Job(record(0), committed=(0,))
    attempt_ids = [job.start(session=f"s{number}").attempt_id for number in range(3)]
    assert attempt_ids == [1, 2, 3]
    assert [r.run_attempt for r in job.store.history] == [2, 3, 4]


# --- settling -------------------------------------------------------------------------------------


def test_decided_checkpoints_are_committed_oldest_first_and_marked() -> None:
    """Before any task of the new run starts; the marked one is not touched again."""
    job = Job(record(0), committed=(0,))
    first, second = job.pre_commit("first"), job.pre_commit("second")
    job.store.records[1] = record(1, entries=(first,))
    job.store.records[2] = record(2, entries=(second,))
    marks: list[int] = []
    job.start(at=lambda point: marks.append(len(job.store.committed)))
    assert job.broker.read_committed(0) == ["first", "second"]
    assert job.store.committed == {0, 1, 2}
    assert sorted(set(marks)) == [1, 2, 3]


def test_a_stop_before_the_fencing_record_changes_nothing() -> None:
    job = Job(record(0), committed=(0,))
    job.store.records[1] = record(1, entries=(job.pre_commit("decided"),))
    with pytest.raises(InterruptedError, match="before-fencing"):
        _stopped(job, after="before-fencing")
    assert (job.store.history, job.broker.read_committed(0)) == ([], [])


def test_a_stop_after_the_fencing_record_waits_until_decided_work_is_committed() -> None:
    job = Job(record(0), committed=(0,))
    job.store.records[1] = record(1, entries=(job.pre_commit("decided"),))
    assert _stopped(job, after="after-fencing").record.checkpoint_id == 1
    assert job.broker.read_committed(0) == ["decided"]


def _stopped(job: Job, *, after: str) -> Found:
    """A start whose stop is requested at this step; it raises where the engine would."""
    seen: list[str] = []

    def on_step(name: str) -> None:
        seen.append(name)
        if after in seen and name in MAY_STOP_AT:
            raise InterruptedError(name)

    return drive(job.sequence(session="stops").run(timeout_s=30.0, restore_from=None), on_step)


def test_a_crash_at_any_point_of_a_start_is_repaired_by_the_next() -> None:
    """Every point is crossed once by a start that dies there."""
    number = 0
    while True:
        job = Job(record(0), committed=(0,))
        job.store.records[1] = record(1, entries=(job.pre_commit("decided"),))
        job.open("orphan")
        steps = job.sequence(session="dies").run(timeout_s=30.0, restore_from=None)
        died = all(next(steps, None) is not None for _ in range(number))
        steps.close()
        found = job.start(session="attempts")
        assert job.broker.read_committed(0) == ["decided"]
        assert found.record.checkpoint_id == 1
        assert not job.broker.ongoing()
        number += 1
        if not died:
            break
    assert number > 8


def test_orphans_are_swept_while_a_decided_checkpoint_is_slow() -> None:
    job = Job(record(0), committed=(0,))
    slow = job.open("slow")
    job.store.records[1] = record(1, entries=(entry_of(slow),))
    orphan = job.open("orphan")
    until_s = job.clock() + 10.0
    job.sink.may_reach = lambda: job.clock() > until_s
    swept_at: list[float] = []

    def look(point: str) -> None:
        if point == "after-sweep":
            swept_at.append(job.clock())
            assert orphan.state is TransactionState.ABORTED

    job.start(at=look)
    assert slow.state is TransactionState.COMMITTED
    assert swept_at[0] <= until_s - 5.0


def test_a_lost_transaction_stops_the_start_with_its_ranges() -> None:
    """Default ``on_lost=fail``: never a log line, and nothing is written again."""
    job = Job(record(0), committed=(0,))
    job.repairer = rewriter = _Rewriter(job)
    gone = job.open("gone")
    gone.state = TransactionState.ABORTED
    job.store.records[1] = record(1, entries=(entry_of(gone),))
    with pytest.raises(TransactionLostError, match=r"input-0:\[0,10\)"):
        job.start()
    assert 1 not in job.store.committed
    assert rewriter.calls == 0


def test_an_unknown_transaction_is_never_repaired() -> None:
    """Rule `outcome-from-broker`: only a certain abort may be repaired."""
    job = Job(record(0), committed=(0,))
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    hidden = job.open("hidden")
    job.broker.init(hidden.transactional_id)
    job.store.records[1] = record(1, entries=(entry_of(hidden),))
    with pytest.raises(TransactionUnknownError):
        job.start()


def test_an_unreachable_broker_ends_the_start_in_time() -> None:
    """A typed error, and the checkpoint stays decided."""
    job = Job(record(0), committed=(0,))
    job.store.records[1] = record(1, entries=(job.pre_commit("decided"),))
    job.sink.may_reach = lambda: False
    before_s = job.clock()
    with pytest.raises(UnreachableError, match="nothing is lost"):
        job.start()
    assert job.clock() - before_s < 35.0


class _Rewriter:
    """Writes a lost committable again under a new id."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.calls = 0

    def repair(
        self, checkpoint_id: int, lost: LostCommittables, **limits: object
    ) -> dict[bytes, StateEntry]:
        """See `sluice.runtime.coordinator.committing.repairs.Repairer`."""
        self.calls += 1
        attempt_id = limits["attempt_id"]
        assert isinstance(attempt_id, int)
        entry = self.job.pre_commit(f"again-{self.calls}", attempt_id=attempt_id)
        return {e.payload: entry for e in lost.committables}

    def ranges(self, lost: LostCommittables) -> tuple[SplitRange, ...]:
        """See `sluice.runtime.coordinator.committing.repairs.Repairer`."""
        return lost.region.splits


@pytest.mark.parametrize("points", range(12))
def test_a_repair_survives_a_crash_at_any_point(points: int) -> None:
    """Rule `two-phase-repair`: two phases; the next start follows the record, or writes again what
    none names."""
    job = Job(record(0), committed=(0,))
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = rewriter = _Rewriter(job)
    gone = job.open("gone")
    gone.state = TransactionState.ABORTED
    job.store.records[1] = record(1, entries=(entry_of(gone),))
    steps = job.sequence(session="dies").run(timeout_s=30.0, restore_from=None)
    for _ in range(points):
        next(steps, None)
    steps.close()
    job.start(session="attempts")
    visible = job.broker.read_committed(0)
    assert len(visible) == 1
    assert str(visible[0]).startswith("again")
    assert rewriter.calls <= 2
    assert 1 in job.store.committed


def test_a_repair_that_is_found_after_a_commit_is_followed_and_none_is_written() -> None:
    job = Job(record(0), committed=(0,))
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = rewriter = _Rewriter(job)
    gone = job.open("gone")
    gone.state = TransactionState.ABORTED
    job.store.records[1] = record(1, entries=(entry_of(gone),))

    def other_is_faster(point: str) -> None:
        if point == "after-commit" and 1 not in job.store.repairs:
            theirs = job.pre_commit("theirs", attempt_id=9)
            job.store.repairs[1] = [{entry_of(gone).payload: theirs}]

    job.start(at=other_is_faster)
    assert job.broker.read_committed(0) == ["theirs"]
    assert rewriter.calls == 0
    assert len(job.store.repairs[1]) == 1


# --- what living regions of earlier runs report ---------------------------------------------------


def test_abort_before_skip_a_start_compares_what_a_region_has_open_with_what_is_decided() -> None:
    job = Job(record(0), committed=(0,))
    decided, left = job.pre_commit("decided"), job.pre_commit("left")
    job.store.records[1] = record(1, entries=(decided,))

    def work(batch_id: int, *entries: StateEntry) -> OpenWork:
        batch = BatchKey(region="main", attempt_id=0, batch_id=batch_id)
        return OpenWork(batch=batch, committables=entries)

    told = RegionRegistration(
        region="main", attempt_id=0, acknowledged=1, open=(work(1, decided), work(2, left))
    )
    of_another = OpenWork(
        batch=BatchKey(region="vanished", attempt_id=0, batch_id=1),
        committables=(job.pre_commit("another region's"),),
    )
    others = RegionRegistration(region="vanished", attempt_id=0, acknowledged=1, open=(of_another,))
    job.sink.sweep = lambda view, *, timeout_s: 0  # type: ignore[method-assign]

    def look(point: str) -> None:
        if point == "before-fencing":
            assert len(job.broker.ongoing()) == 3

    job.start(told=(told, others), at=look)
    assert job.points.count("before-fencing") == 1
    assert job.broker.read_committed(0) == ["decided"]
    assert not job.broker.ongoing()
    assert job.broker.aborts_of_committed == 0


def test_abort_before_skip_what_a_region_has_open_since_it_became_stateless_is_aborted() -> None:
    """Its batch ids have begun again: those below the last decided one are not decided."""
    kept = record(8)
    regions = tuple(dataclasses.replace(each, state=NEVER_WRITTEN) for each in kept.regions)
    job = Job(record(0), dataclasses.replace(kept, regions=regions), committed=(0, 8))
    job.store.empty.add(NEVER_WRITTEN.location)
    work = OpenWork(
        batch=BatchKey(region="main", attempt_id=9, batch_id=1),
        committables=(job.pre_commit("left", attempt_id=9),),
    )
    told = RegionRegistration(region="main", attempt_id=9, acknowledged=10, open=(work,))
    job.sink.sweep = lambda view, *, timeout_s: 0  # type: ignore[method-assign]
    job.start(told=(told,))
    assert not job.broker.ongoing()
