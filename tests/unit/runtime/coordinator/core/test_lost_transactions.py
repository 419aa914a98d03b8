"""Rule `two-phase-repair` in a run of several regions: exactly the lost work is written again, or the error names it."""

import dataclasses
from dataclasses import replace

import pytest

from sluice.runtime.checkpoint.lost_work import LostCommittables, lost_error, unsettled_works
from sluice.runtime.contracts import CommitOutcome, CommitReport, PublishOutcome
from sluice.runtime.coordinator.core.events import (
    AbortWork,
    Acknowledged,
    Commit,
    EndJob,
    FailBatches,
    NoteUnsettled,
    Publish,
    Published,
    RegionFailed,
    RegionRestarted,
    Repair,
    Repaired,
    RestartRequested,
    StepFailed,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, OnLost, RegionPlan
from sluice.runtime.errors import (
    DataLostError,
    FencedError,
    IllegalTransitionError,
    TransactionLostError,
    TransactionUnknownError,
    UnreachableError,
)
from sluice.runtime.model.checkpoint_record import CheckpointKind, RegionRecord, Verdict
from sluice.runtime.model.splits import BatchKey, SplitRange
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver, committable, split

CHAINED = (RegionPlan(name="main", source_ids=("source",), chained=True),)
REPAIRING = dataclasses.replace(FAST, on_lost=OnLost.REPAIR)


def test_two_phase_repair_of_several_regions_only_the_lost_slice_is_repaired() -> None:
    plans = (*CHAINED, RegionPlan(name="side", source_ids=("source",), chained=True))
    driver = CoreDriver(REPAIRING, regions=plans)
    driver.outcomes[b"main.0.1"] = CommitOutcome.ABORTED
    driver.tick()
    driver.ack(driver.poll(3))
    driver.ack(driver.poll(3, region="side"), region="side")
    (repair,) = driver.seen(Repair)
    (lost,) = repair.lost
    assert (lost.region.region, lost.committables) == ("main", (committable("main.0.1"),))
    replaced = {b"main.0.1": committable("replacement")}
    driver.tell(Repaired(checkpoint_id=1, outcome=PublishOutcome.OURS, replaced=replaced))
    assert driver.seen(Commit)[1].committables == (committable("replacement"),)
    assert driver.core.last_committed == 1


def test_two_phase_repair_one_region_that_cannot_be_repaired_stops_the_job_with_the_ranges() -> (
    None
):
    driver = _mixed_run()
    driver.outcomes[b"side.0.1"] = CommitOutcome.ABORTED
    _ack_both(driver)
    assert not driver.seen(Repair)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, TransactionLostError)
    assert "regions=side ranges=input-1:[0,3)" in str(end.error)


def test_two_phase_repair_what_can_be_written_again_is_before_the_rest_stops_the_job() -> None:
    """Two regions have lost something; the error names only the one that stays so."""
    driver = _mixed_run()
    driver.outcomes |= dict.fromkeys((b"main.0.1", b"side.0.1"), CommitOutcome.ABORTED)
    _ack_both(driver)
    (repair,) = driver.seen(Repair)
    assert [lost.region.region for lost in repair.lost] == ["main"]
    assert not driver.seen(EndJob)
    replaced = {b"main.0.1": committable("replacement")}
    driver.tell(Repaired(checkpoint_id=1, outcome=PublishOutcome.OURS, replaced=replaced))
    assert committable("replacement") in driver.seen(Commit)[-1].committables
    (end,) = driver.seen(EndJob)
    assert "regions=side ranges=input-1:[0,3)" in str(end.error)


def _mixed_run() -> CoreDriver:
    """A region that can be repaired, and one that cannot."""
    random = RegionPlan(name="side", source_ids=("source",), chained=True, deterministic=False)
    return CoreDriver(REPAIRING, regions=(*CHAINED, random))


def _ack_both(driver: CoreDriver) -> None:
    driver.tick()
    driver.ack(driver.poll(3))
    driver.ack(driver.poll(3, region="side"), region="side")


