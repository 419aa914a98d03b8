"""After a decision: commits are retried until all succeed, and each step waits for its answer."""

import dataclasses
from dataclasses import replace

import pytest

from sluice.runtime.contracts import CommitOutcome, PublishOutcome
from sluice.runtime.coordinator.core.events import (
    AbortWork,
    Action,
    Commit,
    EndJob,
    FailBatches,
    MarkCommitted,
    Marked,
    Publish,
    Published,
    PublishPositions,
    Repair,
    Repaired,
    ReturnBatches,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import OnLost, RegionPlan
from sluice.runtime.errors import (
    FencedError,
    TransactionLostError,
    TransactionUnknownError,
    UnreachableError,
)
from sluice.runtime.model.checkpoint_record import Verdict
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver, committable


def test_a_checkpoint_takes_its_steps_in_order() -> None:
    """Decision, commit, mark, return, group offsets: never in another order (design section 4)."""
    driver = CoreDriver(FAST)
    driver.epoch(3)
    order = [
        type(action)
        for action in driver.log
        if isinstance(action, Publish | Commit | MarkCommitted | ReturnBatches | PublishPositions)
    ]
    assert order == [Publish, Commit, MarkCommitted, ReturnBatches, PublishPositions]


def test_no_step_begins_before_the_one_before_is_answered() -> None:
    driver = CoreDriver(FAST)
    driver.auto = False
    driver.epoch(3)
    for expected in (Publish, Commit, MarkCommitted):
        (step,) = driver.held
        assert isinstance(step, expected)
        assert not driver.seen(ReturnBatches)
        driver.held.clear()
        driver.answer(step)
    assert driver.seen(ReturnBatches)


def test_a_barrier_is_given_again_until_it_is_acknowledged() -> None:
    driver = CoreDriver(FAST)
    driver.tick()
    barrier = driver.poll(3)
    assert driver.poll(9) == barrier
    driver.ack(barrier)
    assert driver.poll(9) is None


@pytest.mark.parametrize("outcome", [CommitOutcome.PENDING, CommitOutcome.UNKNOWN])
def test_commit_is_tried_until_everything_is_committed(outcome: CommitOutcome) -> None:
    """Step 5: the mark waits; later tries ask for the verdict first (`outcome-from-broker`)."""
    driver = CoreDriver(FAST)
    driver.outcomes[b"main.0.1"] = outcome
    driver.epoch(3)
    driver.tick(0.2)
    driver.tick(0.5)
    assert not driver.seen(MarkCommitted)
    del driver.outcomes[b"main.0.1"]
    driver.tick(0.5)
    assert driver.seen(MarkCommitted)
    assert [commit.after_crash for commit in driver.seen(Commit)] == [False, True, True, True]


def test_only_what_is_not_committed_is_tried_again() -> None:
    """A committed transaction is not asked for twice."""
    driver = CoreDriver(FAST, regions=TWO)
    driver.outcomes[b"side.0.1"] = CommitOutcome.PENDING
    driver.tick()
    driver.ack(driver.poll(3))
    driver.ack(driver.poll(3, region="side"), region="side")
    driver.tick(0.2)
    assert driver.seen(Commit)[1].committables == (committable("side.0.1"),)


def test_a_lost_transaction_stops_the_job_with_its_ranges() -> None:
    """Rule `two-phase-repair`: a lost transaction is never a log line."""
    driver = CoreDriver(FAST)
    driver.outcomes[b"main.0.1"] = CommitOutcome.ABORTED
    driver.epoch(3)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, TransactionLostError)
    assert "input-0:[0,3)" in str(end.error)
    assert not driver.seen(MarkCommitted)
    driver.tick(3600.0)
    assert len(driver.seen(Commit)) == 1


def test_an_unknown_transaction_stops_the_job_after_a_while() -> None:
    """Rule `outcome-from-broker`: unknown is asked again, and then a human is called; never
    repaired."""
    driver = CoreDriver(dataclasses.replace(FAST, unknown_timeout_s=5.0, on_lost=OnLost.REPAIR))
    driver.outcomes[b"main.0.1"] = CommitOutcome.UNKNOWN
    driver.epoch(3)
    driver.tick(4.0)
    assert not driver.seen(EndJob)
    driver.tick(2.0)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, TransactionUnknownError)
    assert not driver.seen(Repair)


