"""The record of who leads, on every file system that a checkpoint may lie on."""

import pytest

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore
from sluice.runtime.errors import UnsupportedFormatError


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
