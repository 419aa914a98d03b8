"""The coordinator's decisions, one promise at a time, on a manual clock."""

import dataclasses
from dataclasses import replace

import pytest

from runtime.checkpoint.messages import (
    AbortWork,
    Acknowledged,
    Commit,
    EndJob,
    FailBatches,
    MarkCommitted,
    Marked,
    Publish,
    Published,
    RegionFailed,
    RegionRestarted,
    Repair,
    Repaired,
    RestartAsked,
    ReturnBatches,
    TellPositions,
)
from runtime.checkpoint.pacing import Pace
from runtime.checkpoint.plan import OnLost, RegionPlan
from runtime.checkpoint.regions import RegionState
from runtime.contracts import CommitOutcome, PublishOutcome
from runtime.errors import (
    FencedError,
    TransactionLostError,
    TransactionUnknownError,
    UnreachableError,
)
from runtime.model import BatchKey, CheckpointKind, RegionRecord, StateSnapshot, Verdict
from tests.core_driver import FAST, TWO, CoreDriver, committable

UNKNOWN = PublishOutcome.UNKNOWN


# --- the order of the steps -----------------------------------------------------------------------


def test_a_checkpoint_takes_its_steps_in_order() -> None:
    """Decision, commit, mark, return, group offsets: never in another order (design section 4)."""
    driver = CoreDriver(FAST)
    driver.epoch(3)
    order = [
        type(action)
        for action in driver.log
        if isinstance(action, Publish | Commit | MarkCommitted | ReturnBatches | TellPositions)
    ]
    assert order == [Publish, Commit, MarkCommitted, ReturnBatches, TellPositions]


def test_no_step_begins_before_the_one_before_is_answered() -> None:
    """Each remote step is asked for only when its predecessor is certain."""
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


def test_the_decision_waits_for_every_region() -> None:
    """One region's acknowledgement decides nothing."""
    driver = CoreDriver(FAST, regions=TWO)
    driver.tick()
    driver.ack(driver.poll(3))
    assert not driver.seen(Publish)
    driver.ack(driver.poll(3, region="side"), region="side")
    (published,) = driver.seen(Publish)
    assert [record.region for record in published.regions] == ["main", "side"]


def test_a_region_without_records_acknowledges_same_offsets() -> None:
    """Rule 26: at most one batch per region and checkpoint, and none where nothing is read."""
    driver = CoreDriver(FAST, regions=TWO)
    driver.tick()
    driver.ack(driver.poll(3))
    assert driver.poll(0, region="side") is None
    (published,) = driver.seen(Publish)
    assert published.regions[1].batch_id is None
    assert published.regions[1].committables == ()


STATEFUL = RegionPlan(name="main", source_ids=("source",), stateful=True)


def test_a_quiet_state_has_a_batch_where_it_has_something_to_give_and_no_other() -> None:
    """As Spark runs one without records: each of them would write a whole result once more."""
    driver = CoreDriver(FAST, regions=[STATEFUL])
    driver.tick()
    assert driver.poll(0) is None, "there is no state yet"
    driver.ack(driver.poll(3), state_is_due=True)
    driver.tick(1.0)
    barrier = driver.poll(3)
    assert barrier is not None
    assert all(found.is_empty for found in barrier.splits)
    driver.ack(barrier)
    driver.tick(1.0)
    assert driver.poll(3) is None
    assert driver.poll(4) is not None


def test_a_state_is_asked_once_in_each_life() -> None:
    """What it had to give when the last life ended is not on record."""
    driver = CoreDriver(FAST, regions=[STATEFUL])
    driver.tick()
    first = BatchKey(region="main", generation=0, batch_id=1)
    kept = driver.acknowledgement(first, driver.poll(3))
    state = StateSnapshot(
        provider="RocksDB", checkpoint_format_version=2, state_version=2, state_partitions=1
    )
    driver.tell(Acknowledged(ack=replace(kept, region=replace(kept.region, state=state))))
    generation = driver.restart()
    driver.tick(1.0)
    barrier = driver.poll(3, generation=generation)
    assert barrier is not None
    second = BatchKey(region="main", generation=generation, batch_id=2)
    driver.tell(Acknowledged(ack=driver.acknowledgement(second, barrier)))
    driver.tick(1.0)
    assert driver.poll(3, generation=generation) is None