def test_a_checkpoint_that_stays_pending_ends_the_run_but_stays_decided() -> None:
    """Nothing is lost: the next start commits it. The error says what it waited for."""
    driver = CoreDriver(dataclasses.replace(FAST, settle_timeout_s=30.0))
    driver.outcomes[b"main.0.1"] = CommitOutcome.PENDING
    driver.epoch(3)
    for _ in range(40):
        driver.tick(1.0)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, UnreachableError)
    assert "next start" in str(end.error)
    assert "details=main.0.1" in str(end.error)


CHAINED = (RegionPlan(name="main", source_ids=("source",), chained=True),)
REPAIRING = dataclasses.replace(FAST, on_lost=OnLost.REPAIR)


def test_repair_commits_the_replacement_only_once_it_is_on_record() -> None:
    """Rule `two-phase-repair`: two phases; the replacement is committed like any other."""
    driver = CoreDriver(REPAIRING, regions=CHAINED)
    driver.outcomes[b"main.0.1"] = CommitOutcome.ABORTED
    driver.epoch(3)
    (repair,) = driver.seen(Repair)
    (lost,) = repair.lost
    assert lost.committables == (committable("main.0.1"),)
    assert len(driver.seen(Commit)) == 1
    driver.tell(Repaired(checkpoint_id=1, outcome=PublishOutcome.UNKNOWN, replaced={}))
    driver.tick(1.0)
    assert len(driver.seen(Repair)) == 2
    driver.tell(
        Repaired(
            checkpoint_id=1,
            outcome=PublishOutcome.OURS,
            replaced={b"main.0.1": committable("replacement")},
        )
    )
    assert driver.seen(Commit)[1].committables == (committable("replacement"),)
    assert driver.core.last_committed == 1


def test_two_phase_repair_of_what_is_decided_only_a_batch_under_repair_is_written_again() -> None:
    """Else late attempts of its tasks are refused, and so are those of older batches meanwhile."""
    driver = CoreDriver(REPAIRING, regions=CHAINED)
    older = driver.epoch_batch(3)
    driver.tick(1.0)
    driver.auto = False
    driver.outcomes[b"main.0.2"] = CommitOutcome.ABORTED
    lost = driver.ack(driver.poll(6))
    driver.answer(driver.held.pop(0))
    with pytest.raises(FencedError, match="decided already"):
        driver.core.require_wanted(lost)
    driver.answer(driver.held.pop(0))
    assert driver.seen(Repair)
    driver.core.require_wanted(lost)
    with pytest.raises(FencedError, match="decided already"):
        driver.core.require_wanted(older)


def test_a_repair_by_somebody_else_means_that_we_are_fenced() -> None:
    driver = CoreDriver(REPAIRING, regions=CHAINED)
    driver.outcomes[b"main.0.1"] = CommitOutcome.ABORTED
    driver.epoch(3)
    driver.tell(Repaired(checkpoint_id=1, outcome=PublishOutcome.TAKEN, replaced={}))
    assert isinstance(driver.seen(EndJob)[0].error, FencedError)
    driver.tick(60.0)
    assert len(driver.seen(Commit)) == 1


def test_repair_aborts_later_work_of_the_region_first() -> None:
    """Rule `two-phase-repair`: or its records would come before the repaired ones."""
    driver = CoreDriver(
        dataclasses.replace(REPAIRING, max_concurrent=2),
        regions=(*CHAINED, RegionPlan(name="slow", source_ids=("source",), chained=True)),
    )
    driver.outcomes[b"main.0.1"] = CommitOutcome.ABORTED
    driver.auto = False
    driver.tick()
    driver.ack(driver.poll(3))
    driver.poll(0, region="slow")
    driver.tick(1.0)
    later = driver.poll(6)
    assert later.checkpoint_id == 2
    driver.ack(later)
    driver.auto = True
    driver.answer(driver.held[0])
    assert driver.seen(Repair)
    (failed,) = driver.seen(FailBatches)
    assert [batch.batch_id for batch in failed.batches] == [2]


