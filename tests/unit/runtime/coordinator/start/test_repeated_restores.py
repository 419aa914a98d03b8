"""Restores of a checkpoint that was restored before: what a start warns of, and what it refuses."""

import re
from functools import partial
from pathlib import Path

import pytest

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore, open_store
from sluice.runtime.coordinator.start.restoring import RestoreRequest
from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.savepoint.savepoint import savepoint_at
from sluice.runtime.storage.file_system_opening import open_file_system
from tests.kit.coordinator.starting_job import Job, record

_WARNING = "restored again although the job has continued"


def _decide(store: CheckpointStore, checkpoint_id: int, *, session: str = "old") -> None:
    store.publish(record(checkpoint_id, leader_session_id=session), timeout_s=60)
    store.mark_committed(checkpoint_id)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = open_store(str(tmp_path / "old"))
    for checkpoint_id in range(4):
        _decide(store, checkpoint_id)
    return store


def _job(store: CheckpointStore) -> Job:
    job = Job()
    job.store = store  # type: ignore[assignment]
    return job


def _start(store: CheckpointStore, session: str, restore_from: int | None = None) -> int:
    """A run that decides once; the checkpoint that it resumed from."""
    found = _job(store).start(session=session, restore_from=restore_from)
    _decide(store, found.attempt_id + 1, session=session)
    return found.record.checkpoint_id


def _damage(store: CheckpointStore, *checkpoint_ids: int) -> None:
    for checkpoint_id in checkpoint_ids:
        store.fs.replace(f"chk-{checkpoint_id:012}/_metadata", b"damaged")


def test_a_restore_that_is_done_once_more_over_later_decisions_is_logged(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    """One of several drivers was started without the ``restore_from`` of the others."""
    assert _start(store, "first", restore_from=1) == 1
    assert _start(store, "second", restore_from=1) == 5
    assert _start(store, "without") == 7
    assert _WARNING not in caplog.text
    assert _start(store, "third", restore_from=1) == 1
    assert _WARNING in caplog.text
    assert "restore_from=1 restored_by=6 newest_decision=9" in caplog.text


@pytest.mark.parametrize("other", [None, 2])
def test_a_restore_is_no_repetition_if_its_run_decided_nothing(
    store: CheckpointStore, other: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    _job(store).start(session="first", restore_from=1)
    _job(store).start(session="second", restore_from=other)
    _job(store).start(session="third", restore_from=1)
    assert _WARNING not in caplog.text


def test_a_damaged_fencing_record_hides_no_later_warning(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    for session, wish in (("first", 1), ("second", 2), ("third", 3)):
        _start(store, session, restore_from=wish)
    _damage(store, 6)
    _start(open_store(store.uri), "fourth", restore_from=1)
    assert "restore_from=1 restored_by=4 newest_decision=9" in caplog.text


def test_a_restored_job_whose_later_checkpoints_are_damaged_starts_from_the_uri_in_the_error(
    store: CheckpointStore, tmp_path: Path
) -> None:
    """The decisions of the restored run are committed. So a supervisor's restart does not go back
    to the checkpoint once more: it would double them."""
    assert _start(store, "first", restore_from=1) == 1
    store.retire([2, 3])
    _damage(store, 5)
    with pytest.raises(DamagedCheckpointError, match="was restored before") as raised:
        _start(store, "second", restore_from=1)
    assert store.slots() == [0, 1, 4, 5]

    (uri,) = re.findall("restore_from='(.+)'", str(raised.value))
    origin = RestoreRequest(uri=uri, open=partial(savepoint_at, uri, open_file_system))
    new = _job(open_store(str(tmp_path / "new")))
    found = new.start(restore_from=origin)
    assert (found.record.checkpoint_id, found.is_new) == (0, True)
    assert [split.end_offset for split in found.record.regions[0].splits] == [10]


def test_a_restored_job_whose_newest_checkpoint_is_damaged_continues_from_another_of_its_own(
    store: CheckpointStore,
) -> None:
    assert _start(store, "first", restore_from=1) == 1
    _decide(store, 6, session="first")
    _damage(store, 6)
    with pytest.raises(DamagedCheckpointError, match="another decided checkpoint"):
        _start(store, "second", restore_from=1)
    assert _start(store, "third", restore_from=5) == 5


def test_the_error_names_no_checkpoint_that_has_been_retired(store: CheckpointStore) -> None:
    assert _start(store, "first", restore_from=1) == 1
    _decide(store, 6, session="first")
    store.fs.delete("chk-000000000001")
    _damage(store, 6)
    with pytest.raises(DamagedCheckpointError, match="savepoint's URI"):
        _start(open_store(store.uri), "second", restore_from=1)