def test_a_region_that_has_become_stateless_has_no_batch_without_records() -> None:
    """And its batches are told from those of older lives by their generation, not by their ids."""
    state = StateSnapshot(
        provider="RocksDB", checkpoint_format_version=2, state_version=9, state_partitions=0
    )
    record = RegionRecord(region="main", generation=0, batch_id=8, state=state)
    for plan, goes_on in ((STATEFUL, True), (replace(STATEFUL, stateful=False), False)):
        region = RegionState(plan=plan, generation=5, record=record, pace=Pace(limit=1))
        assert region.wants_a_batch(0.0, is_last=False) is goes_on
        assert region.is_decided(BatchKey(region="main", generation=5, batch_id=1)) is goes_on


def test_a_barrier_is_given_again_until_it_is_acknowledged() -> None:
    """Contract of `poll_barrier`."""
    driver = CoreDriver(FAST)
    driver.tick()
    barrier = driver.poll(3)
    assert driver.poll(9) == barrier
    driver.ack(barrier)
    assert driver.poll(9) is None


def test_the_next_barrier_goes_on_where_the_last_ended() -> None:
    """No offset is cut twice and none is skipped."""
    driver = CoreDriver(FAST, partitions=2)
    driver.epoch(3)
    driver.tick(1.0)
    barrier = driver.poll(8)
    assert barrier is not None
    assert [(s.start_offset, s.end_offset) for s in barrier.splits] == [(3, 8), (3, 8)]


# --- places ---------------------------------------------------------------------------------------


def test_a_place_is_published_only_behind_a_place_of_our_own() -> None:
    """Rule 6: places are dense; n+1 waits for n, whichever is acknowledged first."""
    driver = CoreDriver(dataclasses.replace(FAST, max_concurrent=2), regions=TWO)
    driver.auto = False
    driver.tick()
    driver.ack(driver.poll(3))
    assert driver.poll(0, region="side") is None  # same offsets: checkpoint 1 is decided now
    (first,) = driver.held
    driver.tick(1.0)
    driver.ack(driver.poll(5, region="side"), region="side")
    assert driver.poll(3) is None  # and checkpoint 2 has all that it waits for
    assert driver.poll(3) is None
    assert driver.held == [first]
    driver.held.clear()
    driver.answer(first)
    assert [(type(step), step.checkpoint_id) for step in driver.held] == [(Commit, 1), (Publish, 2)]


def test_a_taken_place_stops_everything() -> None:
    """Rule 6: the stale coordinator finds its place taken; it commits, aborts, starts nothing."""
    driver = CoreDriver(FAST)
    driver.auto = False
    batch = driver.epoch_batch(3)
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.TAKEN))
    (end,) = driver.seen(EndJob)
    (failed,) = driver.seen(FailBatches)
    assert isinstance(end.error, FencedError)
    assert failed.batches == (batch,)
    driver.tick(3600.0)
    assert not driver.seen(Commit)
    assert not driver.seen(AbortWork)
    with pytest.raises(FencedError):
        driver.poll(9)
    with pytest.raises(FencedError):
        driver.trigger(CheckpointKind.CHECKPOINT, "user")
    with pytest.raises(FencedError):
        driver.restart()


def test_an_unanswered_publish_is_repeated_and_never_aborted() -> None:
    """Rule 7: the record may be there; neither time nor a failure aborts a DECIDING checkpoint."""
    driver = CoreDriver(FAST)
    driver.auto = False
    driver.epoch(3)
    for _ in range(5):
        driver.held.clear()
        driver.tell(Published(checkpoint_id=1, outcome=UNKNOWN))
        driver.tell(RegionFailed(region="main", generation=0, error=RuntimeError("stopped")))
        driver.tick(20.0)
        (again,) = driver.held
        assert again == driver.seen(Publish)[0]
    assert not driver.seen(AbortWork)
    driver.auto = True
    driver.answer(driver.held[-1])
    assert driver.core.last_committed == 1


