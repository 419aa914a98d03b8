"""A start beside a coordinator that lives: found by the simulator, reported again without it."""

import dataclasses

import pytest

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore, slot_name
from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.coordinator.committing.commit_steps import Steps, drive
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.events import Commit, CommitReported, MarkCommitted, Marked
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings
from sluice.runtime.coordinator.start.startup import Found, StartSequence
from sluice.runtime.errors import FencedError, StorageError
from sluice.runtime.model.checkpoint_record import FENCING, CheckpointRecord, Verdict
from tests.kit.coordinator.core_driver import committable
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.starting_job import PLAN, Job, aborted, record
from tests.kit.fakes import FakeBroker, FakeSink, FakeSource, ManualClock, identity_of
from tests.kit.files.fake_file_system import Disk, FakeFileSystem


def _up_to(steps: Steps[Found], point: str) -> None:
    while next(steps) != point:
        pass


def _first_start(disk: Disk, session: str) -> Steps[Found]:
    """A start of a new job, with the production store."""
    clock = ManualClock()
    sinks = {"sink": SerialSink(FakeSink(FakeBroker()))}
    store = CheckpointStore(FakeFileSystem(disk), clock=clock, pause=clock.advance)
    sequence = StartSequence(
        plan=PLAN,
        settings=CheckpointSettings(),
        store=store,
        sinks=sinks,
        sources={"source": FakeSource("source", {0: 100})},
        session=session,
        clock=clock,
        pause=clock.advance,
        wall_ms=lambda: 0,
    )
    return sequence.run(timeout_s=60, restore_from=None)


def test_fence_first_of_two_first_starts_the_slower_one_seals() -> None:
    """Both found an empty directory and drew a job uid; it is one job, and the later one has it."""
    disk = Disk()
    slow = _first_start(disk, "slow")
    _up_to(slow, "before-first")
    fast = drive(_first_start(disk, "fast"))

    found = drive(slow)

    assert fast.is_new
    assert not found.is_new
    assert found.record.job_uid == fast.record.job_uid
    fencing_record = CheckpointStore(FakeFileSystem(disk)).read(1)
    assert (fencing_record.verdict, fencing_record.leader_session_id) == (Verdict.ABORTED, "slow")


def test_outcome_from_broker_what_the_older_run_has_marked_meanwhile_is_not_unknown() -> None:
    job = Job()
    entry = job.pre_commit("a")
    job.store.records = {0: record(0), 1: record(1, entries=(entry,))}
    steps = job.sequence().run(timeout_s=60, restore_from=None)
    _up_to(steps, "before-commit")

    job.broker.end(identity_of(entry), commit=True)
    job.store.mark_committed(1)
    job.broker.init(identity_of(entry)[0])

    assert drive(steps).record.checkpoint_id == 1


@pytest.mark.parametrize("looks", ["at once", "when the store answers again"])
def test_callback_after_commit_no_batch_of_a_run_returns_after_one_that_went_back_with_state(
    looks: str,
) -> None:
    """Else Spark logs it where the newer run has rewound its logs, and the next attempt there would
    take the older run's state for that of the newer one's batch of this number."""
    stateful = dataclasses.replace(PLAN.regions[0], stateful=True)
    plan = dataclasses.replace(PLAN, regions=(stateful,))
    job = Job(record(0), record(1), record(2), committed=(0, 1, 2))
    older = job.io_executor(session="old", attempt_id=1, plan=plan)
    older_stateless = job.io_executor(session="old", attempt_id=1)
    mark = MarkCommitted(checkpoint_id=2, regions=record(2).regions)
    assert drive(older.perform(mark)) == Marked(checkpoint_id=2, durable=True)

    job.start(restore_from=1)

    if looks == "when the store answers again":
        job.store = _Unreadable(records=job.store.records, committed=job.store.committed)
        older = job.io_executor(session="old", attempt_id=1, plan=plan)
        assert drive(older.perform(mark)) == Marked(checkpoint_id=2, durable=False)
    with pytest.raises(FencedError):
        drive(older.perform(mark))
    assert drive(older_stateless.perform(mark)) == Marked(checkpoint_id=2, durable=True)


class _Unreadable(FakeStore):
    """It does not answer the first look."""

    def read(self, checkpoint_id: int) -> CheckpointRecord | None:
        if not self.retired:
            self.retired.append(-1)
            raise StorageError("no answer", {}, "Ask again.")
        return super().read(checkpoint_id)


def test_outcome_from_broker_what_the_older_run_has_marked_meanwhile_is_not_lost() -> None:
    """As above, and what the id skipped next was aborted: at transaction.version 0 that looks as
    if the decided one had been, and a repair would write its records twice."""
    job = Job()
    entry = job.pre_commit("a")
    job.store.records = {0: record(0), 1: record(1, entries=(entry,))}
    steps = job.sequence().run(timeout_s=60, restore_from=None)
    _up_to(steps, "before-commit")

    job.store.mark_committed(1)
    job.broker.end(identity_of(entry), commit=False)  # the fake's words for such a verdict

    assert drive(steps).record.checkpoint_id == 1


