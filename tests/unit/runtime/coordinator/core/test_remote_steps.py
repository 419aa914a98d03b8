"""The steps that the coordinator's core asks for: what each of them makes of a remote's answer."""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from sluice.runtime.checkpoint.lost_work import LostCommittables
from sluice.runtime.checkpoint.retained_states import KeptStates
from sluice.runtime.contracts import CommitOutcome, CommitReport, PublishOutcome
from sluice.runtime.coordinator.committing.commit_steps import (
    DecidedWork,
    SharedCommitters,
    commit_all,
    drive,
    publish_record,
)
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.events import (
    AbortedWork,
    AbortWork,
    Acknowledged,
    Commit,
    CommitReported,
    CoreEvent,
    MarkCommitted,
    Marked,
    Publish,
    Published,
    PublishPositions,
    RegionalStep,
    RemoteAction,
    Repair,
    Repaired,
    Retire,
)
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from sluice.runtime.errors import (
    StorageError,
    TransactionLostError,
    UnreachableError,
    WrongJobError,
)
from sluice.runtime.failpoints import VARIABLE
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    RegionRecord,
    StateEntry,
    Verdict,
)
from sluice.runtime.model.splits import BatchKey, SplitRange
from tests.kit.coordinator.core_driver import FAST, CoreDriver, committable, split
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.run_io_executor import hands_of
from tests.kit.coordinator.starting_job import JOB_UID, PLAN, aborted, record
from tests.kit.fakes import FakeBroker, FakeSink, FakeSource, entry_of

AWAY = StorageError("the store does not answer", {}, "Ask again.")


def io_executor(store: FakeStore, sink: FakeSink | None = None, **parts: Any) -> IoExecutor:
    parts.setdefault("sinks", {"sink": sink or FakeSink(FakeBroker())})
    return hands_of(store, plan=PLAN, job_uid=JOB_UID, session="new", attempt_id=1, **parts)


def done(of: IoExecutor, action: RemoteAction) -> CoreEvent | None:
    return drive(of.perform(action))


def decision_of(*regions: RegionRecord) -> Publish:
    return Publish(
        checkpoint_id=1,
        kind=CheckpointKind.CHECKPOINT,
        verdict=Verdict.DECIDED,
        requested_by="interval",
        reason="",
        regions=regions,
    )


def refuse(_: str) -> None:
    raise AWAY


# --- deciding -------------------------------------------------------------------------------------


