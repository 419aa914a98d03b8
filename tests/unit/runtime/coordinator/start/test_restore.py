"""Starts from an older checkpoint, and starts that are refused; on a store in memory."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from sluice.runtime.coordinator.committing.commit_steps import drive
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.errors import (
    ConfigError,
    DamagedCheckpointError,
    SourceChangedError,
    UnsupportedFormatError,
    WrongJobError,
)
from sluice.runtime.model.checkpoint_record import (
    FENCING,
    CheckpointRecord,
    Redistribution,
    RegionRecord,
    StateEntry,
)
from sluice.runtime.model.state.file_reference import FileReference
from tests.kit.coordinator.core_driver import split
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.starting_job import NEVER_WRITTEN, PLAN, Job, aborted, record
from tests.kit.fakes import FakeSource
from tests.kit.files.fake_file_system import SimulatedCrashError

# --- starting from an older checkpoint ------------------------------------------------------------


def test_a_start_from_an_older_checkpoint_settles_and_marks_what_it_leaves_after() -> None:
    """Ids continue above the largest; nothing is forgotten."""
    job = Job(record(0), record(1), record(2), committed=(0, 1, 2))
    job.store.records[3] = record(3, entries=(job.pre_commit("third"),))
    found = job.start(restore_from=1)
    assert (found.record.checkpoint_id, found.attempt_id) == (1, 4)
    assert job.broker.read_committed(0) == ["third"]
    assert job.store.superseded == {2: 4, 3: 4}
    assert [s.end_offset for s in job.source.restored] == [10]


def test_a_restore_that_crashed_stays_a_restore() -> None:
    """The seal says where the run began; the next start without a wish continues from there, and all
    that is left is marked as such."""
    job = Job(record(0), record(1), record(2), record(3), committed=(0, 1, 2, 3))
    _dies_after_fencing(job, session="dies", restore_from=1)
    found = job.start()
    assert found.record.checkpoint_id == 1
    assert job.store.superseded.keys() == {2, 3}


def test_restore_by_attempt_a_source_continues_at_its_own_positions_alone() -> None:
    """Two of them may read one topic: what only the other has on record, it has yet to discover."""
    job = Job(record(0), committed=(0,))
    job.other_sources["audit"] = FakeSource("audit", {0: 100, 1: 100})
    audited = [split(0, 0, 30, source_id="audit"), split(1, 0, 5, source_id="audit")]
    ranges = (split(0, 0, 10), *audited)
    read = tuple(dataclasses.replace(each, splits=ranges) for each in record(1).regions)
    job.store.records[1] = record(1, regions=read)
    region = dataclasses.replace(PLAN.regions[0], source_ids=("source", "audit"))
    job.start(plan=dataclasses.replace(PLAN, regions=(region,)))
    assert job.source.restored == [split(0, 0, 10)]
    assert job.other_sources["audit"].restored == audited


# --- an older run retires the checkpoint that a start goes back to -------------------------------


def _retired_at(point: str) -> Job:
    """An older run retires checkpoint 1 at a point of the start that goes back to it."""
    job = Job(record(0), record(1), record(2), record(3), committed=(0, 1, 2, 3))
    steps = job.sequence(session="late").run(timeout_s=30.0, restore_from=1)

    def retire(step: str) -> None:
        if step == point:
            job.store.records.pop(1, None)

    with pytest.raises(ConfigError, match="not there"):
        drive(steps, retire)
    return job


@pytest.mark.parametrize("point", ["before-fencing", "after-fencing"])
def test_retire_after_commit_a_start_reads_again_what_it_goes_back_to_after_its_fencing_record(
    point: str,
) -> None:
    """The older run deletes the files of state next, for it has not found the fencing record. No
    later start returns there: not without a wish, and not in silence with the same one."""
    job = _retired_at(point)
    assert job.store.records[4].restored_from == 1
    assert not job.store.superseded
    with pytest.raises(ConfigError, match="not there"):
        job.start(session="again", restore_from=1)
    assert job.start(session="next").record.checkpoint_id == 3


def test_retire_after_commit_a_start_returns_to_no_record_that_an_older_run_retired_late() -> None:
    """That run slept between its check and its deletion. The start had marked what it left."""
    job = Job(record(0), record(1), record(2), record(3), committed=(0, 1, 2, 3))
    job.start(session="dies", restore_from=1)
    assert job.store.superseded.keys() == {2, 3}
    del job.store.records[1]
    checked: list[int] = []
    job.require_restorable = lambda found: checked.append(found.checkpoint_id)
    found = job.start(session="next")
    assert (found.record.checkpoint_id, checked) == (3, [3]), "of its states nobody has taken care"
    assert job.start(session="last").record.checkpoint_id == 3


def test_a_start_that_decided_nothing_and_whose_checkpoint_is_gone_hides_no_earlier_restore() -> (
    None
):
    job = Job(*(record(at) for at in range(5)), committed=(0, 1, 2, 3, 4))
    job.start(session="second", restore_from=2)
    job.start(session="third", restore_from=1)
    del job.store.records[1]
    assert job.start(session="fourth").record.checkpoint_id == 2


def _dies_after_fencing(job: Job, *, session: str, restore_from: int | None = None) -> None:
    steps = job.sequence(session=session).run(timeout_s=30.0, restore_from=restore_from)
    while next(steps) != "after-fencing":
        pass
    steps.close()


def _decide(job: Job, checkpoint_id: int, *, session: str) -> None:
    job.store.records[checkpoint_id] = record(checkpoint_id, leader_session_id=session)
    job.store.committed.add(checkpoint_id)


def _restored() -> tuple[Job, int]:
    """A job that went back from 3 to 1, and decided once more; that decision."""
    job = Job(record(0), record(1), record(2), record(3), committed=(0, 1, 2, 3))
    found = job.start(session="second", restore_from=1)
    assert found.record.checkpoint_id == 1
    decided = found.attempt_id + 1
    _decide(job, decided, session="second")
    return job, decided


def test_a_restore_that_was_done_is_not_done_again_by_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A cluster manager starts the same program again, as often as it dies; what the restored run
    has written stands, also when the checkpoint that it went back to has been retired since."""
    job, decided = _restored()
    for session in ("third", "fourth"):
        found = job.start(session=session, restore_from=1)
        assert found.record.checkpoint_id == decided
        assert f"restore_from=1 checkpoint_id={decided}" in caplog.text
    assert decided not in job.store.superseded
    del job.store.records[1]
    decided = found.attempt_id + 1
    _decide(job, decided, session="fourth")
    assert job.start(session="fifth", restore_from=1).record.checkpoint_id == decided


