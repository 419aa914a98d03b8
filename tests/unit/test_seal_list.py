"""The list of seals is no more than a shortcut: what cannot be written, read or believed is looked
up."""

import json
from dataclasses import replace
from unittest.mock import patch

import pytest

from sluice.runtime.checkpoint.checkpoint_slots import SEALS_FILE, SealList
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.model import SEAL, CheckpointRecord, Verdict
from tests.checkpoint_records import record
from tests.fake_file_system import Disk, FakeFileSystem, Fault

SEALS = 20


def seal(checkpoint_id: int) -> CheckpointRecord:
    made = replace(record(checkpoint_id), verdict=Verdict.ABORTED, asked_by=SEAL, regions=())
    return replace(made, restored_from=0)


def listed(disk: Disk, *, fault: Fault = Fault.NONE) -> SealList:
    """Of a process that has read every seal."""
    found = SealList(FakeFileSystem(disk, fault=lambda _: fault), read=seal)
    for each in range(SEALS):
        found.note(seal(each))
    return found


def test_a_list_that_cannot_be_written_is_known_all_the_same() -> None:
    """Nothing depends on it; the next start reads the seals."""
    disk = Disk()
    found = listed(disk, fault=Fault.REFUSED)
    found.save()
    assert set(found.known()) == set(range(SEALS))
    assert SEALS_FILE not in disk.files
    listed(disk).save()
    assert SEALS_FILE in disk.files


def test_a_list_of_another_version_is_made_anew() -> None:
    disk = Disk()
    listed(disk).save()
    content = json.loads(disk.files[SEALS_FILE])
    disk.files[SEALS_FILE] = json.dumps({**content, "format_version": 99}).encode()
    assert SealList(FakeFileSystem(disk), read=seal).known() == {}


def test_a_list_that_was_changed_is_made_anew() -> None:
    """A decision that it called a seal would be passed over by the next start."""
    disk = Disk()
    listed(disk).save()
    content = json.loads(disk.files[SEALS_FILE])
    content["seals"].insert(0, [SEALS + 1, 0])
    disk.files[SEALS_FILE] = json.dumps(content).encode()
    assert SealList(FakeFileSystem(disk), read=seal).known() == {}


def test_a_list_whose_newest_seal_is_a_decision_is_not_believed() -> None:
    """It is of another life of the directory: what it names would be passed over."""
    disk = Disk()
    listed(disk).save()
    assert SealList(FakeFileSystem(disk), read=record).known() == {}


def test_a_list_that_is_wrong_is_replaced_by_the_next_start() -> None:
    """However few seals it knows: else each start would read the wrong one, and then them all."""
    disk = Disk()
    wrong = listed(disk)
    wrong.save()
    wrong.contradict(3)
    wrong.note(seal(1))
    wrong.save()
    assert [each for each, _ in json.loads(disk.files[SEALS_FILE])["seals"]] == [1]


def test_a_list_whose_newest_seal_was_not_answered_is_asked_for_again() -> None:
    """An outage is no reason to read them all."""
    disk = Disk()
    listed(disk).save()
    away = UnreachableError("no NameNode", {}, "Start it.")
    found = SealList(FakeFileSystem(disk), read=seal)
    with patch.object(found, "_read", side_effect=away), pytest.raises(UnreachableError):
        found.known()
    assert set(found.known()) == set(range(SEALS))
