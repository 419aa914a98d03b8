"""The record of who leads, on every file system that a checkpoint may lie on."""

import pytest

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.leader_record import FileLeaderStore, Leader
from sluice.runtime.errors import UnsupportedFormatError


def test_leader_record_is_replaced_whole(store: CheckpointStore) -> None:
    """The last one to announce is found, by another process too."""
    leaders = FileLeaderStore(store.fs)
    for attempt_id, session in enumerate(("first", "second")):
        leaders.announce(
            Leader(leader_session_id=session, address=f"{session}:1", attempt_id=attempt_id)
        )
    found = FileLeaderStore(store.fs).current()
    assert found == Leader(leader_session_id="second", address="second:1", attempt_id=1)
    assert [entry.name for entry in store.fs.entries("")] == ["_leader"]
    assert store.places() == []


def test_leader_record_of_an_earlier_sluice_is_read(store: CheckpointStore) -> None:
    """It does not say where its coordinator sealed."""
    record = b'{"format_version": 1, "leader_session_id": "first", "address": "h:1"}'
    store.fs.replace("_leader", record)
    found = FileLeaderStore(store.fs).current()
    assert found == Leader(leader_session_id="first", address="h:1", attempt_id=None)


def test_leader_record_of_a_later_version_is_refused(store: CheckpointStore) -> None:
    """Rubbish is no leader; a later version is a typed error."""
    leaders = FileLeaderStore(store.fs)
    for rubbish in (b"", b"{}", b"[1]", b'{"format_version": 1}'):
        store.fs.replace("_leader", rubbish)
        assert leaders.current() is None
    store.fs.replace("_leader", b'{"format_version": 2}')
    with pytest.raises(UnsupportedFormatError, match="format version 2"):
        leaders.current()