def grown_old(*, within_s: float = 5.0) -> CoreDriver:
    """A decision of two regions that was not answered until it was too old; its abort is tried."""
    driver = CoreDriver(FAST, regions=TWO)
    driver.auto = False
    driver.tick()
    for name in ("main", "side"):
        barrier = driver.poll(3, region=name)
        batch = BatchKey(region=name, generation=0, batch_id=1)
        ack = driver.acknowledgement(batch, barrier)
        decide_by_s = driver.clock() + within_s
        driver.tell(Acknowledged(ack=dataclasses.replace(ack, decide_by_s=decide_by_s)))
    driver.tell(Published(checkpoint_id=1, outcome=UNKNOWN))
    driver.tick(within_s - 1.0)
    assert [each.verdict for each in driver.seen(Publish)] == [Verdict.DECIDED] * 2
    driver.tell(Published(checkpoint_id=1, outcome=UNKNOWN))
    driver.tick(1.0)
    assert [each.verdict for each in driver.seen(Publish)][2:] == [Verdict.ABORTED]
    assert not driver.seen(AbortWork)
    return driver


def test_rule_23_what_grew_old_while_deciding_is_withdrawn() -> None:
    """The store was away: its transactions may be aborted when it is back. Nothing is aborted, and
    nobody told, before it is certain that it was not decided."""
    driver = grown_old()
    assert not driver.seen(FailBatches)
    driver.tell(Published(checkpoint_id=1, outcome=UNKNOWN))
    driver.tick(1.0)
    assert driver.core.is_live("main", 0)
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.OURS))
    (aborted,) = driver.seen(AbortWork)
    assert set(aborted.committables) == {committable("main.0.1"), committable("side.0.1")}
    failed = {batch.region for each in driver.seen(FailBatches) for batch in each.batches}
    assert failed == {"main", "side"}
    assert not driver.core.is_live("main", 0)
    assert not driver.seen(Commit)


def test_rule_23_the_regions_of_a_withdrawn_decision_read_again() -> None:
    """Once its abort is done; the next checkpoint is decided."""
    driver = grown_old()
    driver.auto = True
    driver.held.clear()
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.OURS))
    for name in ("main", "side"):
        driver.tell(RestartAsked(region=name))
    assert {each.region for each in driver.seen(RegionRestarted)} == {"main", "side"}
    generation = driver.seen(RegionRestarted)[0].generation
    driver.tick(1.0)
    for name in ("main", "side"):
        barrier = driver.poll(3, region=name, generation=generation)
        driver.ack(barrier, region=name, generation=generation)
    assert driver.core.last_committed == driver.seen(Commit)[-1].checkpoint_id > 1


def test_rule_23_a_decision_that_landed_before_its_withdrawal_stands() -> None:
    """An answer that was late: from here on there is only forward."""
    driver = grown_old()
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.DECIDED))
    (commit,) = driver.seen(Commit)
    assert set(commit.committables) == {committable("main.0.1"), committable("side.0.1")}
    assert not driver.seen(AbortWork)
    assert driver.core.is_live("main", 0)


def test_rule_6_a_withdrawal_in_a_place_that_is_taken_ends_the_run() -> None:
    """Another session stands there; nothing of ours may be aborted as if nobody had decided it."""
    driver = grown_old()
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.TAKEN))
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, FencedError)
    assert not driver.seen(AbortWork)


def test_pauses_between_tries_grow_up_to_a_bound() -> None:
    """A broken store is not hammered."""
    driver = CoreDriver(FAST)
    driver.auto = False
    driver.epoch(3)
    pauses = []
    for _ in range(5):
        driver.tell(Published(checkpoint_id=1, outcome=UNKNOWN))
        deadline = driver.core.deadline_s()
        assert deadline is not None
        pauses.append(round(deadline - driver.clock(), 6))
        driver.tick(1.0)
    assert pauses == [0.1, 0.2, 0.4, 0.4, 0.4]


def test_nothing_is_aborted_before_its_abort_is_on_record() -> None:
    """Section 4: the ABORTED record first, then the transactions."""
    driver = CoreDriver(FAST, regions=TWO)
    driver.auto = False
    driver.tick()
    batch = driver.ack(driver.poll(3))
    driver.poll(3, region="side")
    driver.tick(10.1)
    assert not driver.seen(AbortWork)
    driver.answer(driver.held[0])
    (aborted,) = driver.seen(AbortWork)
    assert aborted.committables == (committable(f"main.0.{batch.batch_id}"),)


