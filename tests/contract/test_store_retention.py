"""What a store deletes on every file system: records that nobody needs, and half-made files."""

import uuid

import pytest

from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore
from sluice.runtime.errors import StorageError
from sluice.runtime.model.checkpoint_record import Verdict
from sluice.runtime.storage.file_system import FileSystem
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.files.published_records import publish


def test_retire_deletes_and_refuses_what_is_needed(store: CheckpointStore) -> None:
    """Rule `retire-after-commit`: an unfinished decision, checkpoint 0, a seal and the last record
    stay."""
    fencing_record = record(
        3, verdict=Verdict.ABORTED, leader_session_id="second", requested_by="fencing"
    )
    later = [record(each, leader_session_id="second") for each in (4, 5, 6)]
    publish(store, record(0), record(1), record(2), fencing_record, *later)
    for each in (1, 4, 6):
        store.mark_committed(each)
    for needed in (0, 2, 3, 5, 6):
        with pytest.raises(StorageError, match="still needed"):
            store.retire([1, needed])
    assert store.slots() == [0, 1, 2, 3, 4, 5, 6], "a refused call deletes nothing"
    store.retire([1, 4])
    store.retire([1])
    assert store.slots() == [0, 2, 3, 5, 6]
    assert not store.fs.exists(slot_name(1))


def test_retention_keeps_the_newest_and_the_floor_stays(store: CheckpointStore) -> None:
    """2,000 checkpoints or ten: at most the newest three, and checkpoint 0."""
    for each in range(10):
        publish(store, record(each))
        store.mark_committed(each)
        store.retire(store.retirable(retain=3))
    assert store.slots() == [0, 7, 8, 9]
    assert len(store.fs.entries("")) == 4


def test_marks_are_seen_by_a_store_that_looked_before(store: CheckpointStore) -> None:
    publish(store, *map(record, range(6)))
    assert store.retirable(retain=1) == [], "nothing is finished yet"
    for each in range(6):
        CheckpointStore(store.fs).mark_committed(each)
    assert store.retirable(retain=1) == [1, 2, 3, 4]
    store.mark_superseded(5, by=6)
    assert store.retirable(retain=1) == [1, 2, 3]


def test_clean_leaves_what_may_still_be_published(store: CheckpointStore) -> None:
    """Half-made files below the last record go; those in flight beside or above it stay."""
    fs = store.fs
    publish(store, record(0), record(1), record(2, leader_session_id="second"))

    def half_made(place: int, session: str) -> str:
        path = f"{slot_name(place)}/._metadata.{session}.{uuid.uuid4().hex}.tmp"
        fs.write_temporary(path, b"half")
        return path

    dead = [half_made(1, "first"), half_made(2, "first")]
    alive = [half_made(2, "second"), half_made(3, "second"), half_made(3, "third")]
    assert store.clean(session="second") == len(dead)
    assert [path for path in dead + alive if fs.exists(path)] == alive
    assert store.slots() == [0, 1, 2]


def test_a_new_session_cleans_up_after_a_crashed_one(store: CheckpointStore) -> None:
    fs = store.fs
    publish(store, record(0), record(1))
    path = f"{slot_name(1)}/._metadata.first.{uuid.uuid4().hex}.tmp"
    fs.write_temporary(path, b"half")
    CheckpointStore(fs).retire([])
    assert fs.exists(path)
    successor = CheckpointStore(fs)
    publish(successor, record(2, verdict=Verdict.ABORTED, leader_session_id="second"))
    successor.retire([])
    assert not fs.exists(path)
    assert successor.slots() == [0, 1, 2]


def test_what_was_half_made_beside_the_places_goes_once_nobody_can_be_writing_it(
    fs: FileSystem,
) -> None:
    now_s = [0.0]
    store = CheckpointStore(fs, clock=lambda: now_s[0])
    publish(store, record(0))
    RunRecordStore(fs).announce(RunRecord(leader_session_id="s", address="a", attempt_id=0))
    old, new = (f".{name}.{uuid.uuid4().hex}.tmp" for name in ("_command-0", "_leader"))
    fs.write_temporary(old, b"half")
    others = {entry.name for entry in fs.entries("")} - {old}
    store.retire([])
    for passed_s, made, left in ((3599.0, new, {old, new}), (1.0, "", {new}), (3600.0, "", set())):
        now_s[0] += passed_s
        if made:
            fs.write_temporary(made, b"half")
        store.retire([])
        assert {entry.name for entry in fs.entries("")} - others == left


def test_clean_removes_what_a_paused_writer_left_in_a_retired_place(store: CheckpointStore) -> None:
    """It made the directory again to publish there, and was refused: nothing stands in it."""
    publish(store, *(record(number) for number in range(3)))
    store.fs.delete(slot_name(1))
    store.fs.write_temporary(f"{slot_name(1)}/._metadata.first.{uuid.uuid4().hex}.tmp", b"half")
    assert store.clean(session="second") == 1
    assert not store.fs.exists(slot_name(1))
    assert store.slots() == [0, 2]


def test_a_damaged_record_is_never_retired_and_holds_up_no_other(store: CheckpointStore) -> None:
    """Else a directory that a job was restored past it in would grow for ever."""
    for number in range(5):
        publish(store, record(number))
        store.mark_committed(number)
    store.fs.replace(f"{slot_name(2)}/_metadata", b"damaged")
    looking = CheckpointStore(store.fs)
    assert looking.retirable(retain=1) == [1, 3]
    looking.retire([1, 3])
    assert looking.slots() == [0, 2, 4]
