"""Which checkpoints and operator states stay, as long as a run may restore them."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest

from sluice.runtime.checkpoint.retained_states import KeptStates
from sluice.runtime.checkpoint.retention import (
    EVERY_BATCH,
    SlotFacts,
    facts_of,
    retirable,
    spark_batches_to_retain,
)
from sluice.runtime.coordinator.committing.commit_steps import drive
from sluice.runtime.coordinator.core.events import Retire
from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.model.checkpoint_record import (
    FENCING,
    CheckpointKind,
    CheckpointRecord,
    Redistribution,
    RegionRecord,
    RegionStatus,
    StateEntry,
    StateSnapshot,
    Verdict,
)
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.spark.microbatch.region_start import batches_to_retain
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.coordinator.core_driver import FAST, CoreDriver
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.run_io_executor import hands_of


def _place(checkpoint_id: int, **changes: object) -> SlotFacts:
    made = facts_of(record(checkpoint_id), is_committed=True)
    return replace(made, **changes)  # type: ignore[arg-type]


def _kept(places: Sequence[SlotFacts], retain: int = 3) -> list[int]:
    gone = set(retirable(places, retain=retain))
    return [place.checkpoint_id for place in places if place.checkpoint_id not in gone]


def _aborted(checkpoint_id: int) -> SlotFacts:
    return facts_of(record(checkpoint_id, verdict=Verdict.ABORTED))


def _fence(checkpoint_id: int, **changes: object) -> SlotFacts:
    fencing_record = facts_of(record(checkpoint_id, verdict=Verdict.ABORTED, requested_by=FENCING))
    return replace(fencing_record, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("retain", [1, 3, 5])
def test_newest_decisions_and_checkpoint_0_are_kept(retain: int) -> None:
    """The setting is honoured; checkpoint 0 is the floor under every later place."""
    places = [_place(each) for each in range(10)]
    assert _kept(places, retain) == [0, *range(10 - retain, 10)]


def test_what_a_new_run_started_from_stays_until_that_has_decided() -> None:
    """An older run that still retires, with what it knew before, must not delete the checkpoint
    that a start from an older one continues from."""
    places = [*(_place(each) for each in range(10)), _fence(10, restored_from=4)]
    assert _kept(places) == [0, 4, 7, 8, 9, 10]
    assert 4 not in _kept([*places, _place(11, restored_from=4)])


def test_starts_take_no_place_of_what_people_look_for() -> None:
    """A job that was started again and again after three failures still shows these."""
    places = [_place(0), *(_aborted(each) for each in (1, 2, 3))]
    places += [_fence(each) for each in (4, 5, 6)]
    places += [_place(each) for each in range(7, 12)]
    assert _kept(places) == [0, 1, 2, 3, 4, 5, 6, 9, 10, 11]


def test_fence_first_a_session_that_sealed_twice_keeps_both_seals() -> None:
    """s1 publishes checkpoint 0 and sleeps; s2 seals 1; s1 wakes, seals 2 and continues. Place 2 is
    the next one of s2: were it retired, s2 would decide there."""
    begun = [record(0, leader_session_id="s1"), *(_sealed(1, "s2"), _sealed(2, "s1"))]
    places = [facts_of(each, is_committed=True) for each in begun]
    places += [_aborted(each) for each in range(3, 8)]
    places += [_place(each) for each in range(8, 13)]
    assert _kept(places) == [0, 1, 2, 5, 6, 7, 10, 11, 12]


def _sealed(checkpoint_id: int, session: str) -> CheckpointRecord:
    return record(
        checkpoint_id, verdict=Verdict.ABORTED, leader_session_id=session, requested_by=FENCING
    )


def test_last_record_stays_so_that_ids_are_never_used_twice() -> None:
    places = [*(_place(each) for each in range(6)), *(_aborted(each) for each in range(6, 12))]
    assert _kept(places, retain=1) == [0, 5, 11]
    assert _kept(places, retain=2) == [0, 4, 5, 10, 11]


def test_superseded_decisions_do_not_count_as_the_newest() -> None:
    """After a start from checkpoint 2, what it left does not push out what counts."""
    places = [_place(each) for each in range(6)]
    places[3:6] = [replace(place, is_superseded=True) for place in places[3:6]]
    places += [_fence(6), _place(7)]
    assert _kept(places) == [0, 1, 2, 6, 7]


# --- Spark's own batches --------------------------------------------------------------------------


_STATE = StateSnapshot(
    provider="p", checkpoint_format_version=2, state_version=1, state_partitions=1, location="s"
)


def _stateful(checkpoint_id: int, batch_id: int, **changes: object) -> CheckpointRecord:
    region = RegionRecord(region="r0", attempt_id=1, batch_id=batch_id, state=_STATE)
    made = record(checkpoint_id, regions=(region,))
    return replace(made, **changes)  # type: ignore[arg-type]


def test_spark_keeps_the_batches_of_retained_checkpoints() -> None:
    """Simulated: Spark deletes after the bound, and each retained state version is there."""
    retain = 3
    minimum = spark_batches_to_retain([], {}, retain=retain)
    for batch in range(50):  # decided as checkpoint batch + 1; batch + 1 then runs
        retained = range(max(0, batch - retain + 1), batch + 1)
        oldest_kept_by_spark = (batch + 1) - minimum
        assert oldest_kept_by_spark < retained[0], "the version before is there for a repair"


def test_spark_keeps_what_an_old_record_names() -> None:
    """A skipped or unfinished record that lies far back widens the bound."""
    running = {("r0", 1): 20}
    assert spark_batches_to_retain([_stateful(5, 4)], running) > 20 - 4 + 3
    assert spark_batches_to_retain([_stateful(5, 4)], {("r0", 2): 20}) == 5
    stateless = record(5, regions=(RegionRecord(region="r0", attempt_id=1, batch_id=4),))
    assert spark_batches_to_retain([stateless], running) == 5


def test_skipped_region_counts_from_the_batch_it_stands_for() -> None:
    """The snapshot of a skipped region stays loadable."""
    skipped = RegionRecord(
        region="r0",
        attempt_id=1,
        batch_id=2,
        state=_STATE,
        status=RegionStatus.SKIPPED,
        snapshot_id=3,
    )
    assert spark_batches_to_retain([record(9, regions=(skipped,))], {("r0", 1): 9}) > 9 - 2


def test_the_slot_of_a_savepoint_is_one_like_any_other() -> None:
    """The savepoint has its own files: the slot is retired, and Spark may delete its batch."""
    saved = _stateful(1, 0, kind=CheckpointKind.SAVEPOINT)
    assert spark_batches_to_retain([saved], {}) == 5
    places = [facts_of(saved, is_committed=True), *(_place(each) for each in range(2, 6))]
    assert _kept(places) == [3, 4, 5]


def test_a_run_asks_spark_to_keep_what_its_directory_names() -> None:
    """A checkpoint that lies far back binds every later run."""
    near, far = _stateful(500, 499), _stateful(600, 599, leader_session_id="later")
    store = FakeStore(records={500: near, 600: far})
    assert batches_to_retain(FakeStore(), retained=3) == 100  # Spark's own default
    assert batches_to_retain(FakeStore(), retained=200) > 200
    assert batches_to_retain(store, retained=3) > 600 - 499


def test_spark_keeps_everything_while_a_record_cannot_be_read() -> None:
    class Damaged(FakeStore):
        def read(self, checkpoint_id: int) -> CheckpointRecord | None:
            raise DamagedCheckpointError("cut short", {"checkpoint_id": checkpoint_id}, "Restore.")

    assert batches_to_retain(Damaged(records={1: record(1)}), retained=3) == EVERY_BATCH


def test_retire_after_commit_the_state_of_any_region_of_a_record_stays_loadable() -> None:
    kept = StateSnapshot(
        provider="rocksdb", checkpoint_format_version=2, state_version=1, state_partitions=1
    )
    bare = RegionRecord(region="bare", attempt_id=0, batch_id=5)
    unborn = RegionRecord(region="unborn", attempt_id=0, state=kept)
    stateful = RegionRecord(region="stateful", attempt_id=0, batch_id=5, state=kept)
    retained = [record(1, regions=(bare, unborn, stateful))]
    batches = {(name, 0): 20 for name in ("bare", "unborn", "stateful")}
    assert spark_batches_to_retain(retained, batches) == 20 - 5 + 3 + 1 + 1


def state(name: str) -> StateEntry:
    return StateEntry(
        operator_id="sink",
        state_name="held",
        kind="fake",
        version=1,
        redistribution=Redistribution.SPLIT,
        payload=name.encode(),
    )


def record_kept(
    checkpoint_id: int, *names: str, verdict: Verdict = Verdict.DECIDED
) -> CheckpointRecord:
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
    kept.note(record_kept(1, "a", "b"))
    kept.note(record_kept(2, "b", "c"))
    assert kept.entries() == (state("a"), state("b"), state("c"))
    kept.forget([1])
    assert kept.entries() == (state("b"), state("c"))


def test_an_aborted_record_in_the_place_of_a_decision_keeps_nothing() -> None:
    """The decision was noted before it was published, and has never become durable."""
    kept = KeptStates()
    kept.note(record_kept(1, "a"))
    kept.note(record_kept(1, "a", verdict=Verdict.ABORTED))
    assert kept.entries() == ()


def test_a_start_reads_what_every_record_keeps() -> None:
    """Also of those before the one it continues from: a later start may go back to them."""
    store = FakeStore()
    for checkpoint_id, names in enumerate((["a"], ["b"], [])):
        store.publish(record_kept(checkpoint_id, *names), timeout_s=1.0)
    assert set(KeptStates.read(store).entries()) == {state("a"), state("b")}


def test_retire_after_commit_a_start_reads_what_is_kept_after_seals_and_damaged_records() -> None:
    store = FakeStore()
    for made in (
        record_kept(0, "damaged"),
        record_kept(1, "a"),
        replace(record_kept(2, verdict=Verdict.ABORTED), requested_by=FENCING),
        record_kept(3, "b"),
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


def test_ids_never_reused_no_batch_of_a_new_attempt_is_settled_by_what_an_older_one_decided() -> (
    None
):
    driver = CoreDriver(FAST)
    batch = driver.epoch_batch(3)
    attempt_id = driver.restart()
    assert not driver.core.sweep_view("uid").is_settled(replace(batch, attempt_id=attempt_id))


def test_retire_after_commit_a_run_that_was_taken_over_retires_nothing() -> None:
    mine = record_kept(1, "a")
    theirs = [replace(record_kept(each), leader_session_id="new") for each in (2, 3, 4, 5)]
    theirs[0] = replace(theirs[0], verdict=Verdict.ABORTED, requested_by=FENCING)
    store = FakeStore(
        records={each.checkpoint_id: each for each in (record_kept(0), mine, *theirs)}
    )
    store.committed |= {0, 1, 3, 4, 5}
    kept = KeptStates()
    kept.note(mine)
    io_executor = hands_of(store, kept=kept)
    drive(io_executor.perform(Retire(retained=1)))
    assert sorted(store.records) == [0, 1, 2, 3, 4, 5]
    assert kept.entries() == (state("a"),)


def test_a_record_that_is_retired_while_a_start_reads_keeps_nothing() -> None:
    class Retiring(FakeStore):
        """A store whose first place goes once it was listed."""

        def slots(self) -> list[int]:
            found = super().slots()
            self.records.pop(0, None)
            return found

    store = Retiring()
    for checkpoint_id, name in enumerate("ab"):
        store.publish(record_kept(checkpoint_id, name), timeout_s=1.0)
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
                theirs = replace(record_kept(place, verdict=verdict), leader_session_id="new")
                self.records[place] = replace(
                    theirs, requested_by=FENCING if place == 3 else "interval"
                )

    mine = [record_kept(0), record_kept(1, "a"), record_kept(2)]
    store = Overtaken(records={each.checkpoint_id: each for each in mine})
    store.committed |= {0, 1, 2}
    kept = KeptStates()
    for each in mine:
        kept.note(each)
    drive(hands_of(store, kept=kept, attempt_id=2).perform(Retire(retained=1)))
    assert 1 not in store.records
    assert kept.entries() == (state("a"),)