def _half_lost_run(
    settings: CheckpointSettings = FAST, *, side: CommitOutcome = CommitOutcome.PENDING
) -> CoreDriver:
    """A decision of two regions: one transaction is lost, the other one's coordinator is away."""
    plans = (*CHAINED, RegionPlan(name="side", source_ids=("source",), chained=True))
    driver = CoreDriver(settings, regions=plans)
    driver.outcomes[b"main.0.1"] = CommitOutcome.ABORTED
    driver.outcomes[b"side.0.1"] = side
    _ack_both(driver)
    return driver


def test_two_phase_repair_what_is_not_lost_is_committed_before_the_job_ends() -> None:
    driver = _half_lost_run()
    for _ in range(20):
        driver.tick(FAST.max_retry_s)
    assert not driver.seen(EndJob)
    driver.outcomes[b"side.0.1"] = CommitOutcome.COMMITTED
    driver.tick(FAST.max_retry_s)
    (end,) = driver.seen(EndJob)
    assert "regions=main ranges=input-0:[0,3)" in str(end.error)


def test_two_phase_repair_what_is_lost_meanwhile_is_named_with_it() -> None:
    driver = _half_lost_run()
    driver.outcomes[b"side.0.1"] = CommitOutcome.ABORTED
    driver.tick(FAST.max_retry_s)
    (end,) = driver.seen(EndJob)
    assert "regions=main,side ranges=input-0:[0,3) input-1:[0,3)" in str(end.error)


def test_two_phase_repair_a_loss_is_reported_in_time_though_the_rest_stays_open() -> None:
    """The limit is that of every decision that cannot be settled."""
    driver = _half_lost_run()
    driver.tick(FAST.settle_timeout_s - FAST.max_retry_s)
    assert not driver.seen(EndJob)
    driver.tick(FAST.max_retry_s)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, TransactionLostError)
    assert driver.core.is_idle, "the next start continues with what is open"


def test_outcome_from_broker_what_is_not_unknown_is_committed_before_the_job_ends() -> None:
    driver = _half_lost_run()
    driver.outcomes[b"main.0.1"] = CommitOutcome.UNKNOWN
    for _ in range(2 * round(FAST.unknown_timeout_s / FAST.max_retry_s)):
        driver.tick(FAST.max_retry_s)
    assert not driver.seen(EndJob)
    driver.outcomes[b"side.0.1"] = CommitOutcome.COMMITTED
    driver.tick(FAST.max_retry_s)
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, TransactionUnknownError)


GONE = DataLostError("retention has taken the range", {"region": "main"}, "Look.")


def test_two_phase_repair_what_is_not_lost_is_committed_before_a_failed_repair_ends_the_job() -> (
    None
):
    """As where nothing could be repaired: by the next start it may be lost, too."""
    driver = _half_lost_run(REPAIRING)
    _fail(driver, GONE)
    for _ in range(20):
        driver.tick(FAST.max_retry_s)
    assert not driver.seen(EndJob)
    assert committable("side.0.1") in driver.seen(Commit)[-1].committables
    driver.outcomes[b"side.0.1"] = CommitOutcome.COMMITTED
    driver.tick(FAST.max_retry_s)
    (end,), (noted,) = driver.seen(EndJob), driver.seen(NoteUnsettled)
    assert end.error is GONE
    assert [work.region for work in noted.works] == ["main"]
    assert len(driver.seen(Repair)) == 1, "it is the next start's to try again"
    assert driver.core.is_idle


def test_two_phase_repair_nothing_is_decided_after_a_repair_that_has_failed() -> None:
    driver = _half_lost_run(dataclasses.replace(REPAIRING, max_concurrent=2))
    _fail(driver, GONE)
    driver.tick(FAST.interval_s or 0)
    driver.ack(driver.poll(9))
    driver.ack(driver.poll(9, region="side"), region="side")
    driver.tick(FAST.max_retry_s)
    assert [each.checkpoint_id for each in driver.seen(Publish)] == [1]


