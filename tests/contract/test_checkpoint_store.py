"""One suite for every file system that a checkpoint may lie on: the promises of the store.

The fake stands in for the others in the property tests; here it shows that it behaves as they do.
"""

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from unittest.mock import patch

import pytest

from runtime.checkpoint.acceptance import accepted_as
from runtime.checkpoint.known_places import place_name
from runtime.checkpoint.leader import FileLeaderStore, Leader
from runtime.checkpoint.losses import digest_of
from runtime.checkpoint.store import CheckpointStore
from runtime.contracts import (
    AcceptedWork,
    CommitOutcome,
    MetadataStore,
    PublishOutcome,
    UnsettledWork,
)
from runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    StorageError,
    UnsupportedFormatError,
    WrongJobError,
)
from runtime.model import CheckpointRecord, StateEntry, Verdict
from runtime.storage.file_system import FileSystem
from tests.checkpoint_records import committable, full_record, record

_TIMEOUT_S = 120.0


@pytest.fixture
def store(fs: FileSystem) -> CheckpointStore:
    """A store of an empty directory."""
    return CheckpointStore(fs)


def _publish(store: CheckpointStore, *records: CheckpointRecord) -> None:
    for each in records:
        assert store.publish(each, timeout_s=_TIMEOUT_S) is PublishOutcome.OURS


def test_store_fulfils_the_contracts(store: CheckpointStore) -> None:
    """The classes are what the coordinator was written against."""
    metadata: MetadataStore = store
    leader = FileLeaderStore(store.fs)
    assert metadata.uri == store.fs.uri
    assert leader.current() is None


def test_reading_an_empty_store_finds_nothing_and_makes_nothing(store: CheckpointStore) -> None:
    """Looking at a directory that is not there does not create it."""
    assert store.places() == []
    assert store.read(0) is None
    assert not store.is_committed(0)
    assert not store.is_superseded(0)
    assert store.retirable() == []
    assert store.clean(session="any") == 0
    assert store.is_empty("spark/main/state-0/state")
    assert not store.fs.exists("")


def test_published_record_is_read_back_whole(store: CheckpointStore) -> None:
    """What was decided is what is read, in a fresh store too."""
    wanted = full_record()
    _publish(store, wanted)
    assert store.read(42) == wanted
    assert CheckpointStore(store.fs).places() == [42]
    assert not store.is_empty(place_name(42))
    names = [entry.name for entry in store.fs.entries(place_name(42))]
    assert names == ["_metadata"], "no temporary file is left"


def test_publish_again_gives_the_same_answer(store: CheckpointStore) -> None:
    """A coordinator that lost the answer asks again."""
    _publish(store, record(1), record(1), record(1))


def test_a_place_is_never_taken_twice(store: CheckpointStore) -> None:
    """Another session's record, or another of ours, changes nothing (rules 6 and 7)."""
    _publish(store, record(1))
    for other in (
        record(1, leader_session_id="second"),
        record(1, verdict=Verdict.ABORTED),
        record(1, reason="different"),
    ):
        assert store.publish(other, timeout_s=_TIMEOUT_S) is PublishOutcome.TAKEN
    assert store.read(1) == record(1)


def test_one_of_many_publishers_wins(store: CheckpointStore) -> None:
    """Eight sessions race for ten places: one record each, whole, and its owner knows (rule 7)."""
    sessions, places = 8, 10
    start = Barrier(sessions)

    def race(session: str, place: int) -> PublishOutcome:
        start.wait(_TIMEOUT_S)
        mine = record(place, leader_session_id=session)
        return CheckpointStore(store.fs).publish(mine, timeout_s=_TIMEOUT_S)

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
    """Rule 6: the paused one wakes with every acknowledgement in hand and may not decide."""
    _publish(store, record(0), record(1))
    seal = record(2, verdict=Verdict.ABORTED, leader_session_id="second", asked_by="seal")
    _publish(store, seal)
    paused = store.publish(record(2), timeout_s=_TIMEOUT_S)
    assert paused is PublishOutcome.TAKEN
    assert store.read(2) == seal