def test_a_restore_whose_run_decided_nothing_stays_a_restore_in_a_restart() -> None:
    job = Job(record(0), record(1), record(2), record(3), committed=(0, 1, 2, 3))
    for session in ("second", "third"):
        _dies_after_fencing(job, session=session, restore_from=1)
    assert job.start(session="fourth", restore_from=1).record.checkpoint_id == 1


@pytest.mark.parametrize("killed", [False, True])
def test_a_start_whose_checkpoint_was_gone_hides_no_restore_that_was_done(killed: bool) -> None:
    """A person asks for a checkpoint that the living run retires meanwhile. The cluster manager
    then starts the program of that run again, which has lost its lead."""
    job, decided = _restored()

    def retires(point: str) -> None:
        if point == "before-fencing":
            job.store.records.pop(0, None)
        elif point == "after-fencing" and killed:
            raise SimulatedCrashError

    with pytest.raises(SimulatedCrashError if killed else ConfigError):
        job.start(session="person", restore_from=0, at=retires)
    assert job.store.records[decided + 1].leader_session_id == "person"
    assert job.start(session="third", restore_from=1).record.checkpoint_id == decided
    assert not job.store.superseded.keys() & {decided}


@pytest.mark.parametrize("between", [None, 0])
def test_a_restore_is_done_again_after_a_run_with_another_wish(between: int | None) -> None:
    job, decided = _restored()
    if between is None:
        assert job.start(session="third").record.checkpoint_id == decided
    else:
        assert job.start(session="third", restore_from=between).record.checkpoint_id == between
    assert job.start(session="fourth", restore_from=1).record.checkpoint_id == 1