@pytest.mark.parametrize("unable", ["main", "side"])
def test_two_phase_repair_a_repair_that_fails_hinders_no_other_regions(unable: str) -> None:
    """Each is a step of its own, whichever comes first; what stays lost is named, and no more."""
    able = "side" if unable == "main" else "main"
    driver = _half_lost_run(REPAIRING, side=CommitOutcome.ABORTED)
    for _ in range(2):
        (lost,) = driver.seen(Repair)[-1].lost
        if lost.region.region == unable:
            _fail(driver, GONE)
        else:
            replaced = {f"{able}.0.1".encode(): committable("replacement")}
            driver.tell(Repaired(checkpoint_id=1, outcome=PublishOutcome.OURS, replaced=replaced))
    assert any(committable("replacement") in each.committables for each in driver.seen(Commit))
    (end,), (noted,) = driver.seen(EndJob), driver.seen(NoteUnsettled)
    assert end.error is GONE
    assert [work.region for work in noted.works] == [unable]


def test_fence_first_a_repair_that_is_fenced_changes_nothing_more() -> None:
    driver = _half_lost_run(REPAIRING)
    commits = len(driver.seen(Commit))
    _fail(driver, FencedError("another run has sealed", {}, "It goes on."))
    driver.tick(FAST.max_retry_s)
    assert driver.core.is_fenced
    assert len(driver.seen(Commit)) == commits


def _fail(driver: CoreDriver, error: Exception) -> None:
    """The repair that was asked for last cannot be done."""
    repair = driver.seen(Repair)[-1]
    driver.tell(StepFailed(checkpoint_id=repair.checkpoint_id, error=error))


def test_two_phase_repair_nothing_is_decided_after_a_loss_that_ends_the_job() -> None:
    driver = _half_lost_run(dataclasses.replace(FAST, max_concurrent=2))
    driver.tick(FAST.max_retry_s)
    driver.tick(FAST.interval_s or 0)
    driver.ack(driver.poll(9))
    driver.ack(driver.poll(9, region="side"), region="side")
    assert [each.checkpoint_id for each in driver.seen(Publish)] == [1]
    driver.outcomes[b"side.0.1"] = CommitOutcome.COMMITTED
    driver.tick(FAST.max_retry_s)
    assert driver.seen(EndJob)
    assert [(each.checkpoint_id, each.verdict) for each in driver.seen(Publish)] == [
        (1, Verdict.DECIDED),
        (2, Verdict.ABORTED),
    ]


def test_the_ranges_of_an_error_are_those_of_the_lost_transactions_where_they_are_reported() -> (
    None
):
    """Another task's part of the epoch is visible: to write it again manually would double it."""
    region = RegionRecord(
        region="main", attempt_id=0, splits=(split(0, 0, 5), split(1, 0, 9), split(2, 4, 4))
    )
    lost = (LostCommittables(region=region, committables=(committable("gone"),)),)
    done = CommitReport(outcome=CommitOutcome.COMMITTED)
    gone = CommitReport(outcome=CommitOutcome.ABORTED, detail="x", ranges=("input-1:[0,9)",))
    assert "ranges=input-1:[0,9) details=x" in str(lost_error(7, lost, (done, gone)))
    silent = CommitReport(outcome=CommitOutcome.ABORTED)
    for reports in ((), (gone, silent)):
        assert "ranges=input-0:[0,5) input-1:[0,9) " in str(lost_error(7, lost, reports))


def test_what_a_decision_does_not_name_is_none_of_its_losses() -> None:
    region = RegionRecord(
        region="main",
        attempt_id=0,
        splits=(split(0, 3, 5), split(1, 7, 7)),
        committables=(committable("mine"),),
    )
    lost = CommitReport(outcome=CommitOutcome.ABORTED)
    answers = [(committable("mine"), lost), (committable("held"), lost)]
    (work,) = unsettled_works([region], answers)
    assert (work.region, work.ranges) == ("main", ("input-0:[3,5)",)), "and no empty range"