def test_another_jobs_directory_is_refused_and_left_alone(store: CheckpointStore) -> None:
    """A typed error that names both jobs; nothing is written."""
    _publish(store, record(0))
    before = store.fs.entries("")
    with pytest.raises(WrongJobError, match=r"job_uid=other found=6f9619ff"):
        CheckpointStore(store.fs).publish(record(1, job_uid="other"), timeout_s=_TIMEOUT_S)
    assert store.fs.entries("") == before


def test_committed_mark_is_idempotent_and_seen_by_others(store: CheckpointStore) -> None:
    """Marked once is marked for ever, also for the next process."""
    _publish(store, record(1))
    assert not store.is_committed(1)
    store.mark_committed(1)
    store.mark_committed(1)
    assert store.is_committed(1)
    assert CheckpointStore(store.fs).is_committed(1)


def test_superseded_mark_says_by_what(store: CheckpointStore) -> None:
    """What a start from an older checkpoint left behind is told from what counts."""
    _publish(store, record(1), record(2))
    store.mark_superseded(2, by=3)
    store.mark_superseded(2, by=3)
    assert store.is_superseded(2)
    assert store.superseded_by(2) == 3
    assert store.superseded_by(1) is None


def test_everything_written_says_its_version(store: CheckpointStore) -> None:
    """Marks and the leader record carry a format version as the Avro files do."""
    _publish(store, record(1))
    store.mark_committed(1)
    store.mark_superseded(1, by=2)
    FileLeaderStore(store.fs).announce(Leader(leader_session_id="first", address="h:1"))
    for path in (f"{place_name(1)}/_committed", f"{place_name(1)}/_superseded", "_leader"):
        assert b'"format_version": 1' in (store.fs.read(path) or b"")


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
    """Recovery follows the repair, also of a repair (rule 11)."""
    _publish(store, record(1))
    standing = store.read(1)
    assert standing is not None
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
    _publish(store, standing)
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
    assert store.places() == [1]
    assert store.effective_committables(standing) == standing.committables


def test_rule_11_what_was_accepted_as_lost_is_not_written_again(store: CheckpointStore) -> None:
    """By a start that slept in its repair, say. Beside it others may be."""
    standing = _two_committables()
    _publish(store, standing)
    first, second = standing.committables
    store.accept(1, [_accepted(first)])
    for session in ("slept", "accept-loss"):
        again = {first.payload: committable(b"again"), second.payload: committable(b"too")}
        assert store.publish_repair(1, again, session=session) is PublishOutcome.TAKEN
    again = {second.payload: committable(b"too")}
    assert store.publish_repair(1, again, session="slept") is PublishOutcome.OURS
    assert store.effective_committables(standing) == (first, committable(b"too"))


def test_rule_11_what_was_written_again_is_not_accepted_as_lost(store: CheckpointStore) -> None:
    """Between a look at what was lost and the word; nothing at all is accepted then."""
    standing = _two_committables()
    _publish(store, standing)
    first, second = standing.committables
    again = {first.payload: committable(b"again")}
    assert store.publish_repair(1, again, session="slept") is PublishOutcome.OURS
    with pytest.raises(ConfigError, match="written again"):
        store.accept(1, [_accepted(first), _accepted(second)])
    assert store.accepted(1) == {}
    store.accept(1, [_accepted(second)])
    assert store.effective_committables(standing) == (committable(b"again"), second)


def test_a_committable_is_repaired_by_one_session(store: CheckpointStore) -> None:
    """A paused older coordinator that repairs the same one later is told so (rules 6 and 11)."""
    _publish(store, record(1))
    lost = committable().payload
    assert (
        store.publish_repair(1, {lost: committable(b"new")}, session="new") is PublishOutcome.OURS
    )
    answer = store.publish_repair(1, {lost: committable(b"old")}, session="old")
    assert answer is PublishOutcome.TAKEN
    (repair,) = store.repairs(1)
    assert repair.leader_session_id == "new"


def test_rule_11_a_claim_that_is_not_answered_accepts_nothing(store: CheckpointStore) -> None:
    """Whether it stands in a repair's way nobody knows: the command is given again."""
    standing = _two_committables()
    _publish(store, standing)
    word = _accepted(standing.committables[0])
    unknown = patch.object(store, "publish_repair", return_value=PublishOutcome.UNKNOWN)
    with unknown, pytest.raises(StorageError, match="claim is not answered"):
        store.accept(1, [word])
    assert store.accepted(1) == {}
    store.accept(1, [word])
    assert set(store.accepted(1)) == {word.digest}


