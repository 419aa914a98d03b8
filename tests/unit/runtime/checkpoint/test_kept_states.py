"""What operators keep is spared by every sweep, as long as a record that keeps it can be restored.

Protocol rules `files-with-decision` and `retire-after-commit`: staged files that are held over
epochs are named by such states alone.
"""

from collections.abc import Collection
from dataclasses import replace
from random import Random
from unittest.mock import patch

from sluice.runtime.checkpoint.retained_states import KeptStates
from sluice.runtime.coordinator.committing.commit_steps import drive
from sluice.runtime.coordinator.core.events import Retire
from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.model.checkpoint_record import (
    FENCING,
    CheckpointKind,
    CheckpointRecord,
    Redistribution,
    RegionRecord,
    StateEntry,
    Verdict,
)
from sluice.runtime.model.splits import BatchKey
from tests.kit.coordinator.core_driver import FAST, CoreDriver
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.run_io_executor import hands_of
from tests.kit.threads.switched_threads import Process, Switched


def state(name: str) -> StateEntry:
    return StateEntry(
        operator_id="sink",
        state_name="held",
        kind="fake",
        version=1,
        redistribution=Redistribution.SPLIT,
        payload=name.encode(),
    )


def record(checkpoint_id: int, *names: str, verdict: Verdict = Verdict.DECIDED) -> CheckpointRecord:
    return CheckpointRecord(
        job_uid="uid",
        job_name="job",
        checkpoint_id=checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        verdict=verdict,
        leader_session_id="session",
        run_attempt=1,
        regions=(
            RegionRecord(
                region="main", attempt_id=0, operator_states=tuple(state(name) for name in names)
            ),
        ),
    )


def test_retire_after_commit_what_an_older_record_keeps_is_kept_until_it_is_retired() -> None:
    kept = KeptStates()
    kept.note(record(1, "a", "b"))
    kept.note(record(2, "b", "c"))
    assert kept.entries() == (state("a"), state("b"), state("c"))
    kept.forget([1])
    assert kept.entries() == (state("b"), state("c"))


def test_an_aborted_record_in_the_place_of_a_decision_keeps_nothing() -> None:
    """The decision was noted before it was published, and has never become durable."""
    kept = KeptStates()
    kept.note(record(1, "a"))
    kept.note(record(1, "a", verdict=Verdict.ABORTED))
    assert kept.entries() == ()


def test_a_start_reads_what_every_record_keeps() -> None:
    """Also of those before the one it goes on from: a later start may go back to them."""
    store = FakeStore()
    for checkpoint_id, names in enumerate((["a"], ["b"], [])):
        store.publish(record(checkpoint_id, *names), timeout_s=1.0)
    assert set(KeptStates.read(store).entries()) == {state("a"), state("b")}


def test_retire_after_commit_a_start_reads_what_is_kept_behind_seals_and_damaged_records() -> None:
    """What they hide would be taken for nobody's, and deleted."""
    store = FakeStore()
    for made in (
        record(0, "damaged"),
        record(1, "a"),
        replace(record(2, verdict=Verdict.ABORTED), requested_by=FENCING),
        record(3, "b"),
    ):
        store.publish(made, timeout_s=1.0)
    reading = store.read

    def read(_: FakeStore, checkpoint_id: int) -> CheckpointRecord | None:
        if checkpoint_id == 0:
            raise DamagedCheckpointError("cut off", {}, "Use another.")
        return reading(checkpoint_id)

    with patch.object(FakeStore, "read", read):
        assert set(KeptStates.read(store).entries()) == {state("a"), state("b")}


def test_ids_never_reused_a_batch_is_settled_once_it_is_committed_on_record() -> None:
    """Then what it wrote and nobody names is an orphan; nothing of another life is judged by it."""
    driver = CoreDriver(FAST)
    view = driver.core.sweep_view("uid")
    assert not view.is_settled(BatchKey(region="main", attempt_id=0, batch_id=0))
    driver.auto = False
    batch = driver.epoch_batch(3)
    for _ in ("it is decided", "it is committed"):
        assert not driver.core.sweep_view("uid").is_settled(batch)
        driver.answer(driver.held.pop(0))
    assert not driver.core.sweep_view("uid").is_settled(batch)
    while driver.held:
        driver.answer(driver.held.pop(0))
    view = driver.core.sweep_view("uid")
    assert view.is_settled(batch)
    assert not view.is_settled(replace(batch, batch_id=batch.batch_id + 1))
    assert not view.is_settled(replace(batch, attempt_id=1))