def test_what_is_accepted_as_lost_is_the_lost_transactions_own_part() -> None:
    region = RegionRecord(
        region="main",
        attempt_id=0,
        splits=(split(0, 3, 5), split(1, 7, 9)),
        committables=(committable("mine"), committable("other")),
    )
    lost = CommitReport(outcome=CommitOutcome.ABORTED, ranges=("input-1:[7,9)",))
    (work,) = unsettled_works([region], [(committable("mine"), lost)])
    assert work.ranges == ("input-1:[7,9)",)


UNKNOWN = PublishOutcome.UNKNOWN


def test_a_place_is_published_only_after_a_place_of_our_own() -> None:
    """Rule `fence-first`: places are dense; n+1 waits for n, whichever is acknowledged first."""
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
    driver = CoreDriver(FAST)
    driver.auto = False
    batch = driver.epoch_batch(3)
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.TAKEN))
    (end,) = driver.seen(EndJob)
    assert [each.state for each in driver.status().pending] == ["fenced"]
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
    """Rule `publish-whole`: the record may be there; neither time nor a failure aborts a DECIDING
    checkpoint."""
    driver = CoreDriver(FAST)
    driver.auto = False
    driver.epoch(3)
    for _ in range(5):
        driver.held.clear()
        driver.tell(Published(checkpoint_id=1, outcome=UNKNOWN))
        driver.tell(RegionFailed(region="main", attempt_id=0, error=RuntimeError("stopped")))
        driver.tick(20.0)
        (again,) = driver.held
        assert again == driver.seen(Publish)[0]
    assert not driver.seen(AbortWork)
    driver.auto = True
    driver.answer(driver.held[-1])
    assert driver.core.last_committed == 1


def grown_old(settings: CheckpointSettings = FAST, *, within_s: float = 5.0) -> CoreDriver:
    """A decision of two regions that was not answered until it was too old; its abort is tried."""
    driver = CoreDriver(settings, regions=TWO)
    driver.auto = False
    driver.tick()
    for name in ("main", "side"):
        barrier = driver.poll(3, region=name)
        batch = BatchKey(region=name, attempt_id=0, batch_id=1)
        ack = driver.acknowledgement(batch, barrier)
        decide_by_s = driver.clock() + within_s
        driver.tell(Acknowledged(ack=dataclasses.replace(ack, decide_by_s=decide_by_s)))
    driver.tell(Published(checkpoint_id=1, outcome=UNKNOWN))
    driver.tick(within_s - 1.0)
    assert [each.verdict for each in driver.seen(Publish)] == [Verdict.DECIDED] * 2
    driver.tell(Published(checkpoint_id=1, outcome=UNKNOWN))
    driver.tick(1.0)
    (abort,) = driver.seen(Publish)[2:]
    assert abort.verdict is Verdict.ABORTED
    assert "too old to decide" in abort.reason
    assert not driver.seen(AbortWork)
    return driver


def test_transaction_timeout_what_grew_old_while_deciding_is_withdrawn() -> None:
    """The store was away: its transactions may be aborted when it is back."""
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


def test_transaction_timeout_the_regions_of_a_withdrawn_decision_read_again() -> None:
    driver = grown_old()
    driver.auto = True
    driver.held.clear()
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.OURS))
    for name in ("main", "side"):
        driver.tell(RestartRequested(region=name))
    assert {each.region for each in driver.seen(RegionRestarted)} == {"main", "side"}
    attempt_id = driver.seen(RegionRestarted)[0].attempt_id
    driver.tick(1.0)
    for name in ("main", "side"):
        barrier = driver.poll(3, region=name, attempt_id=attempt_id)
        driver.ack(barrier, region=name, attempt_id=attempt_id)
    assert driver.core.last_committed == driver.seen(Commit)[-1].checkpoint_id > 1