def test_rule_11_a_place_that_was_retired_is_not_repaired(store: CheckpointStore) -> None:
    """Somebody has committed what it named, or it would stand there still."""
    _publish(store, record(0), record(1), record(2))
    store.mark_committed(1)
    store.retire([1])
    replaced = {committable().payload: committable(b"new")}
    assert store.publish_repair(1, replaced, session="old") is PublishOutcome.TAKEN
    assert store.read(1) is None
    seal = record(1, verdict=Verdict.ABORTED, leader_session_id="slept", asked_by="seal")
    _publish(store, seal)
    assert store.publish_repair(1, replaced, session="older") is PublishOutcome.TAKEN


def test_retire_deletes_and_refuses_what_is_needed(store: CheckpointStore) -> None:
    """Rule 29: an unfinished decision, checkpoint 0, a seal and the last record stay."""
    seal = record(3, verdict=Verdict.ABORTED, leader_session_id="second", asked_by="seal")
    later = [record(each, leader_session_id="second") for each in (4, 5, 6)]
    _publish(store, record(0), record(1), record(2), seal, *later)
    for each in (1, 4, 6):
        store.mark_committed(each)
    for needed in (0, 2, 3, 5, 6):
        with pytest.raises(StorageError, match="still needed"):
            store.retire([1, needed])
    assert store.places() == [0, 1, 2, 3, 4, 5, 6], "a refused call deletes nothing"
    store.retire([1, 4])
    store.retire([1])
    assert store.places() == [0, 2, 3, 5, 6]
    assert not store.fs.exists(place_name(1))


def test_retention_keeps_the_newest_and_the_floor_stays(store: CheckpointStore) -> None:
    """2,000 checkpoints or ten: at most the newest three, and checkpoint 0."""
    for each in range(10):
        _publish(store, record(each))
        store.mark_committed(each)
        store.retire(store.retirable(retain=3))
    assert store.places() == [0, 7, 8, 9]
    assert len(store.fs.entries("")) == 4


def test_marks_are_seen_by_a_store_that_looked_before(store: CheckpointStore) -> None:
    """What is kept in memory is never older than the marks that retention goes by."""
    _publish(store, *map(record, range(6)))
    assert store.retirable(retain=1) == [], "nothing is finished yet"
    for each in range(6):
        CheckpointStore(store.fs).mark_committed(each)
    assert store.retirable(retain=1) == [1, 2, 3, 4]
    store.mark_superseded(5, by=6)
    assert store.retirable(retain=1) == [1, 2, 3]


def test_clean_leaves_what_may_still_be_published(store: CheckpointStore) -> None:
    """Half-made files below the last record go; those in flight beside or above it stay."""
    fs = store.fs
    _publish(store, record(0), record(1), record(2, leader_session_id="second"))

    def half_made(place: int, session: str) -> str:
        path = f"{place_name(place)}/._metadata.{session}.{uuid.uuid4().hex}.tmp"
        fs.write_temporary(path, b"half")
        return path

    dead = [half_made(1, "first"), half_made(2, "first")]
    alive = [half_made(2, "second"), half_made(3, "second"), half_made(3, "third")]
    assert store.clean(session="second") == len(dead)
    assert [path for path in dead + alive if fs.exists(path)] == alive
    assert store.places() == [0, 1, 2]


def test_a_new_session_cleans_up_behind_a_crashed_one(store: CheckpointStore) -> None:
    """Half-made files do not pile up over restarts; only who has published cleans."""
    fs = store.fs
    _publish(store, record(0), record(1))
    path = f"{place_name(1)}/._metadata.first.{uuid.uuid4().hex}.tmp"
    fs.write_temporary(path, b"half")
    CheckpointStore(fs).retire([])
    assert fs.exists(path)
    successor = CheckpointStore(fs)
    _publish(successor, record(2, verdict=Verdict.ABORTED, leader_session_id="second"))
    successor.retire([])
    assert not fs.exists(path)
    assert successor.places() == [0, 1, 2]


