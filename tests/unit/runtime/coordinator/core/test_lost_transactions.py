"""Rule `two-phase-repair` in a run of several regions: exactly what is lost is written again, or
it is named."""

import dataclasses

import pytest

from sluice.runtime.checkpoint.lost_work import LostCommittables, lost_error, unsettled_works
from sluice.runtime.contracts import CommitOutcome, CommitReport, PublishOutcome
from sluice.runtime.coordinator.core.events import (
    Commit,
    EndJob,
    NoteUnsettled,
    Publish,
    Repair,
    Repaired,
    StepFailed,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import CheckpointSettings, OnLost, RegionPlan
from sluice.runtime.errors import (
    DataLostError,
    FencedError,
    TransactionLostError,
    TransactionUnknownError,
)
from sluice.runtime.model.checkpoint_record import RegionRecord, Verdict
from tests.kit.coordinator.core_driver import FAST, CoreDriver, committable, split

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