def test_publish_whole_a_taken_place_in_which_nothing_stands_is_no_answer() -> None:
    """Whose record it was cannot be reported: neither a decision of ours nor another run's."""

    class Emptied(FakeStore):
        def publish(self, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
            return PublishOutcome.TAKEN

    assert publish_record(Emptied(), record(1), timeout_s=1.0) is PublishOutcome.UNKNOWN


@pytest.mark.parametrize(
    ("standing", "outcome"),
    [
        (record(1, leader_session_id="ours"), PublishOutcome.OURS),
        (record(1, leader_session_id="theirs"), PublishOutcome.TAKEN),
        (record(1, leader_session_id="ours", verdict=Verdict.ABORTED), PublishOutcome.TAKEN),
    ],
)
def test_publish_whole_whose_record_stands_in_a_taken_place_is_looked_at(
    standing: CheckpointRecord, outcome: PublishOutcome
) -> None:
    store = FakeStore(records={1: standing})
    again = record(1, leader_session_id="ours", created_at_ms=7)
    assert publish_record(store, again, timeout_s=1.0) is outcome


# --- committing -----------------------------------------------------------------------------------


def test_transaction_timeout_a_withdrawal_is_no_repetition_of_the_decision() -> None:
    store = FakeStore(lose_answer=lambda: False)
    of = io_executor(store)
    decision = decision_of()
    store.on_call = refuse
    assert done(of, decision) == Published(checkpoint_id=1, outcome=PublishOutcome.UNKNOWN)
    store.on_call = lambda _: None
    abort = replace(decision, verdict=Verdict.ABORTED, reason="too old to decide")
    assert done(of, abort) == Published(checkpoint_id=1, outcome=PublishOutcome.OURS)
    assert store.records[1].verdict is Verdict.ABORTED


def test_transaction_timeout_a_withdrawal_finds_the_decision_that_landed_before_it() -> None:
    for session, outcome in (("ours", PublishOutcome.DECIDED), ("theirs", PublishOutcome.TAKEN)):
        store = FakeStore(records={1: record(1, leader_session_id=session)})
        abort = record(1, leader_session_id="ours", verdict=Verdict.ABORTED)
        assert publish_record(store, abort, timeout_s=1.0) is outcome


@pytest.mark.parametrize("slow", ["at its point", "looking for its owner"])
def test_transaction_timeout_a_decision_that_grew_old_before_its_turn_is_withdrawn(
    slow: str,
) -> None:
    """Its step waited after others, or its process was stopped: brokers may have aborted it."""
    driver = _decided_within(5.0)
    (decision,) = driver.seen(Publish)
    store = FakeStore()
    pause = driver.clock.advance
    owner = pause if slow == "looking for its owner" else id
    of = hands_of(store, age_clock=driver.clock, before_decision=lambda: owner(5.0))
    step = of.perform(decision)
    assert next(step) == "before-decision"
    if slow == "at its point":
        pause(5.0)
    unknown = drive(step)
    assert unknown == Published(checkpoint_id=1, outcome=PublishOutcome.UNKNOWN)
    assert store.records == {}
    driver.tell(unknown)
    assert not driver.seen(AbortWork)
    driver.tick(FAST.max_retry_s)
    withdrawn = done(of, driver.seen(Publish)[-1])
    assert withdrawn == Published(checkpoint_id=1, outcome=PublishOutcome.OURS)
    assert store.records[1].verdict is Verdict.ABORTED
    driver.tell(withdrawn)
    (aborted,) = driver.seen(AbortWork)
    assert aborted.committables == (committable("main.0.1"),)


def test_transaction_timeout_a_decision_that_landed_before_it_grew_old_stands() -> None:
    """Its answer was lost; that it is not tried again says nothing of the first try."""
    driver = _decided_within(5.0)
    (decision,) = driver.seen(Publish)
    answers = iter([True])
    store = FakeStore(lose_answer=lambda: next(answers, False))
    of = hands_of(store, age_clock=driver.clock)
    for _ in range(2):
        unknown = done(of, decision)
        assert unknown == Published(checkpoint_id=1, outcome=PublishOutcome.UNKNOWN)
        driver.clock.advance(5.0)
    driver.tell(unknown)
    driver.tick(FAST.max_retry_s)
    driver.tell(done(of, driver.seen(Publish)[-1]))
    assert store.records[1].verdict is Verdict.DECIDED
    (commit,) = driver.seen(Commit)
    assert commit.committables == (committable("main.0.1"),)


def _decided_within(seconds: float) -> CoreDriver:
    """A run whose first decision is safe for so long, and has not been done."""
    driver = CoreDriver(FAST)
    driver.auto = False
    driver.tick()
    barrier = driver.poll(3)
    ack = driver.acknowledgement(BatchKey(region="main", attempt_id=0, batch_id=1), barrier)
    driver.tell(Acknowledged(ack=replace(ack, decide_by_s=driver.clock() + seconds)))
    return driver


def test_retire_after_commit_a_withdrawal_forgets_nothing_that_a_landed_decision_keeps() -> None:
    """Files held over epochs are named by that record alone: the next sweep would delete them."""
    answers = iter([True])
    store = FakeStore(records={0: record(0)}, lose_answer=lambda: next(answers, False))
    kept = KeptStates()
    of = io_executor(store, kept=kept)
    held = (replace(committable("held"), state_name="held"),)
    region = RegionRecord(region="main", attempt_id=0, operator_states=held)
    decision = decision_of(region)
    assert done(of, decision) == Published(checkpoint_id=1, outcome=PublishOutcome.UNKNOWN)
    abort = replace(decision, verdict=Verdict.ABORTED, reason="too old to decide")
    assert done(of, abort) == Published(checkpoint_id=1, outcome=PublishOutcome.DECIDED)
    assert kept.entries() == held


def test_a_committable_of_a_sink_that_the_job_lacks_is_refused_by_name() -> None:
    """Left out it would never become visible, though it is decided."""
    committers = SharedCommitters({"sink": SerialSink(FakeSink(FakeBroker()))}, PLAN)
    with pytest.raises(WrongJobError, match="operator_id=gone"):
        committers.positions([committable("a"), replace(committable("b"), operator_id="gone")])


def test_a_commit_can_be_interrupted_between_two_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Armed by tests alone: all others commit at once."""
    broker = FakeBroker()
    opened = [broker.init(f"fake/{JOB_UID}/main.0/{name}") for name in "ab"]
    for transaction in opened:
        broker.append(transaction, 0, transaction.transactional_id)
    entries = tuple(entry_of(transaction) for transaction in opened)
    regions = record(1, entries=entries).regions
    decided = DecidedWork(checkpoint_id=1, regions=regions, entries=entries)
    monkeypatch.setenv(VARIABLE, "mid-commit=kill")
    committers = SharedCommitters({"sink": SerialSink(FakeSink(broker))}, PLAN)
    steps = commit_all(committers, decided, timeout_s=1.0, after_crash=False)
    while next(steps) != "mid-commit":
        pass
    assert len(broker.ongoing()) == 1
    reports = drive_quietly(steps)
    assert {report.outcome for report in reports} == {CommitOutcome.COMMITTED}
    assert not broker.ongoing()


def drive_quietly(steps: Iterable[str]) -> list[CommitReport]:
    iterator = iter(steps)
    while True:
        try:
            next(iterator)
        except StopIteration as end:
            found: list[CommitReport] = end.value
            return found


def test_outcome_from_broker_a_loss_that_no_other_run_explains_is_reported_as_one() -> None:
    broker = FakeBroker()
    gone = broker.init(f"fake/{JOB_UID}/main.0/gone")
    broker.append(gone, 0, "gone")
    broker.end(gone.identity, commit=False)
    entry = entry_of(gone)
    decided = record(1, entries=(entry,))
    store = FakeStore(records={1: decided})
    action = Commit(
        checkpoint_id=1, committables=(entry,), after_crash=True, regions=decided.regions
    )
    event = done(io_executor(store, FakeSink(broker)), action)
    assert isinstance(event, CommitReported)
    assert [report.outcome for report in event.reports] == [CommitOutcome.ABORTED]


def test_a_decision_that_moves_splits_is_committed_like_any_other() -> None:
    """Tests interrupt it after its commit; here nothing is armed."""
    store = FakeStore()
    mine = io_executor(store)
    made = record(1)
    publish = Publish(
        checkpoint_id=1,
        kind=made.kind,
        verdict=Verdict.DECIDED,
        requested_by="interval",
        reason="",
        regions=made.regions,
        assignment=None,
        steps=(RegionalStep.MOVE,),
    )
    done(mine, publish)
    commit = Commit(checkpoint_id=1, committables=(), after_crash=False, regions=made.regions)
    assert "mid-move" in list(mine.perform(commit))


class _Blind(FakeStore):
    """Whether others have taken over cannot be read."""

    def read(self, checkpoint_id: int) -> CheckpointRecord | None:
        raise AWAY


def test_fence_first_a_decision_counts_once_the_store_says_that_nobody_has_taken_over() -> None:
    """A store that is away for a moment is asked again, and ends no job."""
    made = record(1)
    publish = Publish(
        checkpoint_id=1,
        kind=made.kind,
        verdict=Verdict.DECIDED,
        requested_by="interval",
        reason="",
        regions=made.regions,
        assignment=None,
        steps=(),
    )
    answer = done(io_executor(_Blind()), publish)
    assert answer == Published(checkpoint_id=1, outcome=PublishOutcome.UNKNOWN)


def test_positions_are_not_reported_while_the_store_is_away() -> None:
    """Lag tools wait for the next ones; the job continues."""
    source = FakeSource("input", {0: 10})
    told = PublishPositions(checkpoint_id=1, positions=(split(0, 0, 5),))
    done(io_executor(_Blind(), sources={"input": source}), told)
    assert source.group == {}


def test_positions_are_not_reported_by_a_run_that_was_taken_over() -> None:
    """The newer run's are further on: these would be a step back for lag tools."""
    source = FakeSource("source", {0: 9})
    store = FakeStore(records={1: aborted(1), 2: aborted(2, leader_session_id="newer")})
    told = PublishPositions(checkpoint_id=1, positions=(split(0, 0, 5),))
    done(io_executor(store, sources={"source": source}), told)
    assert source.group == {}


# --- after the commit -----------------------------------------------------------------------------


def test_a_mark_that_is_not_durable_is_asked_for_again() -> None:
    """Callbacks do not return on the strength of a mark that a crash would take away."""
    store = FakeStore(records={1: record(1)}, on_call=refuse)
    mine = io_executor(store)
    action = MarkCommitted(checkpoint_id=1, regions=record(1).regions)
    assert done(mine, action) == Marked(checkpoint_id=1, durable=False)
    store.on_call = lambda _: None
    assert done(mine, action) == Marked(checkpoint_id=1, durable=True)
    assert store.committed == {1}


def test_an_abort_that_a_sink_does_not_answer_is_left_to_the_sweep() -> None:
    """The record says that it is aborted: the job continues, and the sweep comes back to it."""
    sink = FakeSink(FakeBroker())

    class Away:
        def __init__(self) -> None:
            self.commit = sink.committer.commit
            self.await_visible = sink.committer.await_visible

        def abort(
            self, committables: Collection[StateEntry], *, timeout_s: float
        ) -> list[CommitReport]:
            raise UnreachableError("no broker answers", {}, "Start one.")

    entry = entry_of(sink.broker.init(f"fake/{JOB_UID}/main.0/a"))
    sink.committer = Away()
    action = AbortWork(checkpoint_id=1, committables=(entry,))
    assert done(io_executor(FakeStore(), sink), action) == AbortedWork(checkpoint_id=1)


def test_positions_are_reported_to_the_sources_they_are_of_and_to_all_though_one_fails() -> None:
    """Lag tools read them, nothing else: no reason to end a job."""

    class Broken(FakeSource):
        def committed(self, positions: Iterable[SplitRange]) -> None:
            raise ValueError("a client's own bug")

    sources = {
        "broken": Broken("broken", {0: 9}),
        "source": FakeSource("source", {0: 9}),
        "idle": FakeSource("idle", {0: 9}),
    }
    positions = (split(0, 0, 5, source_id="broken"), split(0, 0, 7))
    done(
        io_executor(FakeStore(), sources=sources),
        PublishPositions(checkpoint_id=1, positions=positions),
    )
    assert {name: source.group for name, source in sources.items()} == {
        "broken": {},
        "source": {0: 7},
        "idle": {},
    }


@pytest.mark.parametrize(
    ("taken_over", "retired", "is_kept"),
    [("never", True, False), ("before", False, True), ("meanwhile", True, True)],
)
def test_retire_after_commit_what_a_newer_run_may_have_begun_with_is_neither_retired_nor_forgotten(
    taken_over: str, retired: bool, is_kept: bool
) -> None:
    """Files held over epochs that it names are not this run's to sweep."""

    class Raced(FakeStore):
        def retire(self, checkpoint_ids: Collection[int]) -> None:
            super().retire(checkpoint_ids)
            if taken_over == "meanwhile":
                self.records[3] = newer

    newer = aborted(3, leader_session_id="newer")
    held = (replace(committable("held"), state_name="held"),)
    region = RegionRecord(region="main", attempt_id=0, operator_states=held)
    records = {0: record(0), 1: record(1, regions=(region,)), 2: record(2)}
    store = Raced(records={n: replace(r, leader_session_id="new") for n, r in records.items()})
    store.committed |= records.keys()
    kept = KeptStates.read(store)
    if taken_over == "before":
        store.records[3] = newer
    done(io_executor(store, kept=kept), Retire(retained=1))
    assert (1 in store.retired) is retired
    assert kept.entries() == (held if is_kept else ())


@pytest.mark.parametrize(
    ("error", "level"), [(AWAY, logging.WARNING), (ValueError("a client's own bug"), logging.ERROR)]
)
def test_what_cannot_be_retired_ends_no_job(
    error: Exception, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(FakeStore):
        def retire(self, checkpoint_ids: Collection[int]) -> None:
            raise error

    assert done(io_executor(Stuck(records={0: record(0)})), Retire(retained=1)) is None
    (told,) = [entry for entry in caplog.records if "could not be deleted" in entry.message]
    assert told.levelno == level


# --- repairing ------------------------------------------------------------------------------------


def test_a_loss_that_nobody_can_write_again_ends_with_its_ranges() -> None:
    entry = committable("lost")
    (region,) = record(1, entries=(entry,)).regions
    lost = LostCommittables(region=region, committables=(entry,))
    with pytest.raises(TransactionLostError, match=r"input-0:\[0,10\)"):
        done(io_executor(FakeStore()), Repair(checkpoint_id=1, lost=(lost,)))


def test_two_phase_repair_lost_work_is_written_again_once_though_its_record_is_not_confirmed() -> (
    None
):
    """Another copy of it would stay open, and hold back readers, until the next run."""
    written: list[StateEntry] = []

    class Rewriter:
        def repair(
            self,
            checkpoint_id: int,
            lost: LostCommittables,
            *,
            job_uid: str,
            attempt_id: int,
            timeout_s: float,
        ) -> Mapping[bytes, StateEntry]:
            written.append(committable(f"again-{len(written)}"))
            return {entry.payload: written[-1] for entry in lost.committables}

        def ranges(self, lost: LostCommittables) -> tuple[SplitRange, ...]:
            return lost.region.splits

    entry = committable("lost")
    (region,) = record(1, entries=(entry,)).regions
    action = Repair(checkpoint_id=1, lost=(LostCommittables(region=region, committables=(entry,)),))
    store = FakeStore(on_call=refuse)
    mine = io_executor(store, repairer=Rewriter())
    unknown = done(mine, action)
    assert isinstance(unknown, Repaired)
    assert unknown.outcome is PublishOutcome.UNKNOWN
    store.on_call = lambda _: None
    durable = done(mine, action)
    assert isinstance(durable, Repaired)
    assert durable.outcome is PublishOutcome.OURS
    assert durable.replaced == {entry.payload: written[0]}
    assert len(written) == 1