def test_a_restore_that_another_start_has_carried_out_is_not_done_again_by_a_restart() -> None:
    """A person's program is killed in its start, after its fencing record. The old program's
    supervisor starts that one again, without a wish: it goes back, and decides. Then the person's
    supervisor starts the person's program again."""
    job = Job(record(0), record(1), record(2), record(3), committed=(0, 1, 2, 3))
    _dies_after_fencing(job, session="person", restore_from=1)
    _dies_after_fencing(job, session="other")
    found = job.start(session="third")
    assert found.record.checkpoint_id == 1
    decided = found.attempt_id + 1
    _decide(job, decided, session="third")
    assert job.start(session="again", restore_from=1).record.checkpoint_id == decided


def test_one_start_goes_back_once_though_another_start_is_faster_after_its_fencing_record() -> None:
    """Its fencing record ends the living run, whose supervisor starts it again before the answer
    to the fencing record arrives."""
    job = Job(record(0), record(1), record(2), record(3), committed=(0, 1, 2, 3))
    decided: list[int] = []

    def supervise(point: str) -> None:
        if point == "after-fencing" and not decided:
            other = job.start(session="other")
            assert other.record.checkpoint_id == 1
            decided.append(other.attempt_id + 1)
            _decide(job, *decided, session="other")

    found = job.start(session="person", restore_from=1, at=supervise)
    assert [found.record.checkpoint_id] == decided


def test_a_start_that_only_continues_after_a_restore_does_not_repeat_it() -> None:
    """The restart of a restored run resumed from that run's decision: the next run without a wish
    has restored nothing. So a person can go back once more."""
    job, decided = _restored()
    _dies_after_fencing(job, session="third", restore_from=1)
    assert job.start(session="fourth").record.checkpoint_id == decided
    assert job.start(session="fifth", restore_from=1).record.checkpoint_id == 1


def test_a_run_that_went_on_from_a_checkpoint_by_itself_has_not_restored_it() -> None:
    job = Job(record(0), record(1), committed=(0, 1))
    found = job.start(session="second")
    _decide(job, found.attempt_id + 1, session="second")
    assert job.start(session="third", restore_from=1).record.checkpoint_id == 1


def test_a_seal_that_closed_nothing_carries_no_restore_out() -> None:
    """A start that slept sealed a retired place below a living run, and was killed before it
    sealed after it."""
    job = Job(record(0), record(1), record(2), committed=(0, 1, 2))
    slept = job.start(session="slept", restore_from=1).attempt_id
    _decide(job, slept + 1, session="living")
    assert job.start(session="third", restore_from=1).record.checkpoint_id == 1


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_seal_in_a_retired_slot_does_not_hide_that_a_restore_was_done(is_killed: bool) -> None:
    """A start that slept before its seal finds its slot retired, below the run that did its wish."""
    job = Job(record(0), record(1), record(2), committed=(0, 1, 2))
    done = job.start(session="living", restore_from=1).attempt_id

    def decides(point: str) -> None:
        if point == "before-fencing" and done + 1 not in job.store.records:
            _decide(job, done + 2, session="living")  # and the decision before it is retired
        elif point == "after-fencing" and is_killed and done + 3 not in job.store.records:
            raise SimulatedCrashError

    slept = job.start
    if is_killed:
        with pytest.raises(SimulatedCrashError):
            slept(session="slept", restore_from=1, at=decides)
        found = job.start(session="third", restore_from=1)
    else:
        found = slept(session="slept", restore_from=1, at=decides)
    assert job.store.records[done + 1].leader_session_id == "slept"
    assert found.record.checkpoint_id == done + 2
    assert not job.store.superseded.keys() & {done + 2}


def test_a_restore_of_a_job_that_has_never_run_is_refused() -> None:
    """It would begin again, and a restart of it would go back to what it wrote itself."""
    job = Job()
    with pytest.raises(ConfigError, match="restore_from=1"):
        job.start(restore_from=1)
    assert not job.store.records


