"""Committables that no longer can be committed: repaired, or accepted as lost, and never both.

On every file system that a checkpoint may lie on.
"""

from dataclasses import replace
from unittest.mock import patch

import pytest

from sluice.runtime.checkpoint.acceptance import accepted_as
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.lost_work import digest_of
from sluice.runtime.contracts import AcceptedWork, CommitOutcome, PublishOutcome, UnsettledWork
from sluice.runtime.errors import ConfigError, StorageError
from sluice.runtime.model.checkpoint_record import CheckpointRecord, StateEntry, Verdict
from tests.kit.coordinator.checkpoint_records import committable, record
from tests.kit.files.published_records import publish


def _two_committables() -> CheckpointRecord:
    (region,) = record(1).regions
    both = (committable(b"first"), committable(b"second"))
    return replace(record(1), regions=(replace(region, committables=both),))


def _lost(entry: StateEntry) -> UnsettledWork:
    return UnsettledWork(
        digest=digest_of(entry),
        outcome=CommitOutcome.ABORTED,
        region="r0",
        ranges=("orders-0:[1,2)",),
    )


def _accepted(entry: StateEntry) -> AcceptedWork:
    found = accepted_as(_lost(entry), None)
    assert found is not None
    return found


def test_repair_replaces_a_lost_committable(store: CheckpointStore) -> None:
    """Recovery follows the repair, also of a repair (`two-phase-repair`)."""
    publish(store, record(1))
    standing = store.read(1)
    (lost,) = standing.committables
    first, second = committable(b"first"), committable(b"second")
    repair = {lost.payload: first}
    assert store.publish_repair(1, repair, session="s1") is PublishOutcome.OURS
    assert store.publish_repair(1, repair, session="s1") is PublishOutcome.OURS
    assert len(store.repairs(1)) == 1
    assert store.effective_committables(standing) == (first,)
    assert store.publish_repair(1, {first.payload: second}, session="s2") is PublishOutcome.OURS
    assert CheckpointStore(store.fs).effective_committables(standing) == (second,)


def test_what_is_unsettled_and_what_is_accepted_is_read_back(store: CheckpointStore) -> None:
    """The last note stands; acceptances add up; neither is a record."""
    standing = _two_committables()
    publish(store, standing)
    assert (store.unsettled(1), store.accepted(1)) == ((), {})
    first, second = map(_lost, standing.committables)
    for work in (first, second):
        store.note_unsettled(1, [work])
        assert store.unsettled(1) == (work,)
        found = accepted_as(work, None)
        assert found is not None
        for _ in range(2):
            store.accept(1, [found])
    assert set(CheckpointStore(store.fs).accepted(1)) == {first.digest, second.digest}
    assert store.slots() == [1]
    assert store.effective_committables(standing) == standing.committables


def test_two_phase_repair_what_was_accepted_as_lost_is_not_written_again(
    store: CheckpointStore,
) -> None:
    standing = _two_committables()
    publish(store, standing)
    first, second = standing.committables
    store.accept(1, [_accepted(first)])
    for session in ("slept", "accept-loss"):
        again = {first.payload: committable(b"again"), second.payload: committable(b"too")}
        assert store.publish_repair(1, again, session=session) is PublishOutcome.TAKEN
    again = {second.payload: committable(b"too")}
    assert store.publish_repair(1, again, session="slept") is PublishOutcome.OURS
    assert store.effective_committables(standing) == (first, committable(b"too"))


def test_two_phase_repair_what_was_written_again_is_not_accepted_as_lost(
    store: CheckpointStore,
) -> None:
    standing = _two_committables()
    publish(store, standing)
    first, second = standing.committables
    again = {first.payload: committable(b"again")}
    assert store.publish_repair(1, again, session="slept") is PublishOutcome.OURS
    with pytest.raises(ConfigError, match="written again"):
        store.accept(1, [_accepted(first), _accepted(second)])
    assert store.accepted(1) == {}
    store.accept(1, [_accepted(second)])
    assert store.effective_committables(standing) == (committable(b"again"), second)


def test_a_committable_is_repaired_by_one_session(store: CheckpointStore) -> None:
    """A paused older coordinator that repairs the same one later is reported so (`fence-first` and
    `two-phase-repair`)."""
    publish(store, record(1))
    lost = committable().payload
    assert (
        store.publish_repair(1, {lost: committable(b"new")}, session="new") is PublishOutcome.OURS
    )
    answer = store.publish_repair(1, {lost: committable(b"old")}, session="old")
    assert answer is PublishOutcome.TAKEN
    (repair,) = store.repairs(1)
    assert repair.leader_session_id == "new"


def test_two_phase_repair_a_claim_that_is_not_answered_accepts_nothing(
    store: CheckpointStore,
) -> None:
    standing = _two_committables()
    publish(store, standing)
    word = _accepted(standing.committables[0])
    unknown = patch.object(store, "publish_repair", return_value=PublishOutcome.UNKNOWN)
    with unknown, pytest.raises(StorageError, match="did not confirm the acceptance"):
        store.accept(1, [word])
    assert store.accepted(1) == {}
    store.accept(1, [word])
    assert set(store.accepted(1)) == {word.digest}


def test_two_phase_repair_a_place_that_was_retired_is_not_repaired(store: CheckpointStore) -> None:
    publish(store, record(0), record(1), record(2))
    store.mark_committed(1)
    store.retire([1])
    replaced = {committable().payload: committable(b"new")}
    assert store.publish_repair(1, replaced, session="old") is PublishOutcome.TAKEN
    assert store.read(1) is None
    fencing_record = record(
        1, verdict=Verdict.ABORTED, leader_session_id="slept", requested_by="fencing"
    )
    publish(store, fencing_record)
    assert store.publish_repair(1, replaced, session="older") is PublishOutcome.TAKEN