def test_what_was_half_made_beside_the_places_goes_once_nobody_can_be_writing_it(
    fs: FileSystem,
) -> None:
    """Another run, also a newer one, may have made what was not there an hour ago."""
    now_s = [0.0]
    store = CheckpointStore(fs, clock=lambda: now_s[0])
    _publish(store, record(0))
    store.remember_seals()
    FileLeaderStore(fs).announce(Leader(leader_session_id="s", address="a", generation=0))
    old, new = (f".{name}.{uuid.uuid4().hex}.tmp" for name in ("_seals", "_leader"))
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
    """It made the directory anew to publish there, and was refused: nothing stands in it."""
    _publish(store, *(record(number) for number in range(3)))
    store.fs.delete(place_name(1))
    store.fs.write_temporary(f"{place_name(1)}/._metadata.first.{uuid.uuid4().hex}.tmp", b"half")
    assert store.clean(session="second") == 1
    assert not store.fs.exists(place_name(1))
    assert store.places() == [0, 2]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"by": null}', b"damaged"])
def test_a_mark_that_cannot_be_read_is_damage_with_its_place(
    store: CheckpointStore, content: bytes
) -> None:
    """It says from where a job was restored: never a guess."""
    _publish(store, record(0), record(1))
    store.fs.replace(f"{place_name(1)}/_superseded", content)
    with pytest.raises(DamagedCheckpointError, match=place_name(1)):
        store.superseded_by(1)


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_truncated_record_is_typed_and_never_replaced(store: CheckpointStore, keep: int) -> None:
    """A damaged record names its place; nobody decides over it."""
    _publish(store, record(0))
    path = f"{place_name(1)}/_metadata"
    whole = store.fs.read(f"{place_name(0)}/_metadata") or b""
    store.fs.replace(path, whole[:keep])
    for look in (lambda: store.read(1), lambda: store.publish(record(1), timeout_s=_TIMEOUT_S)):
        with pytest.raises(DamagedCheckpointError, match=place_name(1)):
            look()
    assert store.fs.read(path) == whole[:keep]


def test_a_damaged_record_is_never_retired_and_holds_up_no_other(store: CheckpointStore) -> None:
    """Else a directory that a job was restored past it in would grow for ever."""
    for number in range(5):
        _publish(store, record(number))
        store.mark_committed(number)
    store.fs.replace(f"{place_name(2)}/_metadata", b"damaged")
    looking = CheckpointStore(store.fs)
    assert looking.retirable(retain=1) == [1, 3]
    looking.retire([1, 3])
    assert looking.places() == [0, 2, 4]


def test_record_of_another_place_is_damage(store: CheckpointStore) -> None:
    """A directory copied by hand is not a decision about the id in its name."""
    _publish(store, record(0))
    store.fs.replace(
        f"{place_name(7)}/_metadata", store.fs.read(f"{place_name(0)}/_metadata") or b""
    )
    with pytest.raises(DamagedCheckpointError, match="place 7 says it is of 0"):
        store.read(7)


def test_leader_record_is_replaced_whole(store: CheckpointStore) -> None:
    """The last one to announce is found, by another process too."""
    leaders = FileLeaderStore(store.fs)
    for generation, session in enumerate(("first", "second")):
        leaders.announce(
            Leader(leader_session_id=session, address=f"{session}:1", generation=generation)
        )
    found = FileLeaderStore(store.fs).current()
    assert found == Leader(leader_session_id="second", address="second:1", generation=1)
    assert [entry.name for entry in store.fs.entries("")] == ["_leader"]
    assert store.places() == []


def test_leader_record_of_an_earlier_sluice_is_read(store: CheckpointStore) -> None:
    """It does not say where its coordinator sealed."""
    record = b'{"format_version": 1, "leader_session_id": "first", "address": "h:1"}'
    store.fs.replace("_leader", record)
    found = FileLeaderStore(store.fs).current()
    assert found == Leader(leader_session_id="first", address="h:1", generation=None)


def test_leader_record_of_a_later_version_is_refused(store: CheckpointStore) -> None:
    """Rubbish is no leader; a later version is a typed error."""
    leaders = FileLeaderStore(store.fs)
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
    """Names in order, with lengths."""
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
    fs.write_temporary("t", data)
    assert fs.place("t", "d")
    assert fs.read("d") == data
    assert not fs.exists("t")
    fs.write_temporary("t", b"other")
    assert not fs.place("t", "d")
    assert fs.read("d") == data