@pytest.mark.parametrize("wish", [9, 2])
def test_a_start_from_nowhere_is_refused_before_anything_changes(wish: int) -> None:
    job = Job(record(0), record(1), aborted(2), committed=(0, 1))
    with pytest.raises(ConfigError, match=f"restore_from={wish}"):
        job.start(restore_from=wish)
    assert not job.store.history


@pytest.mark.parametrize("what", ["source", "state"])
def test_a_wish_whose_records_or_state_are_gone_changes_nothing(what: str) -> None:
    """After a seal that names it the job would go back there at each start, and fail each time."""
    job = Job(record(0), record(1), record(2), committed=(0, 1, 2))
    gone = SourceChangedError("gone", {}, "Go back less far.")

    def require_restorable(found: CheckpointRecord) -> None:
        if found.checkpoint_id == 1:
            raise gone

    if what == "state":
        job.require_restorable = require_restorable
    else:
        job.source.changed = gone
    with pytest.raises(SourceChangedError):
        job.start(restore_from=1)
    assert not job.store.history
    job.source.changed = None
    assert job.start().record.checkpoint_id == 2


def test_a_directory_without_a_decision_is_no_job_to_continue_with() -> None:
    job = Job(aborted(0), aborted(1))
    with pytest.raises(ConfigError, match="no decided checkpoint"):
        job.start()
    assert not job.store.history


