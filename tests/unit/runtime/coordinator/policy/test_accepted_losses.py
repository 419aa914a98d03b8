"""Continuing after a loss that a person has accepted: exactly what was named, and nothing else."""

import dataclasses
from collections.abc import Callable
from unittest.mock import patch

import pytest

from sluice.runtime.checkpoint.lost_work import LostCommittables, digest_of
from sluice.runtime.contracts import AcceptedAs, CommitOutcome, UnsettledWork
from sluice.runtime.coordinator.committing.commit_steps import Steps, drive
from sluice.runtime.coordinator.core.events import EndJob, NoteUnsettled
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, OnLost
from sluice.runtime.coordinator.start.startup import Found
from sluice.runtime.errors import (
    DataLostError,
    FencedError,
    StorageError,
    StreamError,
    TransactionLostError,
    TransactionUnknownError,
    UnreachableError,
)
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import SplitRange
from tests.kit.coordinator.core_driver import FAST, CoreDriver, committable
from tests.kit.coordinator.lost_work import Rewriter, accept, away, half_lost, two_regions
from tests.kit.coordinator.starting_job import Job
from tests.kit.fakes import Transaction, TransactionState, entry_of


class _Died(BaseException):
    """The process is gone."""


def _at_call(name: str, happened: Callable[[], None]) -> Callable[[str], None]:
    def on_call(call: str) -> None:
        if call == name:
            happened()

    return on_call


def _transaction(job: Job, name: str) -> Transaction:
    (found,) = (t for key, t in job.broker.latest.items() if key.endswith(f"/{name}"))
    return found


def _lost(job: Job, name: str) -> str:
    found = _transaction(job, name)
    found.state = TransactionState.ABORTED
    return digest_of(entry_of(found))


def _ranges(job: Job) -> list[str]:
    return [each for work in job.store.unsettled(1) for each in work.ranges]


# --- what is put on record ------------------------------------------------------------------------


def test_two_phase_repair_a_start_puts_on_record_what_its_error_names() -> None:
    job = half_lost()
    with pytest.raises(TransactionLostError):
        job.start(plan=two_regions())
    assert job.store.unsettled(1) == tuple(
        UnsettledWork(
            digest=_lost(job, f"{region}-lost"),
            outcome=CommitOutcome.ABORTED,
            region=region,
            ranges=(ranges,),
        )
        for region, ranges in (("main", "input-0:[0,10)"), ("side", "input-1:[0,10)"))
    )


def test_two_phase_repair_a_run_puts_on_record_what_its_error_names() -> None:
    driver = CoreDriver()
    driver.outcomes[b"main.0.1"] = CommitOutcome.ABORTED
    driver.epoch(3)
    (note,) = driver.seen(NoteUnsettled)
    (work,) = note.works
    assert (work.digest, work.ranges) == (digest_of(committable("main.0.1")), ("input-0:[0,3)",))
    assert driver.log.index(note) < driver.log.index(driver.seen(EndJob)[0])


def test_two_phase_repair_a_run_s_note_is_written_where_the_command_reads_it() -> None:
    job = half_lost()
    work = UnsettledWork(
        digest="d", outcome=CommitOutcome.ABORTED, region="main", ranges=("input-0:[0,3)",)
    )
    io_executor = job.io_executor(session="old", attempt_id=0)
    assert drive(io_executor.perform(NoteUnsettled(checkpoint_id=1, works=(work,)))) is None
    assert job.store.unsettled(1) == (work,)


@pytest.mark.parametrize("when", ["before", "refused", "after"])
def test_two_phase_repair_killed_around_the_note_the_next_start_names_it_again(when: str) -> None:
    """Nothing is accepted without it, so nothing is given up unseen."""
    job = half_lost()

    def happened() -> None:
        if when == "refused":
            raise StorageError("the store refuses", {}, "Ask again.")
        raise _Died

    if when == "after":
        with pytest.raises(TransactionLostError):
            job.start(plan=two_regions())  # the error is the process's last word
    else:
        job.store.on_call = _at_call("note_unsettled", happened)
        with pytest.raises(_Died if when == "before" else TransactionLostError):
            job.start(plan=two_regions())
        assert not job.store.unsettled(1)
    job.store.on_call = lambda _: None
    with pytest.raises(TransactionLostError):
        job.start(session="third", plan=two_regions())
    assert _ranges(job) == ["input-0:[0,10)", "input-1:[0,10)"]


# --- what is accepted -----------------------------------------------------------------------------