def test_repair_is_refused_where_it_is_not_exact() -> None:
    """Rule `two-phase-repair`: a region that is not chained cannot be recomputed alone."""
    driver = CoreDriver(REPAIRING)
    driver.outcomes[b"main.0.1"] = CommitOutcome.ABORTED
    driver.epoch(3)
    assert not driver.seen(Repair)
    assert isinstance(driver.seen(EndJob)[0].error, TransactionLostError)


def test_a_mark_that_is_not_durable_is_tried_again() -> None:
    """Step 6: callbacks return only after the mark."""
    driver = CoreDriver(FAST)
    driver.auto = False
    driver.epoch(3)
    for _ in range(2):
        driver.answer(driver.held.pop(0))
    driver.tell(Marked(checkpoint_id=1, durable=False))
    assert not driver.seen(ReturnBatches)
    driver.tick(1.0)
    assert len(driver.seen(MarkCommitted)) == 2


HUNG = replace(FAST, settle_timeout_s=30.0, call_timeout_s=2.0)


def _hanging(step: type[Action]) -> CoreDriver:
    """A run whose step of this kind is never answered."""
    driver = CoreDriver(HUNG)
    driver.auto = False
    driver.epoch(3)
    while not isinstance(driver.held[-1], step):
        driver.answer(driver.held.pop())
    return driver


def _watch(driver: CoreDriver, seconds: float) -> None:
    for _ in range(round(seconds)):
        driver.tick(1.0)


@pytest.mark.parametrize("step", [Publish, Commit, MarkCommitted])
def test_a_step_that_never_returns_ends_the_job(step: type[Action]) -> None:
    """Nothing else would: without an answer nothing is late, and nothing is tried again."""
    driver = _hanging(step)
    _watch(driver, HUNG.hung_after_s - 1.0)
    assert not driver.seen(EndJob)
    _watch(driver, 1.0)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, UnreachableError)
    assert "checkpoint_id=1" in str(end.error)


def test_publish_whole_the_end_of_the_job_is_no_answer_to_a_step_that_hangs() -> None:
    """It may have decided: nothing of it is aborted, and when it returns it counts as ever."""
    driver = _hanging(Publish)
    _watch(driver, 2 * HUNG.hung_after_s)
    assert driver.seen(EndJob)
    assert not driver.seen(AbortWork)
    assert [each.verdict for each in driver.seen(Publish)] == [Verdict.DECIDED]
    driver.auto = True
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.OURS))
    (commit,) = driver.seen(Commit)
    assert commit.committables == (committable("main.0.1"),)
    assert driver.core.last_committed == 1


def test_no_step_could_return_while_the_whole_driver_was_stopped() -> None:
    driver = _hanging(Publish)
    driver.tick(10 * HUNG.hung_after_s)
    assert not driver.seen(EndJob)
    driver.auto = True
    driver.answer(driver.held.pop())
    assert driver.core.last_committed == 1


def test_two_phase_repair_a_repair_takes_as_long_as_it_takes() -> None:
    """It writes again what all tasks of a region had written, in one process."""
    driver = CoreDriver(replace(HUNG, on_lost=OnLost.REPAIR), regions=CHAINED)
    driver.outcomes[b"main.0.1"] = CommitOutcome.ABORTED
    driver.epoch(3)
    assert driver.seen(Repair)
    _watch(driver, 3 * HUNG.hung_after_s)
    assert not driver.seen(EndJob)
    replaced = {b"main.0.1": committable("replacement")}
    driver.tell(Repaired(checkpoint_id=1, outcome=PublishOutcome.OURS, replaced=replaced))
    assert driver.core.last_committed == 1


def test_fence_first_a_takeover_that_is_found_while_the_job_stops_ends_it_no_second_time() -> None:
    driver = CoreDriver(FAST)
    driver.auto = False
    batch = driver.epoch_batch(3)
    (publish,) = driver.held
    assert isinstance(publish, Publish)
    driver.stop()
    assert [end.error for end in driver.seen(EndJob)] == [None]
    driver.tell(Published(checkpoint_id=publish.checkpoint_id, outcome=PublishOutcome.TAKEN))
    failed = driver.seen(FailBatches)[-1]
    assert failed.batches == (batch,)
    assert "taken over" in str(failed.error)
    assert len(driver.seen(EndJob)) == 1
    assert driver.core.is_fenced
