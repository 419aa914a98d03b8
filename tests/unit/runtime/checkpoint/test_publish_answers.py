"""Rule `publish-whole`: each answer of the step that puts a record in its place, settled by
looking."""

import itertools
from dataclasses import replace

import pytest

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.errors import StorageError
from sluice.runtime.model.checkpoint_record import CheckpointRecord, Verdict
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.coordinator.core_driver import committable
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
    """However the step answers, also if it lands later: it replaces nothing."""
    disk = Disk()
    assert store(disk).publish(THEIRS, timeout_s=3) is PublishOutcome.OURS
    assert store(disk, place=fault).publish(OURS, timeout_s=3) is PublishOutcome.TAKEN
    disk.land_late_steps()
    assert standing(disk) == THEIRS


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
        def place(self, temporary: str, path: str) -> bool:
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


def test_whoever_was_slower_by_a_moment_leaves_nothing_after() -> None:
    disk, clock = Disk(), itertools.count()

    def fault(step: str) -> Fault:
        if step == "write":
            assert store(disk).publish(THEIRS, timeout_s=3) is PublishOutcome.OURS
        return Fault.NONE

    late = CheckpointStore(
        FakeFileSystem(disk, fault=fault), clock=lambda: next(clock), pause=lambda _: None
    )
    assert late.publish(OURS, timeout_s=3) is PublishOutcome.TAKEN
    assert not [path for path in disk.files if path.endswith(".tmp")]


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
