"""Stores on every file system: deletion of records and half-made files, runs, and many slots."""

import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.format.metadata import encode
from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore
from sluice.runtime.errors import StorageError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import FENCING, CheckpointRecord, Verdict
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
    RunRecordStore(fs).announce(
        RunRecord(job_uid="job", leader_session_id="s", address="a", attempt_id=0)
    )
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


_TIMEOUT_S = 120.0


def test_names_are_found_among_many_and_only_whole_ones(fs: FileSystem) -> None:
    """A place is reported by its name alone, in a directory that may hold very many."""
    for path in ("chk-01/file", "chk-02", "xchk-03", "chk-04, chk-05", "a, b/chk-06", "chk-7"):
        fs.replace(path, b"x")
    assert sorted(fs.names("", re.compile(r"chk-\d{2}"))) in (
        ["chk-01", "chk-02"],
        ["chk-01", "chk-02", "chk-04"],  # Hadoop's: a name with a comma is looked up, and is none
    )
    assert fs.names("a, b", re.compile(r"chk-\d{2}")) == ["chk-06"]
    assert fs.names("nothing", re.compile(r"chk-\d{2}")) == []


def test_a_start_reads_no_fencing_record_below_the_newest_one(fs: FileSystem) -> None:
    """A directory keeps one of each run for ever; a start may not take longer for each of them."""
    CheckpointStore(fs).publish(record(0), timeout_s=_TIMEOUT_S)
    for slot in range(1, 40):
        CheckpointStore(fs).publish(_fencing(slot), timeout_s=_TIMEOUT_S)
    CheckpointStore(fs).publish(_fencing(40, others="0"), timeout_s=_TIMEOUT_S)

    again, asked = CheckpointStore(fs), list[str]()
    with (
        patch.object(type(fs), "read", _noted(type(fs).read, asked)),
        patch.object(type(fs), "exists", _noted(type(fs).exists, asked)),
    ):
        assert again.slots() == list(range(41))
        assert again.known_fencing_records() == frozenset(range(1, 41))
        facts = again.facts()
    assert {path.partition("/")[0] for path in asked} == {slot_name(0), slot_name(40)}
    assert [each.is_fencing_record for each in facts] == [True] * 41
    assert facts[-1].restored_from == 0  # it keeps what the newest run started from


def test_what_the_newest_fencing_record_does_not_name_is_believed_until_it_is_read(
    fs: FileSystem,
) -> None:
    """A person may put a checkpoint back, or delete one."""
    CheckpointStore(fs).publish(record(0), timeout_s=_TIMEOUT_S)
    for slot in (1, 2):
        CheckpointStore(fs).publish(_fencing(slot), timeout_s=_TIMEOUT_S)
    CheckpointStore(fs).publish(_fencing(3, others="0"), timeout_s=_TIMEOUT_S)
    fs.delete(slot_name(1))
    fs.replace(f"{slot_name(1)}/.half-made", b"")  # by a start that died
    fs.replace(f"{slot_name(2)}/_metadata", encode(record(2)))
    store = CheckpointStore(fs)
    assert store.slots() == [0, 1, 2, 3]
    assert store.read(1) is None
    assert store.read(2) == record(2)
    assert store.slots() == [0, 2, 3]
    assert store.known_fencing_records() == {3}


def test_without_a_fencing_record_that_can_be_read_the_next_one_below_it_counts(
    fs: FileSystem,
) -> None:
    """A start continues past a damaged record where nothing needs it."""
    CheckpointStore(fs).publish(record(0), timeout_s=_TIMEOUT_S)
    CheckpointStore(fs).publish(_fencing(1), timeout_s=_TIMEOUT_S)
    CheckpointStore(fs).publish(_fencing(2, others="0"), timeout_s=_TIMEOUT_S)
    fs.replace(f"{slot_name(3)}/_metadata", b"damaged")
    store = CheckpointStore(fs)
    assert store.slots() == [0, 1, 2, 3]
    assert store.known_fencing_records() == {1, 2}
    assert [each.checkpoint_id for each in store.facts()] == [0, 1, 2]


def _fencing(slot: int, *, others: str | None = None) -> CheckpointRecord:
    return replace(
        record(slot),
        verdict=Verdict.ABORTED,
        requested_by=FENCING,
        restored_from=0,
        regions=(),
        settings={} if others is None else {"other_records": others},
    )


def _noted(call: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    def noting(self: FileSystem, path: str) -> Any:
        asked.append(path)
        return call(self, path)

    return noting


def test_leader_record_is_replaced_whole(store: CheckpointStore) -> None:
    """The last one to announce is found, by another process too."""
    leaders = RunRecordStore(store.fs)
    for attempt_id, session in enumerate(("first", "second")):
        leaders.announce(
            RunRecord(
                job_uid="job",
                leader_session_id=session,
                address=f"{session}:1",
                attempt_id=attempt_id,
            )
        )
    found = RunRecordStore(store.fs).current()
    assert found == RunRecord(
        job_uid="job", leader_session_id="second", address="second:1", attempt_id=1
    )
    assert [entry.name for entry in store.fs.entries("")] == ["_leader"]
    assert store.slots() == []


def test_leader_record_of_a_later_version_is_refused(store: CheckpointStore) -> None:
    """Rubbish is no leader; a later version is a typed error."""
    leaders = RunRecordStore(store.fs)
    for rubbish in (b"", b"{}", b"[1]", b'{"format_version": 1}'):
        store.fs.replace("_leader", rubbish)
        assert leaders.current() is None
    store.fs.replace("_leader", b'{"format_version": 2}')
    with pytest.raises(UnsupportedFormatError, match="format version 2"):
        leaders.current()


def test_a_tree_is_deleted_with_everything_in_it(fs: FileSystem) -> None:
    """Files that connectors or state put beside the record go with the checkpoint."""
    fs.write_temporary("chk-000000000001/state/0/1.zip", b"x")
    fs.write_temporary("chk-000000000002/state", b"x")
    fs.delete("chk-000000000001")
    fs.delete("chk-000000000001")
    fs.delete("absent")
    assert [entry.name for entry in fs.entries("")] == ["chk-000000000002"]


def test_entries_tell_files_from_directories(fs: FileSystem) -> None:
    fs.write_temporary("b/one", b"123")
    fs.write_temporary("b/a/two", b"")
    found = [(entry.name, entry.is_directory) for entry in fs.entries("b")]
    assert found == [("a", True), ("one", False)]
    assert fs.entries("b")[1].length_bytes == 3
    assert fs.read("b/one") == b"123"
    assert fs.read("b/a/two") == b""
    assert fs.read("b/a/three") is None


def test_bytes_come_back_exactly(fs: FileSystem) -> None:
    """Every byte value survives, and a megabyte of them."""
    data = bytes(range(256)) * 4096
    fs.stage("t", data)
    assert fs.place("t", "d", data)
    assert fs.read("d") == data
    assert not fs.exists("t")
    fs.stage("t", b"other")
    assert not fs.place("t", "d", b"other")
    assert fs.read("d") == data