def test_a_withdrawn_decision_is_a_failed_checkpoint() -> None:
    driver = grown_old(dataclasses.replace(FAST, tolerable_failures=0))
    assert not driver.seen(EndJob)
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.OURS))
    (end,) = driver.seen(EndJob)
    assert "too old to decide" in str(end.error)


def test_transaction_timeout_a_decision_that_landed_before_its_withdrawal_stands() -> None:
    """An answer that was late: from here on there is only forward."""
    driver = grown_old()
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.DECIDED))
    (commit,) = driver.seen(Commit)
    assert set(commit.committables) == {committable("main.0.1"), committable("side.0.1")}
    assert not driver.seen(AbortWork)
    assert driver.core.is_live("main", 0)


def test_transaction_timeout_a_batch_that_no_barrier_asked_for_grows_old_in_its_checkpoint() -> (
    None
):
    """As a drop-in query's, each of which begins one: its transactions are no younger for that."""
    driver = CoreDriver(CheckpointSettings(interval_s=None))
    driver.auto = False
    ack = driver.acknowledgement(BatchKey(region="main", attempt_id=0, batch_id=1))
    driver.tell(Acknowledged(ack=dataclasses.replace(ack, decide_by_s=driver.clock() + 5.0)))
    driver.tell(Published(checkpoint_id=1, outcome=UNKNOWN))
    driver.tick(5.0)
    assert [each.verdict for each in driver.seen(Publish)] == [Verdict.DECIDED, Verdict.ABORTED]


def test_fence_first_a_withdrawal_in_a_place_that_is_taken_ends_the_run() -> None:
    driver = grown_old()
    driver.tell(Published(checkpoint_id=1, outcome=PublishOutcome.TAKEN))
    (end,) = driver.seen(EndJob)
    assert isinstance(end.error, FencedError)
    assert not driver.seen(AbortWork)


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


def test_an_abort_that_the_store_does_not_answer_ends_the_run_in_time() -> None:
    """Regions wait for its record to begin again; the limit counts from the first lost answer."""
    driver = CoreDriver(dataclasses.replace(FAST, settle_timeout_s=30.0), regions=TWO)
    driver.auto = False
    driver.tick()
    driver.poll(3)
    driver.tell(RegionFailed(region="main", attempt_id=0, error=RuntimeError("failed")))
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


def _driver(
    decided_to: int, *, leader_epoch: int | None, leader_epoch_end: int | None
) -> CoreDriver:
    driver = CoreDriver()
    driver.tick(1.0)
    barrier = driver.poll(decided_to)
    known = {"leader_epoch": leader_epoch, "leader_epoch_end": leader_epoch_end}
    _tell(driver, 1, replace(barrier.splits[0], **known))
    assert driver.core.last_committed == 1
    return driver


def _tell(driver: CoreDriver, batch_id: int, read: SplitRange) -> None:
    made = driver.acknowledgement(BatchKey(region="main", attempt_id=0, batch_id=batch_id))
    driver.tell(Acknowledged(ack=replace(made, region=replace(made.region, splits=(read,)))))


def _next(driver: CoreDriver, read: SplitRange) -> None:
    driver.tick(1.0)
    driver.asked_cut()
    _tell(driver, 2, read)


def test_batch_identity_a_range_may_begin_at_markers_that_are_read_again() -> None:
    """No record lies between the last one that a leader is known to have written and the end."""
    driver = _driver(10, leader_epoch=1, leader_epoch_end=8)
    _next(driver, replace(split(0, 8, 30), leader_epoch=2))
    assert driver.core.last_committed == 2


@pytest.mark.parametrize(("start", "known_end"), [(7, None), (9, None), (7, 8)])
def test_batch_identity_a_range_that_a_decided_checkpoint_contains_is_refused(
    start: int, known_end: int | None
) -> None:
    driver = _driver(10, leader_epoch=1, leader_epoch_end=known_end)
    with pytest.raises(IllegalTransitionError, match="a decided checkpoint contains"):
        _next(driver, replace(split(0, start, 30), leader_epoch=2))