def test_two_phase_repair_a_start_continues_after_a_loss_that_was_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = half_lost()
    with pytest.raises(TransactionLostError):
        job.start(plan=two_regions())
    accept(job.store, 1)
    caplog.clear()
    job.start(session="third", plan=two_regions())
    assert sorted(map(str, job.broker.read_committed(0))) == ["main-done", "side-open"]
    assert 1 in job.store.committed
    (message,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert "accepted loss" in message
    assert "regions=main,side ranges=input-0:[0,10) input-1:[0,10)" in message


def test_two_phase_repair_what_is_lost_after_an_acceptance_stops_the_job_again() -> None:
    job = half_lost()
    coordinators = away(job, "side-open")
    with pytest.raises(TransactionLostError):
        job.start(plan=two_regions())
    accept(job.store, 1)

    coordinators.away.clear()
    late = _lost(job, "side-open")
    with pytest.raises(TransactionLostError, match=r"regions=side ranges=input-1:\[0,10\) "):
        job.start(session="third", plan=two_regions())
    assert 1 not in job.store.committed
    assert [work.digest for work in job.store.unsettled(1)] == [late]

    accept(job.store, 1)
    job.start(session="fourth", plan=two_regions())
    assert list(map(str, job.broker.read_committed(0))) == ["main-done"]
    assert 1 in job.store.committed


def test_two_phase_repair_what_was_accepted_is_not_written_again() -> None:
    """Not even where ``repair`` could by now: a person may have written it manually."""
    job = half_lost()
    with pytest.raises(TransactionLostError):
        job.start(plan=two_regions())
    accept(job.store, 1)
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = rewriter = Rewriter(job)
    job.start(session="third", plan=two_regions())
    assert rewriter.calls == 0
    assert sorted(map(str, job.broker.read_committed(0))) == ["main-done", "side-open"]


def _sleeping_in_its_repair(job: Job) -> Steps[Found]:
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = Rewriter(job)
    sleeping = job.sequence(session="slept", plan=two_regions()).run(
        timeout_s=30.0, restore_from=None
    )
    while next(sleeping) != "after-rewrite":
        pass
    job.settings = CheckpointSettings(on_lost=OnLost.FAIL)
    job.repairer = None
    return sleeping


def _end(steps: Steps[Found]) -> None:
    for _ in steps:
        pass


@pytest.mark.parametrize("is_accepted", [False, True])
def test_two_phase_repair_a_start_that_was_sealed_over_while_it_repaired_commits_nothing(
    *, is_accepted: bool
) -> None:
    """The one after it has reported the loss, and a person writes manually what he has accepted."""
    job = half_lost()
    sleeping = _sleeping_in_its_repair(job)
    with pytest.raises(TransactionLostError):
        job.start(session="behind", plan=two_regions())
    if is_accepted:
        accept(job.store, 1)
    with pytest.raises(FencedError, match="taken over"):
        _end(sleeping)
    assert _visible(job) == ["main-done", "side-open"]
    accept(job.store, 1)
    job.start(session="third", plan=two_regions())
    assert _visible(job) == ["main-done", "side-open"]
    assert not job.broker.ongoing()


def test_two_phase_repair_a_repair_gives_way_to_a_loss_that_was_accepted_meanwhile() -> None:
    job = half_lost()
    with pytest.raises(TransactionLostError):
        job.start(plan=two_regions())
    sleeping = _sleeping_in_its_repair(job)
    accept(job.store, 1)
    _end(sleeping)
    assert _visible(job) == ["main-done", "side-open"]
    assert not job.broker.ongoing()
    assert 1 in job.store.committed


def test_two_phase_repair_a_repair_gives_way_to_a_loss_that_is_being_accepted() -> None:
    """The command has died, or takes its time: what it has claimed is reported once more."""
    job = half_lost()
    with pytest.raises(TransactionLostError):
        job.start(plan=two_regions())
    sleeping = _sleeping_in_its_repair(job)
    accept(job.store, 1)
    said = job.store.acceptances.pop(1)
    with pytest.raises(TransactionLostError, match=r"ranges=input-0:\[0,10\) input-1:\[0,10\) "):
        _end(sleeping)
    assert not job.broker.ongoing()
    assert {work.digest for work in job.store.unsettled(1)} == set(said)
    accept(job.store, 1)
    job.start(session="third", plan=two_regions())
    assert _visible(job) == ["main-done", "side-open"]


def test_two_phase_repair_what_was_written_again_is_not_accepted() -> None:
    """A region that can be repaired is repaired, and only the other one's loss is on record."""
    job = half_lost()
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = Rewriter(job)
    main, side = two_regions().regions
    regions = (main, dataclasses.replace(side, deterministic=False))
    plan = dataclasses.replace(two_regions(), regions=regions)
    with pytest.raises(TransactionLostError):
        job.start(plan=plan)
    assert _ranges(job) == ["input-1:[0,10)"]
    accept(job.store, 1)
    job.start(session="third", plan=plan)
    visible = sorted(map(str, job.broker.read_committed(0)))
    assert visible == ["again-1", "main-done", "side-open"]


class _Unable:
    """It cannot write anything again: its ranges have gone from the source, say."""

    def __init__(self, error: StreamError) -> None:
        self.calls = 0
        self._error = error

    def repair(self, checkpoint_id: int, lost: object, **limits: object) -> dict[bytes, StateEntry]:
        """See `sluice.runtime.coordinator.committing.repairs.Repairer`."""
        self.calls += 1
        raise self._error

    def ranges(self, lost: LostCommittables) -> tuple[SplitRange, ...]:
        return ()


def test_two_phase_repair_what_could_not_be_written_again_can_be_accepted() -> None:
    """Else no start got past it. The rest is committed first, and each repair is tried once."""
    job = half_lost()
    coordinators = away(job, "side-open")
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = unable = _Unable(DataLostError("retention has taken the range", {}, "Look."))
    with pytest.raises(DataLostError):
        job.start(plan=two_regions(), at=coordinators.back_at_retry(3))
    assert unable.calls == 2
    assert sorted(map(str, job.broker.read_committed(0))) == ["main-done", "side-open"]
    assert _ranges(job) == ["input-0:[0,10)", "input-1:[0,10)"]
    accept(job.store, 1)
    job.start(session="third", plan=two_regions())
    assert unable.calls == 2
    assert 1 in job.store.committed


def test_fence_first_a_start_that_is_fenced_in_a_repair_ends_at_once() -> None:
    job = half_lost()
    away(job, "side-open")
    job.settings = CheckpointSettings(on_lost=OnLost.REPAIR)
    job.repairer = _Unable(FencedError("another coordinator has taken over", {}, "Stop."))
    began_s = job.clock()
    with pytest.raises(FencedError):
        job.start(plan=two_regions())
    assert job.clock() == began_s
    assert not job.store.unsettled(1)


def test_two_phase_repair_a_loss_that_was_accepted_of_another_checkpoint_stops_the_job() -> None:
    job = half_lost()
    with pytest.raises(TransactionLostError, match="accept-loss"):
        job.start(plan=two_regions())
    accept(job.store, 1)
    job.store.acceptances = {0: job.store.acceptances[1]}
    with pytest.raises(TransactionLostError):
        job.start(session="third", plan=two_regions())


def test_two_phase_repair_what_was_accepted_is_not_committed_late() -> None:
    """At transaction.version 0 a late AddPartitions may open its identity once more."""
    job = half_lost()
    with pytest.raises(TransactionLostError):
        job.start(plan=two_regions())
    accept(job.store, 1)
    _transaction(job, "main-lost").state = TransactionState.ONGOING
    job.start(session="third", plan=two_regions())
    assert sorted(map(str, job.broker.read_committed(0))) == ["main-done", "side-open"]


# --- of outcomes that no broker knows -------------------------------------------------------------


def _forgotten() -> Job:
    """The job was away for longer than its brokers keep ids; one transaction is open still."""
    job = half_lost()
    for name in ("main-lost", "main-done", "side-lost"):
        found = _transaction(job, name)
        found.state = TransactionState.COMMITTED
        del job.broker.transactions[found.identity]
    return job


def _visible(job: Job) -> list[str]:
    return sorted(map(str, job.broker.read_committed(0)))


def test_outcome_from_broker_a_start_puts_on_record_what_nobody_can_tell() -> None:
    """With the ranges, by which a person may look for it; what can be reported is committed."""
    job = _forgotten()
    with pytest.raises(TransactionUnknownError, match=r"ranges=input-0:\[0,10\) input-1:\[0,10\) "):
        job.start(plan=two_regions())
    outcomes = [(work.region, work.outcome) for work in job.store.unsettled(1)]
    assert outcomes == [
        ("main", CommitOutcome.UNKNOWN),
        ("main", CommitOutcome.UNKNOWN),
        ("side", CommitOutcome.UNKNOWN),
    ]
    assert _visible(job) == ["main-done", "main-lost", "side-lost", "side-open"]
    assert 1 not in job.store.committed


def test_outcome_from_broker_a_run_puts_on_record_what_nobody_can_tell() -> None:
    driver = CoreDriver(dataclasses.replace(FAST, unknown_timeout_s=5.0))
    driver.outcomes[b"main.0.1"] = CommitOutcome.UNKNOWN
    driver.epoch(3)
    driver.tick(6.0)
    (end,) = driver.seen(EndJob)
    assert "ranges=input-0:[0,3)" in str(end.error)
    (note,) = driver.seen(NoteUnsettled)
    assert [work.outcome for work in note.works] == [CommitOutcome.UNKNOWN]


@pytest.mark.parametrize("word", AcceptedAs)
def test_outcome_from_broker_a_start_takes_a_person_s_word_for_what_nobody_can_tell(
    word: AcceptedAs, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it is, it is said once more, and nothing is written, committed or aborted by it."""
    job = _forgotten()
    with pytest.raises(TransactionUnknownError):
        job.start(plan=two_regions())
    accept(job.store, 1, unknown_as=word)
    caplog.clear()
    job.start(session="third", plan=two_regions())
    assert 1 in job.store.committed
    assert _visible(job) == ["main-done", "main-lost", "side-lost", "side-open"]
    said = {
        AcceptedAs.LOST: "accepted loss",
        AcceptedAs.COMMITTED: "work was accepted as committed",
    }
    (message,) = [r.getMessage() for r in caplog.records if said[word] in r.getMessage()]
    assert "regions=main,side ranges=input-0:[0,10) input-1:[0,10)" in message


def test_outcome_from_broker_what_is_certainly_lost_is_not_taken_for_committed() -> None:
    job = _forgotten()
    with pytest.raises(TransactionUnknownError):
        job.start(plan=two_regions())
    accept(job.store, 1, unknown_as=AcceptedAs.COMMITTED)
    found = _transaction(job, "side-lost")
    job.broker.transactions[found.identity] = found
    found.state = TransactionState.ABORTED
    with pytest.raises(TransactionLostError, match=r"regions=side ranges=input-1:\[0,10\) "):
        job.start(session="third", plan=two_regions())
    assert [work.digest for work in job.store.unsettled(1)] == [digest_of(entry_of(found))]


def test_outcome_from_broker_what_can_be_reported_after_all_is_committed() -> None:
    """A word for what it is not needed for changes nothing."""
    job = _forgotten()
    with pytest.raises(TransactionUnknownError):
        job.start(plan=two_regions())
    accept(job.store, 1, unknown_as=AcceptedAs.COMMITTED)
    found = _transaction(job, "side-lost")
    job.broker.transactions[found.identity] = found
    found.state = TransactionState.ONGOING
    job.start(session="third", plan=two_regions())
    assert found.state is TransactionState.COMMITTED


def test_outcome_from_broker_what_was_accepted_as_lost_may_be_forgotten_since() -> None:
    """The job came back only when its brokers did not know the id any more."""
    job = half_lost()
    with pytest.raises(TransactionLostError):
        job.start(plan=two_regions())
    accept(job.store, 1)
    for name in ("main-lost", "side-lost"):
        del job.broker.transactions[_transaction(job, name).identity]
    job.start(session="third", plan=two_regions())
    assert _visible(job) == ["main-done", "side-open"]


def test_two_phase_repair_what_is_lost_and_what_nobody_can_tell_are_put_on_record_together() -> (
    None
):
    job = half_lost()
    del job.broker.transactions[_transaction(job, "main-done").identity]
    with pytest.raises(TransactionLostError):
        job.start(plan=two_regions())
    outcomes = sorted(work.outcome.value for work in job.store.unsettled(1))
    assert outcomes == ["aborted", "aborted", "unknown"]
    accept(job.store, 1, unknown_as=AcceptedAs.COMMITTED)
    job.start(session="third", plan=two_regions())
    assert _visible(job) == ["main-done", "side-open"]


def test_two_phase_repair_a_repair_that_gave_way_and_could_not_be_discarded_is_swept() -> None:
    job = half_lost()
    with pytest.raises(TransactionLostError):
        job.start(plan=two_regions())
    sleeping = _sleeping_in_its_repair(job)
    accept(job.store, 1)
    away = UnreachableError("no broker answers", {}, "Start one.")
    with patch.object(job.sink.committer, "abort", side_effect=away):
        _end(sleeping)
    assert job.broker.ongoing()
    job.start(session="third", plan=two_regions())
    assert not job.broker.ongoing()
    assert _visible(job) == ["main-done", "side-open"]
