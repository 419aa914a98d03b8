"""One suite for every file system that a checkpoint may lie on: the promises of the store.

The fake stands in for the others in the property tests; here it shows that it behaves as they do.
"""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.run_record import RunRecord, RunRecordStore
from sluice.runtime.contracts import MetadataStore, PublishOutcome
from sluice.runtime.errors import DamagedCheckpointError, WrongJobError
from sluice.runtime.model.checkpoint_record import Verdict
from tests.kit.coordinator.checkpoint_records import full_record, record
from tests.kit.files.published_records import TIMEOUT_S, publish


def test_store_fulfils_the_contracts(store: CheckpointStore) -> None:
    """The classes are what the coordinator was written against."""
    metadata: MetadataStore = store
    leader = RunRecordStore(store.fs)
    assert metadata.uri == store.fs.uri
    assert leader.current() is None


def test_reading_an_empty_store_finds_nothing_and_makes_nothing(store: CheckpointStore) -> None:
    """Looking at a directory that is not there does not create it."""
    assert store.slots() == []
    assert store.read(0) is None
    assert not store.is_committed(0)
    assert not store.is_superseded(0)
    assert store.retirable() == []
    assert store.clean(session="any") == 0
    assert store.is_empty("spark/main/state-0/state")
    assert not store.fs.exists("")


def test_published_record_is_read_back_whole(store: CheckpointStore) -> None:
    wanted = full_record()
    publish(store, wanted)
    assert store.read(42) == wanted
    assert CheckpointStore(store.fs).slots() == [42]
    assert not store.is_empty(slot_name(42))
    names = [entry.name for entry in store.fs.entries(slot_name(42))]
    assert names == ["_metadata"], "no temporary file is left"


def test_publish_again_gives_the_same_answer(store: CheckpointStore) -> None:
    """A coordinator that lost the answer asks again."""
    publish(store, record(1), record(1), record(1))


def test_a_place_is_never_taken_twice(store: CheckpointStore) -> None:
    """Another session's record, or another of ours, changes nothing (`fence-first` and
    `publish-whole`)."""
    publish(store, record(1))
    for other in (
        record(1, leader_session_id="second"),
        record(1, verdict=Verdict.ABORTED),
        record(1, reason="different"),
    ):
        assert store.publish(other, timeout_s=TIMEOUT_S) is PublishOutcome.TAKEN
    assert store.read(1) == record(1)


def test_one_of_many_publishers_wins(store: CheckpointStore) -> None:
    """Eight sessions race for ten places: one record each, whole, and its owner knows
    (`publish-whole`)."""
    sessions, places = 8, 10
    start = Barrier(sessions)

    def race(session: str, place: int) -> PublishOutcome:
        start.wait(TIMEOUT_S)
        mine = record(place, leader_session_id=session)
        return CheckpointStore(store.fs).publish(mine, timeout_s=TIMEOUT_S)

    with ThreadPoolExecutor(sessions) as pool:
        for place in range(places):
            names = [f"s{each}" for each in range(sessions)]
            answers = dict(
                zip(names, pool.map(race, names, [place] * sessions, timeout=600), strict=True)
            )
            (winner,) = [name for name in names if answers[name] is PublishOutcome.OURS]
            assert store.read(place) == record(place, leader_session_id=winner)
            assert set(answers.values()) == {PublishOutcome.OURS, PublishOutcome.TAKEN}


def test_seal_closes_the_place_to_a_paused_coordinator(store: CheckpointStore) -> None:
    """Rule `fence-first`: the paused one wakes with every acknowledgement in hand and may not
    decide."""
    publish(store, record(0), record(1))
    fencing_record = record(
        2, verdict=Verdict.ABORTED, leader_session_id="second", requested_by="fencing"
    )
    publish(store, fencing_record)
    paused = store.publish(record(2), timeout_s=TIMEOUT_S)
    assert paused is PublishOutcome.TAKEN
    assert store.read(2) == fencing_record


def test_another_jobs_directory_is_refused_and_left_alone(store: CheckpointStore) -> None:
    """A typed error that names both jobs; nothing is written."""
    publish(store, record(0))
    before = store.fs.entries("")
    with pytest.raises(WrongJobError, match=r"job_uid=other found=6f9619ff"):
        CheckpointStore(store.fs).publish(record(1, job_uid="other"), timeout_s=TIMEOUT_S)
    assert store.fs.entries("") == before


def test_committed_mark_is_idempotent_and_seen_by_others(store: CheckpointStore) -> None:
    """Marked once is marked for ever, also for the next process."""
    publish(store, record(1))
    assert not store.is_committed(1)
    store.mark_committed(1)
    store.mark_committed(1)
    assert store.is_committed(1)
    assert CheckpointStore(store.fs).is_committed(1)


def test_a_place_without_a_record_gets_no_mark(store: CheckpointStore) -> None:
    publish(store, record(0), record(1))
    store.fs.delete(slot_name(1))
    store.mark_committed(1)
    store.mark_superseded(1, by=2)
    assert not store.fs.exists(slot_name(1))
    publish(store, record(1))
    assert not store.is_committed(1)


def test_superseded_mark_says_by_what(store: CheckpointStore) -> None:
    publish(store, record(1), record(2))
    store.mark_superseded(2, by=3)
    store.mark_superseded(2, by=3)
    assert store.is_superseded(2)
    assert store.superseded_by(2) == 3
    assert store.superseded_by(1) is None


def test_everything_written_says_its_version(store: CheckpointStore) -> None:
    """Marks and the leader record carry a format version as the Avro files do."""
    publish(store, record(1))
    store.mark_committed(1)
    store.mark_superseded(1, by=2)
    RunRecordStore(store.fs).announce(
        RunRecord(job_uid="job", leader_session_id="first", address="h:1", attempt_id=0)
    )
    for path in (f"{slot_name(1)}/_committed", f"{slot_name(1)}/_superseded", "_leader"):
        assert b'"format_version": 1' in (store.fs.read(path) or b"")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"by": null}', b"damaged"])
def test_a_mark_that_cannot_be_read_is_damage_with_its_place(
    store: CheckpointStore, content: bytes
) -> None:
    """It says from where a job was restored: never a guess."""
    publish(store, record(0), record(1))
    store.fs.replace(f"{slot_name(1)}/_superseded", content)
    with pytest.raises(DamagedCheckpointError, match=slot_name(1)):
        store.superseded_by(1)


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_truncated_record_is_typed_and_never_replaced(store: CheckpointStore, keep: int) -> None:
    publish(store, record(0))
    path = f"{slot_name(1)}/_metadata"
    whole = store.fs.read(f"{slot_name(0)}/_metadata") or b""
    store.fs.replace(path, whole[:keep])
    for look in (lambda: store.read(1), lambda: store.publish(record(1), timeout_s=TIMEOUT_S)):
        with pytest.raises(DamagedCheckpointError, match=slot_name(1)):
            look()
    assert store.fs.read(path) == whole[:keep]


def test_record_of_another_place_is_damage(store: CheckpointStore) -> None:
    """A directory copied manually is not a decision about the id in its name."""
    publish(store, record(0))
    store.fs.replace(f"{slot_name(7)}/_metadata", store.fs.read(f"{slot_name(0)}/_metadata") or b"")
    with pytest.raises(DamagedCheckpointError, match="slot 7 holds the record of checkpoint 0"):
        store.read(7)
