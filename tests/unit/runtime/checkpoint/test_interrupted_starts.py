"""Rule `publish-whole`: answers of the step that publishes a record, and starts that pause between two steps."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import pytest

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore, slot_name
from sluice.runtime.checkpoint.format.metadata import encode
from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.coordinator.committing.commit_steps import drive
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.events import Publish, Published
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings
from sluice.runtime.coordinator.start.startup import Found, StartSequence
from sluice.runtime.errors import FencedError, StorageError
from sluice.runtime.model.checkpoint_record import (
    FENCING,
    CheckpointKind,
    CheckpointRecord,
    Verdict,
)
from tests.kit.coordinator.checkpoint_records import committable as core_committable
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.coordinator.core_driver import committable
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.starting_job import JOB_UID, PLAN, Job, aborted
from tests.kit.coordinator.starting_job import record as starting_record
from tests.kit.effort import stride
from tests.kit.fakes import FakeBroker, FakeSink, FakeSource, ManualClock
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault

OURS = record(5, leader_session_id="ours")
THEIRS = record(5, leader_session_id="theirs")


def store(disk: Disk, **faults: Fault) -> CheckpointStore:
    """One whose steps of these names always end so; it gives up after three looks at the clock."""
    clock = itertools.count()
    return CheckpointStore(
        FakeFileSystem(disk, fault=lambda step: faults.get(step, Fault.NONE)),
        clock=lambda: next(clock),
        pause=lambda _: None,
    )


def standing(disk: Disk) -> CheckpointRecord | None:
    return store(disk).read(5)


@pytest.mark.parametrize(
    ("fault", "outcome", "stands"),
    [
        (Fault.NONE, PublishOutcome.OURS, OURS),
        (Fault.ANSWER_LOST, PublishOutcome.OURS, OURS),
        (Fault.REFUSED, PublishOutcome.UNKNOWN, None),
        (Fault.LATE, PublishOutcome.UNKNOWN, None),
    ],
)
def test_publish_whole_an_error_is_no_answer(
    fault: Fault, outcome: PublishOutcome, stands: CheckpointRecord | None
) -> None:
    disk = Disk()
    assert store(disk, place=fault).publish(OURS, timeout_s=3) is outcome
    assert standing(disk) == stands
    disk.land_late_steps()
    assert standing(disk) == (OURS if fault is Fault.LATE else stands)


def test_publish_whole_a_lost_answer_is_settled_by_looking_however_little_time_is_left() -> None:
    disk = Disk()
    lost = store(disk, place=Fault.ANSWER_LOST)
    assert lost.publish(OURS, timeout_s=0) is PublishOutcome.OURS
    assert standing(disk) == OURS


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.REFUSED, Fault.LATE])
def test_publish_whole_a_place_that_somebody_took_is_taken(fault: Fault) -> None:
    disk = Disk()
    assert store(disk).publish(THEIRS, timeout_s=3) is PublishOutcome.OURS
    assert store(disk, place=fault).publish(OURS, timeout_s=3) is PublishOutcome.TAKEN
    disk.land_late_steps()
    assert standing(disk) == THEIRS


@pytest.mark.parametrize(
    ("fault", "outcome", "stands"),
    [
        (Fault.NONE, PublishOutcome.OURS, OURS),
        (Fault.ANSWER_LOST, PublishOutcome.OURS, OURS),
        (Fault.REFUSED, PublishOutcome.UNKNOWN, None),
        (Fault.LATE, PublishOutcome.UNKNOWN, None),
    ],
)
def test_publish_whole_an_error_is_no_answer_on_an_object_store(
    fault: Fault, outcome: PublishOutcome, stands: CheckpointRecord | None
) -> None:
    """One put instead of two steps; a slot that is taken stays as it is."""
    disk, clock = Disk(), itertools.count()

    def opened(fault: Fault) -> CheckpointStore:
        fs = FakeFileSystem(
            disk,
            fault=lambda step: fault if step == "place" else Fault.NONE,
            has_temporaries=False,
        )
        return CheckpointStore(fs, clock=lambda: next(clock), pause=lambda _: None)

    assert opened(fault).publish(OURS, timeout_s=3) is outcome
    assert standing(disk) == stands
    assert opened(Fault.NONE).publish(THEIRS, timeout_s=3) is (
        PublishOutcome.TAKEN if stands else PublishOutcome.OURS
    )
    disk.land_late_steps()
    assert standing(disk) == (stands or THEIRS)
    assert all("tmp" not in path for path in disk.files)


def test_publish_whole_what_was_never_tried_is_certainly_not_there() -> None:
    """The temporary file could not be written: an error says so, and the place is free."""
    disk = Disk()
    with pytest.raises(StorageError):
        store(disk, write=Fault.REFUSED).publish(OURS, timeout_s=3)
    disk.land_late_steps()
    assert standing(disk) is None


def test_publish_whole_a_late_try_makes_a_later_error_no_answer_either() -> None:
    """It may land any time, so an error of the next try does not say that nothing is there."""
    disk = Disk()
    clock = itertools.count()
    steps = iter([Fault.NONE, Fault.LATE, *[Fault.REFUSED] * 9])
    late = CheckpointStore(
        FakeFileSystem(disk, fault=lambda _: next(steps)),
        clock=lambda: next(clock),
        pause=lambda _: None,
    )
    assert late.publish(OURS, timeout_s=3) is PublishOutcome.UNKNOWN
    disk.land_late_steps()
    assert standing(disk) == OURS


def test_publish_whole_a_store_that_says_taken_of_an_empty_place_is_asked_again() -> None:
    class Lying(FakeFileSystem):
        def place(self, temporary: str, path: str, data: bytes) -> bool:
            return False

    disk, clock = Disk(), itertools.count()
    lying = CheckpointStore(Lying(disk), clock=lambda: next(clock), pause=lambda _: None)
    assert lying.publish(OURS, timeout_s=3) is PublishOutcome.UNKNOWN
    assert standing(disk) is None
    assert store(disk).publish(OURS, timeout_s=3) is PublishOutcome.OURS


def test_a_half_made_file_that_cannot_be_deleted_changes_no_answer() -> None:
    disk, clock = Disk(), itertools.count()

    def fault(step: str) -> Fault:
        if step == "write":
            assert store(disk).publish(THEIRS, timeout_s=3) is PublishOutcome.OURS
        return Fault.REFUSED if step == "delete" else Fault.NONE

    late = CheckpointStore(
        FakeFileSystem(disk, fault=fault), clock=lambda: next(clock), pause=lambda _: None
    )
    assert late.publish(OURS, timeout_s=3) is PublishOutcome.TAKEN
    assert standing(disk) == THEIRS
    assert [path for path in disk.files if path.endswith(".tmp")]


def test_two_phase_repair_each_repair_of_a_session_is_on_record_by_itself() -> None:
    """A start writes the regions of a decision again one by one; a repetition adds none."""
    of = store(Disk())
    of.publish(OURS, timeout_s=3)
    for lost in ("a", "b", "a"):
        replaced = {lost.encode(): committable(f"again-{lost}")}
        assert of.publish_repair(5, replaced, session="ours") is PublishOutcome.OURS
    again = {b"a": committable("again-a")}
    assert of.publish_repair(5, again, session="theirs") is PublishOutcome.TAKEN
    found = [dict(repair.replaced) for repair in of.repairs(5)]
    assert found == [{b"a": committable("again-a")}, {b"b": committable("again-b")}]


def test_two_phase_repair_a_repair_is_ours_only_once_it_is_durable() -> None:
    """It stands there, and its directory could not be synced: what replaces the lost work must not
    be committed by a record that the next start may not find."""
    disk = Disk()
    store(disk).publish(OURS, timeout_s=3)
    replaced = {b"a": committable("again")}
    unsynced = store(disk, place=Fault.ANSWER_LOST, sync=Fault.REFUSED)
    answer = unsynced.publish_repair(5, replaced, session="ours", timeout_s=3)
    assert answer is PublishOutcome.UNKNOWN
    for _ in range(2):
        with pytest.raises(StorageError, match="step=sync"):
            unsynced.publish_repair(5, replaced, session="ours", timeout_s=3)
    assert store(disk).publish_repair(5, replaced, session="ours") is PublishOutcome.OURS


def test_two_phase_repair_nothing_is_repaired_in_a_place_that_no_decision_holds() -> None:
    of = store(Disk())
    of.publish(replace(OURS, verdict=Verdict.ABORTED), timeout_s=3)
    replaced = {b"a": committable("again")}
    assert of.publish_repair(5, replaced, session="ours") is PublishOutcome.TAKEN


_MOST_LOOKS = 60
_RETAINED = 3


def _store(disk: Disk, *, turn: Callable[[], None] = lambda: None) -> CheckpointStore:
    clock = ManualClock()
    return CheckpointStore(FakeFileSystem(disk, turn=turn), clock=clock, pause=clock.advance)


def _start(store: CheckpointStore, session: str, *, restore_from: int | None = None) -> Found:
    clock = ManualClock()
    sequence = StartSequence(
        plan=PLAN,
        settings=CheckpointSettings(),
        store=store,
        sinks={"sink": SerialSink(FakeSink(FakeBroker()))},
        sources={"source": FakeSource("source", {0: 100})},
        session=session,
        clock=clock,
        pause=clock.advance,
        wall_ms=lambda: 0,
    )
    return drive(sequence.run(timeout_s=60, restore_from=restore_from))


@dataclass
class _Run:
    """A run that decides, commits and retires for as long as its next place is free."""

    store: CheckpointStore
    session: str
    last: int
    job_uid: str = JOB_UID
    decided: int = 0

    def go_on(self, checkpoints: int) -> None:
        for checkpoint_id in range(self.last + 1, self.last + 1 + checkpoints):
            mine = starting_record(
                checkpoint_id, job_uid=self.job_uid, leader_session_id=self.session
            )
            if self.store.publish(mine, timeout_s=1) is not PublishOutcome.OURS:
                return
            self.store.mark_committed(checkpoint_id)
            self.store.retire(self.store.retirable(retain=_RETAINED))
            self.last = self.decided = checkpoint_id


@dataclass
class _Pauses:
    """Calls ``meanwhile`` once before each of these steps of a file system."""

    at: tuple[int, ...]
    meanwhile: Callable[[], None]
    steps: int = field(default=0, init=False)

    def __call__(self) -> None:
        self.steps += 1
        if self.steps in self.at:
            self.meanwhile()


@pytest.mark.parametrize("first", range(1, _MOST_LOOKS, stride(3)))
def test_fence_first_a_start_that_returns_has_stopped_every_older_run(first: int) -> None:
    """Paused twice, wherever: the older run decides, and retires what the start has listed."""
    for second in range(first + 1, first + 25):
        disk = Disk()
        older = _Run(_store(disk), "older", last=-1)
        older.go_on(8)
        pauses = _Pauses((first, second), lambda: older.go_on(5))  # noqa: B023 - runs within
        found = _start(_store(disk, turn=pauses), "newer")
        decided = older.decided
        older.go_on(1)
        assert older.decided == decided, (second, "it decides behind a start")
        assert found.record.checkpoint_id == decided
        assert _store(disk).slots()[-1] == found.attempt_id


@pytest.mark.parametrize("at", range(1, _MOST_LOOKS))
def test_fence_first_a_first_start_that_is_overtaken_marks_nothing_superseded(at: int) -> None:
    """Wherever it sleeps: another start seals after its checkpoint 0, decides and continues."""
    disk = Disk()

    def meanwhile() -> None:
        store = _store(disk)
        found = _start(store, "fast")
        run = _Run(store, "fast", last=found.attempt_id, job_uid=found.record.job_uid)
        run.go_on(5)
        decided.append(run.decided)

    decided: list[int] = []
    try:
        found = _start(_store(disk, turn=_Pauses((at,), meanwhile)), "slow")
    except FencedError:
        found = None
    places = _store(disk)
    assert not any(places.is_superseded(each) for each in places.slots())
    if decided and found is not None and places.slots()[-1] == found.attempt_id:
        assert found.record.checkpoint_id == decided[0]


def test_a_start_knows_all_fencing_records_from_the_newest_one() -> None:
    """Else each start of a program that has begun a thousand times reads a thousand records."""
    disk = Disk()
    older = _Run(_store(disk), "older", last=-1)
    older.go_on(2)
    for number in range(20):
        _start(_store(disk), f"again-{number}")
    store, read = _store(disk), list[str]()
    with patch.object(store.fs, "read", _noting(store.fs.read, read)):
        known = store.known_fencing_records()
    assert len(read) == 1
    records = {each: store.read(each) for each in store.slots()}
    assert known == {e for e, found in records.items() if found and found.requested_by == FENCING}
    assert len(known) == 20


def test_a_checkpoint_that_a_person_has_put_back_can_be_restored() -> None:
    """The newest fencing record does not name it, since it was gone by then."""
    disk = Disk()
    run = _Run(_store(disk), "older", last=-1)
    run.go_on(2)
    path = f"{slot_name(1)}/_metadata"
    kept = disk.files[path]
    run.go_on(6)
    assert path not in disk.files
    _start(_store(disk), "newer")
    disk.files[path] = kept
    assert _start(_store(disk), "restoring", restore_from=1).record.checkpoint_id == 1


def _noting(call: Callable[[str], bytes | None], paths: list[str]) -> Callable[[str], bytes | None]:
    def noting(path: str) -> bytes | None:
        paths.append(path)
        return call(path)

    return noting


class _Overtaken(FakeStore):
    """Another start seals place 3 while this one, which has sealed place 2, sleeps."""

    def read(self, checkpoint_id: int) -> CheckpointRecord | None:
        if checkpoint_id == 3:
            self.records[3] = aborted(3, leader_session_id="fast", requested_by=FENCING)
        return FakeStore.read(self, checkpoint_id)


def test_lease_guards_outputs_a_start_that_slept_after_its_seal_leaves_the_lease_alone() -> None:
    """It would fence the run that has taken over, and both would end."""
    job = Job()
    job.store = _Overtaken(records={0: starting_record(0), 1: starting_record(1)})
    job.store.committed |= {0, 1}
    with pytest.raises(FencedError, match="taken over"):
        job.start()
    assert sorted(job.store.records) == [0, 1, 2, 3]
    assert job.sink.calls == ["check"]


class _OvertakenLate(FakeStore):
    """Another start seals place 3 while this one settles what it has found."""

    def mark_committed(self, checkpoint_id: int) -> None:
        FakeStore.mark_committed(self, checkpoint_id)
        self.records[3] = aborted(3, leader_session_id="fast", requested_by=FENCING)


def test_fence_first_a_start_that_is_overtaken_while_it_settles_does_not_return() -> None:
    job = Job()
    job.store = _OvertakenLate(records={0: starting_record(0), 1: starting_record(1)})
    job.store.committed.add(0)
    with pytest.raises(FencedError, match="taken over"):
        job.start()
    assert 1 in job.store.committed


@pytest.mark.parametrize("at", range(1, 12))
def test_two_phase_repair_a_repair_that_lands_in_a_retired_place_is_no_repair(at: int) -> None:
    """Wherever its writer sleeps: another start repairs the same, commits, marks, continues and
    retires the place."""
    disk = Disk()
    older = _Run(_store(disk), "older", last=-1)
    older.go_on(2)
    lost = starting_record(1, entries=(core_committable(b"lost"),))
    disk.files[f"{slot_name(1)}/_metadata"] = encode(lost)
    theirs: list[PublishOutcome] = []

    def meanwhile() -> None:
        repair = {core_committable(b"lost").payload: core_committable(b"theirs")}
        theirs.append(_store(disk).publish_repair(1, repair, session="newer"))
        if theirs == [PublishOutcome.OURS]:
            older.go_on(5)

    store = _store(disk, turn=_Pauses((at,), meanwhile))
    repair = {core_committable(b"lost").payload: core_committable(b"ours")}
    ours = store.publish_repair(1, repair, session="slept")
    assert [ours, *theirs].count(PublishOutcome.OURS) == 1


@pytest.mark.parametrize("unsynced", ["record", "repair"])
def test_publish_whole_a_start_commits_nothing_by_what_may_not_last(unsynced: str) -> None:
    job, disk = Job(starting_record(0)), Disk()
    lost, again = job.pre_commit("lost"), job.pre_commit("again")
    store = _store(disk)
    for made in (starting_record(0), starting_record(1, entries=(lost,))):
        store.publish(made, timeout_s=1)
    store.mark_committed(0)
    store.publish_repair(1, {lost.payload: again}, session="old")
    syncs = iter([Fault.NONE] * ["record", "repair"].index(unsynced))

    def fault(step: str) -> Fault:
        return next(syncs, Fault.REFUSED) if step == "sync" else Fault.NONE

    job.store = CheckpointStore(FakeFileSystem(disk, fault=fault))  # type: ignore[assignment]
    with pytest.raises(StorageError, match="step=sync"):
        job.start()
    assert job.broker.read_committed(0) == []
    job.store = store  # type: ignore[assignment]
    job.start(session="third")
    assert job.broker.read_committed(0) == ["again"]


class _Unanswered(FakeStore):
    """The first publish lands, and is not answered."""

    def publish(self, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
        is_first = record.checkpoint_id not in self.records and 2 not in self.records
        outcome = FakeStore.publish(self, record, timeout_s=timeout_s)
        if is_first:
            raise StorageError("no answer", {"checkpoint_id": record.checkpoint_id}, "Retry.")
        return outcome


def test_fence_first_a_decision_that_was_followed_and_retired_is_not_decided_again() -> None:
    """Its run was not answered, slept, and asks again: the place is empty, and its own."""
    job = Job()
    job.store = store = _Unanswered(records={0: starting_record(0, leader_session_id="slept")})
    io_executor = job.io_executor(session="slept", attempt_id=0)
    decision = Publish(
        checkpoint_id=1,
        kind=CheckpointKind.CHECKPOINT,
        verdict=Verdict.DECIDED,
        requested_by="interval",
        reason="",
        regions=(),
        assignment=None,
        steps=(),
    )
    first = drive(io_executor.perform(decision))
    assert first == Published(checkpoint_id=1, outcome=PublishOutcome.UNKNOWN)
    del store.records[1]  # another run has committed it, gone on, and retired it
    store.records[2] = aborted(2, leader_session_id="fast", requested_by=FENCING)
    again = drive(io_executor.perform(decision))
    assert again == Published(checkpoint_id=1, outcome=PublishOutcome.TAKEN)