def test_a_checkpoint_to_start_from_that_has_vanished_is_named_and_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The run that asked for it has decided nothing. So the newest decision stands."""
    job = Job(record(0), record(1), record(2), committed=(0, 1, 2))
    _dies_after_fencing(job, session="dies", restore_from=1)
    del job.store.records[1]
    assert job.start().record.checkpoint_id == 2
    assert "went back to a checkpoint that is gone" in caplog.text
    assert "gone=1 checkpoint_id=2" in caplog.text


def test_a_checkpoint_that_a_living_run_retires_during_the_start_is_named() -> None:
    """It was there when the start looked; a seal that names it would be for nothing."""

    class Retiring(FakeStore):
        """A store in which the first place goes once it has been read."""

        def read(self, checkpoint_id: int) -> CheckpointRecord | None:
            found = super().read(checkpoint_id)
            if checkpoint_id == 1:
                self.records.pop(1, None)
            return found

    job = Job(record(0), record(1), record(2), committed=(0, 1, 2))
    job.store = Retiring(records=job.store.records, committed=job.store.committed)
    with pytest.raises(ConfigError, match="restore_from=1"):
        job.start(restore_from=1)
    assert not job.store.history


def test_a_damaged_record_stops_a_start_unless_it_is_left_settled() -> None:
    job = Job(record(0), record(1), record(2), committed=(0, 1, 2))
    job.store = _damaged_at(job.store, 2)
    with pytest.raises(DamagedCheckpointError):
        job.start()
    assert not job.store.history
    assert job.start(restore_from=1).record.checkpoint_id == 1
    job.store.committed.discard(2)
    with pytest.raises(DamagedCheckpointError):
        job.start(restore_from=1)


def test_a_sink_hears_of_the_newest_decision_whatever_the_start_goes_back_to() -> None:
    """A remote that has a later one belongs to a newer directory. Fencing records do not count:
    each start leaves one. The record of a decision may be damaged."""
    job = Job(record(0), record(1), record(2), aborted(3), committed=(0, 1, 2))
    for session, wish in (("first", None), ("second", 1), ("third", None)):
        job.start(session=session, restore_from=wish)
        assert job.sink.context is not None
        assert job.sink.context.last_decision == 2
        assert job.sink.context.attempt_id > 3
    job.store = _damaged_at(job.store, 2)
    job.start(session="fourth", restore_from=1)
    assert job.sink.context.last_decision == 2


@pytest.mark.parametrize(("wish", "expected"), [(None, "second"), (1, "first")])
def test_a_sink_hears_of_the_newest_committed_work_up_to_where_the_start_goes_back(
    wish: int | None, expected: str
) -> None:
    """A remote that was put back to an earlier state lacks later work, and a person knows it."""
    job = Job(record(0), committed=(0, 1, 2))
    entries = {name: job.pre_commit(name) for name in ("first", "second", "open")}
    for number, entry in enumerate(entries.values(), 1):
        job.store.records[number] = record(number, entries=(entry,))
    job.start(restore_from=wish)
    assert job.sink.context is not None
    assert job.sink.context.committed == (entries[expected],)


def test_a_damaged_record_stops_no_start_that_continues_from_a_newer_one() -> None:
    """The newest decision is whole and committed; where its own run began says nothing any more."""
    job = Job(record(0), record(1), aborted(2, requested_by=FENCING, restored_from=1))
    job.store.records[3] = record(3, restored_from=1, leader_session_id="second")
    job.store.committed |= {0, 1, 3}
    job.store = _damaged_at(job.store, 1)
    assert job.start().record.checkpoint_id == 3


def test_a_wish_for_a_damaged_record_is_reported_as_that() -> None:
    job = Job(record(0), record(1), record(2), committed=(0, 1, 2))
    job.store = _damaged_at(job.store, 1)
    with pytest.raises(DamagedCheckpointError):
        job.start(restore_from=1)
    assert not job.store.history


def test_what_a_crashed_restore_went_back_to_is_reported_as_damaged() -> None:
    """An earlier restore had left it after, so it is passed over until it is needed."""
    job = Job(record(0), record(1), record(2), committed=(0, 1, 2))
    for session, wish in (("first", 1), ("second", 2)):
        _dies_after_fencing(job, session=session, restore_from=wish)
    job.store = _damaged_at(job.store, 2)
    with pytest.raises(DamagedCheckpointError):
        job.start()


def test_a_restore_past_a_damaged_record_that_crashed_stays_a_restore() -> None:
    """Its seal says what it left: no need to ask for the older checkpoint once more."""
    job = Job(record(0), record(1), record(2), committed=(0, 1, 2))
    job.store = _damaged_at(job.store, 2)
    _dies_after_fencing(job, session="dies", restore_from=1)
    assert job.start().record.checkpoint_id == 1


def test_only_what_a_run_restores_or_settles_must_be_known() -> None:
    """A record that needs a connector which is not here stops a start before anything changes,
    unless the start leaves it after settled."""
    job = Job(record(0), record(1), record(2), committed=(0, 1, 2))
    asked = []

    def require_known(found: CheckpointRecord) -> None:
        asked.append(found.checkpoint_id)
        if found.checkpoint_id == 2:
            raise UnsupportedFormatError("unknown kind", {"checkpoint_id": 2}, "Install it.")

    job.require_known = require_known
    with pytest.raises(UnsupportedFormatError):
        job.start()
    job.store.committed.discard(2)
    with pytest.raises(UnsupportedFormatError):
        job.start(restore_from=1)
    assert not job.store.history
    assert asked == [2, 1, 2]
    job.store.committed.add(2)
    assert job.start(restore_from=1).record.checkpoint_id == 1


def _damaged_at(store: FakeStore, place: int) -> FakeStore:
    read = store.read

    def damaged(checkpoint_id: int) -> CheckpointRecord | None:
        if checkpoint_id == place:
            raise DamagedCheckpointError("cut off", {"checkpoint_id": place}, "Use another.")
        return read(checkpoint_id)

    return _ReadingStore(store, damaged)


class _ReadingStore(FakeStore):
    """A store whose reads a test replaces."""

    def __init__(self, store: FakeStore, read: Callable[[int], CheckpointRecord | None]) -> None:
        super().__init__(records=store.records, committed=store.committed)
        self._replaced = read

    def read(self, checkpoint_id: int) -> CheckpointRecord | None:
        return self._replaced(checkpoint_id)


# --- another job ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (dataclasses.replace(PLAN, name="other"), "belongs to another job"),
        (
            dataclasses.replace(PLAN, regions=(RegionPlan(name="main", source_ids=("renamed",)),)),
            "source 'orders' \\(source\\)",
        ),
        (
            dataclasses.replace(
                PLAN, regions=(RegionPlan(name="renamed", source_ids=("source",), stateful=True),)
            ),
            "only_in_checkpoint=main",
        ),
        (
            dataclasses.replace(
                PLAN, regions=(dataclasses.replace(PLAN.regions[0], stateful=True),)
            ),
            "keeps_state_now=True",
        ),
    ],
)
def test_a_directory_of_another_job_is_refused_before_anything_changes(
    changed: JobPlan, says: str
) -> None:
    job = Job(record(0), record(1), committed=(0, 1))
    with pytest.raises(WrongJobError, match=says):
        job.start(plan=changed)
    assert not job.store.history
    assert job.sink.calls == ["check"]


@pytest.mark.parametrize(
    "held",
    [
        {},
        {"operators": ((0, "stateStoreSave"),)},
        {"files": (FileReference(path="0/0/1.delta", length_bytes=3, sha256="0" * 64),)},
    ],
    ids=["nothing", "operators", "files"],
)
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_region_that_never_kept_anything_may_become_stateless(
    held: dict[str, Any], is_empty: bool
) -> None:
    """Some steps of a plan counted as stateful once; state that is there, or was when the record
    was written, is never given up."""
    kept = record(1)
    state = dataclasses.replace(NEVER_WRITTEN, **held)
    regions = tuple(dataclasses.replace(each, state=state) for each in kept.regions)
    job = Job(record(0), dataclasses.replace(kept, regions=regions), committed=(0, 1))
    job.store.empty |= {state.location} if is_empty else set()
    if is_empty and not held:
        assert job.start().regions["main"].splits == kept.regions[0].splits
    else:
        with pytest.raises(WrongJobError, match="keeps_state_now=False"):
            job.start()


def test_a_missing_sink_of_an_unsettled_checkpoint_is_named_before_the_seal() -> None:
    job = Job(record(0), committed=(0,))
    entry = dataclasses.replace(job.pre_commit("x"), operator_id="vanished")
    job.store.records[1] = record(1, entries=(entry,))
    with pytest.raises(WrongJobError, match="vanished"):
        job.start()
    assert not job.store.history


def test_a_sink_may_leave_whose_transactions_are_settled() -> None:
    job = Job(record(0), committed=(0,))
    entry = dataclasses.replace(job.pre_commit("x"), operator_id="vanished")
    job.store.records[1] = record(1, entries=(entry,))
    job.store.committed.add(1)
    found = job.start()
    assert found.record.checkpoint_id == 1
    assert found.regions["main"].splits == record(1).regions[0].splits


@pytest.mark.parametrize(
    "regions",
    [
        (
            dataclasses.replace(PLAN.regions[0], sink_ids=()),
            RegionPlan(name="side", sink_ids=("sink",)),
        ),
        (dataclasses.replace(PLAN.regions[0], stateful_sink_ids=()), RegionPlan(name="side")),
    ],
    ids=["to another region", "for one of another kind"],
)
def test_a_sink_that_keeps_state_is_not_exchanged(regions: tuple[RegionPlan, ...]) -> None:
    """Its uid keeps its id; the region would drop the state with its next batch, and with it the
    files that are held there."""
    kept = StateEntry(
        operator_id="sink",
        state_name="held",
        kind="held",
        version=1,
        redistribution=Redistribution.SPLIT,
        payload=b"files",
    )
    side = RegionRecord(region="side", attempt_id=0)
    (main,) = record(1).regions
    main = dataclasses.replace(main, operator_states=(kept,))
    job = Job(record(1, regions=(main, side)), committed=(1,))
    with pytest.raises(WrongJobError, match="region=main"):
        job.start(plan=dataclasses.replace(PLAN, regions=regions))
    assert not job.store.history


def test_a_failing_check_changes_nothing() -> None:
    """A wrong password ends the start before the store is touched."""
    job = Job()

    def refuse(*, timeout_s: float) -> dict[str, str]:
        raise ConfigError("no", {}, "Ask for access.")

    job.sink.check = refuse  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="Ask for access"):
        job.start()
    assert not job.store.records