def test_outcome_from_broker_after_what_the_older_run_has_marked_the_next_decision_is_committed() -> (
    None
):
    job = Job()
    first, second = job.pre_commit("a"), job.pre_commit("b")
    job.store.records = {
        0: record(0),
        1: record(1, entries=(first,)),
        2: record(2, entries=(second,)),
    }
    steps = job.sequence().run(timeout_s=60, restore_from=None)
    _up_to(steps, "before-commit")

    job.broker.end(identity_of(first), commit=True)
    job.store.mark_committed(1)
    job.broker.init(identity_of(first)[0])

    assert drive(steps).record.checkpoint_id == 2
    assert job.store.is_committed(2)


def test_outcome_from_broker_what_a_start_has_marked_and_retired_meanwhile_is_not_lost() -> None:
    """As above, by a start after ours, which has gone on for so long that the place is empty."""
    job = Job()
    entry = job.pre_commit("a")
    job.store.records = {0: record(0), 1: record(1, entries=(entry,))}
    steps = job.sequence().run(timeout_s=60, restore_from=None)
    _up_to(steps, "before-commit")

    job.broker.end(identity_of(entry), commit=False)
    del job.store.records[1]

    assert drive(steps).record.checkpoint_id == 1


def _aborted_behind_its_mark(job: Job) -> Commit:
    """The late commit of a decision that a start has committed and marked; at transaction.version 0
    a late AddPartitions began an empty transaction of the same identity, and a sweep ended that."""
    entry = job.pre_commit("a")
    decided = record(1, entries=(entry,))
    job.store.records = {0: record(0), 1: decided}
    job.store.mark_committed(1)
    job.broker.end(identity_of(entry), commit=False)
    return Commit(
        checkpoint_id=1, committables=(entry,), after_crash=False, regions=decided.regions
    )


@pytest.mark.parametrize("place", ["marked", "retired", "sealed by a start that slept"])
def test_outcome_from_broker_what_a_start_has_marked_is_not_lost_to_the_run_that_decided_it(
    place: str,
) -> None:
    """A repair would write its records twice. Only a start after it marks them: it is over."""
    job = Job()
    commit = _aborted_behind_its_mark(job)
    if place != "marked":
        del job.store.records[1]
        job.store.committed.discard(1)
    if place == "sealed by a start that slept":
        job.store.records[1] = aborted(1, leader_session_id="slept", requested_by=FENCING)

    with pytest.raises(FencedError, match="taken over"):
        drive(job.io_executor(session="old", attempt_id=0).perform(commit))


class _Away(FakeStore):
    """It does not answer whether a checkpoint is marked."""

    def is_committed(self, checkpoint_id: int) -> bool:
        raise StorageError("no answer", {"checkpoint_id": checkpoint_id}, "Retry.")


def test_outcome_from_broker_nothing_is_lost_before_the_store_says_that_nobody_has_marked_it() -> (
    None
):
    job = Job()
    commit = _aborted_behind_its_mark(job)
    job.store = _Away()

    told = drive(job.io_executor(session="old", attempt_id=0).perform(commit))

    assert isinstance(told, CommitReported)
    assert [report.outcome for report in told.reports] == [CommitOutcome.PENDING]


class _Retired(FakeFileSystem):
    """A place goes, as a living run retires it, once its directory was listed."""

    def __init__(self, disk: Disk, gone: str) -> None:
        super().__init__(disk)
        self._gone = gone

    def read(self, path: str) -> bytes | None:
        return None if path.startswith(self._gone) else super().read(path)


def test_retire_after_commit_a_place_that_is_retired_during_a_look_keeps_nothing() -> None:
    disk = Disk()
    store = CheckpointStore(FakeFileSystem(disk))
    for checkpoint_id in range(3):
        store.publish(record(checkpoint_id), timeout_s=1.0)
    looking = CheckpointStore(_Retired(disk, f"{slot_name(1)}/"))
    assert [facts.checkpoint_id for facts in looking.facts()] == [0, 2]


def test_two_phase_repair_a_repair_that_vanishes_during_a_look_is_no_answer() -> None:
    """Without it a committable would be taken for lost that was written again: asked again."""
    disk = Disk()
    store = CheckpointStore(FakeFileSystem(disk))
    lost, again = committable("lost"), committable("again")
    decided = record(0, entries=(lost,))
    store.publish(decided, timeout_s=1.0)
    store.publish_repair(0, {lost.payload: again}, session="old")
    assert store.effective_committables(decided) == (again,)
    looking = CheckpointStore(_Retired(disk, f"{slot_name(0)}/_repair"))
    with pytest.raises(StorageError, match="vanished"):
        looking.effective_committables(decided)
