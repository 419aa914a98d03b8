"""The list of seals is no more than a shortcut: what cannot be written, read or believed is looked
up."""

import json
from dataclasses import replace
from unittest.mock import patch

import pytest

from sluice.runtime.checkpoint.checkpoint_slots import FENCING_FILE, FencingList
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.model import FENCING, CheckpointRecord, Verdict
from tests.checkpoint_records import record
from tests.fake_file_system import Disk, FakeFileSystem, Fault

SEALS = 20


def fencing_record(checkpoint_id: int) -> CheckpointRecord:
    made = replace(record(checkpoint_id), verdict=Verdict.ABORTED, requested_by=FENCING, regions=())
    return replace(made, restored_from=0)


def listed(disk: Disk, *, fault: Fault = Fault.NONE) -> FencingList:
    """Of a process that has read every seal."""
    found = FencingList(FakeFileSystem(disk, fault=lambda _: fault), read=fencing_record)
    for each in range(SEALS):
        found.note(fencing_record(each))
    return found


def test_a_list_that_cannot_be_written_is_known_all_the_same() -> None:
    """Nothing depends on it; the next start reads the seals."""
    disk = Disk()
    found = listed(disk, fault=Fault.REFUSED)
    found.save()
    assert set(found.known()) == set(range(SEALS))
    assert FENCING_FILE not in disk.files
    listed(disk).save()
    assert FENCING_FILE in disk.files


def test_a_list_of_another_version_is_made_anew() -> None:
    disk = Disk()
    listed(disk).save()
    content = json.loads(disk.files[FENCING_FILE])
    disk.files[FENCING_FILE] = json.dumps({**content, "format_version": 99}).encode()
    assert FencingList(FakeFileSystem(disk), read=fencing_record).known() == {}


def test_a_list_that_was_changed_is_made_anew() -> None:
    """A decision that it called a seal would be passed over by the next start."""
    disk = Disk()
    listed(disk).save()
    content = json.loads(disk.files[FENCING_FILE])
    content["seals"].insert(0, [SEALS + 1, 0])
    disk.files[FENCING_FILE] = json.dumps(content).encode()
    assert FencingList(FakeFileSystem(disk), read=fencing_record).known() == {}


def test_a_list_whose_newest_seal_is_a_decision_is_not_believed() -> None:
    """It is of another life of the directory: what it names would be passed over."""
    disk = Disk()
    listed(disk).save()
    assert FencingList(FakeFileSystem(disk), read=record).known() == {}


def test_a_list_that_is_wrong_is_replaced_by_the_next_start() -> None:
    """However few seals it knows: else each start would read the wrong one, and then them all."""
    disk = Disk()
    wrong = listed(disk)
    wrong.save()
    wrong.contradict(3)
    wrong.note(fencing_record(1))
    wrong.save()
    assert [each for each, _ in json.loads(disk.files[FENCING_FILE])["seals"]] == [1]


def test_a_list_whose_newest_seal_was_not_answered_is_asked_for_again() -> None:
    """An outage is no reason to read them all."""
    disk = Disk()
    listed(disk).save()
    away = UnreachableError("no NameNode", {}, "Start it.")
    found = FencingList(FakeFileSystem(disk), read=fencing_record)
    with patch.object(found, "_read", side_effect=away), pytest.raises(UnreachableError):
        found.known()
    assert set(found.known()) == set(range(SEALS))