# --- committing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [CommitOutcome.PENDING, CommitOutcome.UNKNOWN])
def test_commit_is_tried_until_everything_is_committed(outcome: CommitOutcome) -> None:
    """Step 5: the mark waits; later tries ask for the verdict first (rule 5)."""
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
    """Rule 11: a lost transaction is never a log line."""
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
    """Rule 5: unknown is asked again, and then a human is called; never repaired."""
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


def test_an_abort_that_the_store_does_not_answer_ends_the_run_in_time() -> None:
    """Regions wait for its record to begin again; the limit counts from the first lost answer."""
    driver = CoreDriver(dataclasses.replace(FAST, settle_timeout_s=30.0), regions=TWO)
    driver.auto = False
    driver.tick()
    driver.poll(3)
    driver.tell(RegionFailed(region="main", generation=0, error=RuntimeError("failed")))
    driver.tick(40.0)
    (publish,) = driver.held
    assert isinstance(publish, Publish)
    unanswered = Published(checkpoint_id=publish.checkpoint_id, outcome=UNKNOWN)
    driver.tell(unanswered)
    driver.tick(29.0)
    driver.tell(unanswered)
    assert not driver.seen(EndJob)
    driver.tick(2.0)
    driver.tell(unanswered)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, UnreachableError)
    assert "state=aborting" in str(end.error)


CHAINED = (RegionPlan(name="main", source_ids=("source",), chained=True),)
REPAIRING = dataclasses.replace(FAST, on_lost=OnLost.REPAIR)


def test_repair_commits_the_replacement_only_once_it_is_on_record() -> None:
    """Rule 11: two phases; the replacement is committed like any other."""
    driver = CoreDriver(REPAIRING, regions=CHAINED)
    driver.outcomes[b"main.0.1"] = CommitOutcome.ABORTED
    driver.epoch(3)
    (repair,) = driver.seen(Repair)
    (lost,) = repair.lost
    assert lost.committables == (committable("main.0.1"),)
    assert len(driver.seen(Commit)) == 1
    driver.tell(Repaired(checkpoint_id=1, outcome=UNKNOWN, replaced={}))
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
    """Rule 11: or its records would come before the repaired ones."""
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
    """Rule 11: a region that is not chained cannot be recomputed alone."""
    driver = CoreDriver(REPAIRING)
    driver.outcomes[b"main.0.1"] = CommitOutcome.ABORTED
    driver.epoch(3)
    assert not driver.seen(Repair)
    assert isinstance(driver.seen(EndJob)[0].error, TransactionLostError)


def test_a_mark_that_is_not_durable_is_tried_again() -> None:
    """Step 6: callbacks return only behind the mark."""
    driver = CoreDriver(FAST)
    driver.auto = False
    driver.epoch(3)
    for _ in range(2):
        driver.answer(driver.held.pop(0))
    driver.tell(Marked(checkpoint_id=1, durable=False))
    assert not driver.seen(ReturnBatches)
    driver.tick(1.0)
    assert len(driver.seen(MarkCommitted)) == 2


def test_a_bounded_state_has_a_batch_behind_its_last_records() -> None:
    """In which Spark gives what the watermark of those has closed; only then is it the end."""
    region = RegionPlan(name="main", source_ids=("source",), bounded=True, stateful=True)
    driver = CoreDriver(FAST, regions=[region])
    driver.tick()
    with_records = driver.poll(3, finished=True)
    assert with_records is not None
    assert not with_records.is_last
    driver.ack(with_records, state_is_due=True)
    assert not driver.seen(EndJob)
    driver.tick()  # nobody waits for an interval, which may be long
    behind_them = driver.poll(3, finished=True)
    assert behind_them is not None
    assert behind_them.is_last
    assert all(each.is_empty for each in behind_them.splits)
    driver.ack(behind_them)
    assert driver.seen(Publish)[-1].kind is CheckpointKind.FINAL
    assert driver.seen(EndJob)[-1].finished


def test_a_bounded_state_that_has_nothing_more_to_give_ends_behind_its_last_records() -> None:
    """At once, without a batch that would write a complete result a second time."""
    region = replace(STATEFUL, bounded=True)
    driver = CoreDriver(replace(FAST, interval_s=3600.0), regions=[region])
    driver.tick()
    driver.ack(driver.poll(3, finished=True))
    driver.tick()
    assert driver.poll(3, finished=True) is None
    assert driver.seen(Publish)[-1].kind is CheckpointKind.FINAL
    assert driver.seen(EndJob)[-1].finished
