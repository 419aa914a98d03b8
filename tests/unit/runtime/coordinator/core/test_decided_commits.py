"""After a decision: commits are tried until all is committed; what is lost is repaired or reported."""

import dataclasses

import pytest

from sluice.runtime.contracts import CommitOutcome, PublishOutcome
from sluice.runtime.coordinator.core.events import (
    Commit,
    EndJob,
    FailBatches,
    MarkCommitted,
    Marked,
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
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver, committable


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
    """Only a newer run repairs what this one decided."""
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
    assert later is not None
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