def test_ids_never_reused_no_batch_of_a_new_life_is_settled_by_what_an_older_one_decided() -> None:
    """Its batch ids may begin anew: what it has staged, and nobody has decided, is no orphan."""
    driver = CoreDriver(FAST)
    batch = driver.epoch_batch(3)
    attempt_id = driver.restart()
    assert not driver.core.sweep_view("uid").is_settled(replace(batch, attempt_id=attempt_id))


def test_retire_after_commit_a_run_that_was_taken_over_retires_nothing() -> None:
    """It knows nothing of what the newer decisions keep: its own sweep would take what the retired
    record named for nobody's."""
    mine = record(1, "a")
    theirs = [replace(record(each), leader_session_id="new") for each in (2, 3, 4, 5)]
    theirs[0] = replace(theirs[0], verdict=Verdict.ABORTED, requested_by=FENCING)
    store = FakeStore(records={each.checkpoint_id: each for each in (record(0), mine, *theirs)})
    store.committed |= {0, 1, 3, 4, 5}
    kept = KeptStates()
    kept.note(mine)
    io_executor = hands_of(store, kept=kept)
    drive(io_executor.perform(Retire(retained=1)))
    assert sorted(store.records) == [0, 1, 2, 3, 4, 5]
    assert kept.entries() == (state("a"),)


def test_a_record_that_is_retired_while_a_start_reads_keeps_nothing() -> None:
    """By the run that lives on until this start's seal."""

    class Retiring(FakeStore):
        """A store whose first place goes once it was listed."""

        def slots(self) -> list[int]:
            found = super().slots()
            self.records.pop(0, None)
            return found

    store = Retiring()
    for checkpoint_id, name in enumerate("ab"):
        store.publish(record(checkpoint_id, name), timeout_s=1.0)
    assert KeptStates.read(store).entries() == (state("b"),)


def test_retire_after_commit_what_a_record_kept_that_was_retired_beside_a_newer_run_is_spared() -> (
    None
):
    """A newer decision, which is not ours to read, may keep it too: its run sweeps."""

    class Overtaken(FakeStore):
        """A store in which a newer run's seal and decision land while records are deleted."""

        def retire(self, checkpoint_ids: Collection[int]) -> None:
            super().retire(checkpoint_ids)
            for place, verdict in ((3, Verdict.ABORTED), (4, Verdict.DECIDED)):
                theirs = replace(record(place, verdict=verdict), leader_session_id="new")
                self.records[place] = replace(
                    theirs, requested_by=FENCING if place == 3 else "interval"
                )

    mine = [record(0), record(1, "a"), record(2)]
    store = Overtaken(records={each.checkpoint_id: each for each in mine})
    store.committed |= {0, 1, 2}
    kept = KeptStates()
    for each in mine:
        kept.note(each)
    drive(hands_of(store, kept=kept, attempt_id=2).perform(Retire(retained=1)))
    assert 1 not in store.records
    assert kept.entries() == (state("a"),)


def test_whoever_sweeps_has_what_is_kept_while_records_come_and_go() -> None:
    """A sweep that failed by them would leave work open, or be the end of a bounded job."""
    for seed in range(20):
        assert asked_meanwhile(Random(seed)) == [(state("a"), state("b"))] * 5


def asked_meanwhile(random: Random) -> list[tuple[StateEntry, ...]]:
    """What is told while decisions follow each other, in threads that change at each line."""
    switched, told = Switched(random.randrange), list[tuple[StateEntry, ...]]()
    module = "sluice.runtime.checkpoint.retained_states"
    with switched.in_modules(module), switched.at_each_line(module, pauses_s=lambda: 0.0):
        kept = KeptStates()
        kept.note(record(1, "a", "b"))

        def decide() -> None:
            for checkpoint_id in (2, 3, 4):
                kept.note(record(checkpoint_id, "a", "b"))
                kept.forget([checkpoint_id - 1])

        def ask() -> None:
            told.extend(kept.entries() for _ in range(5))

        for name, target in (("steps", decide), ("housekeeper", ask)):
            switched.spawn(target, process=Process("driver"), name=name)
        assert switched.run(lambda: not switched.living, most_turns=10_000)
    return told
