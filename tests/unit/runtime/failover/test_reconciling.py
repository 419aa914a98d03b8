"""Which attempts resume under a new leader: one case for each finding."""

from dataclasses import replace

import pytest

from sluice.runtime.contracts import OpenWork, RegionRegistration
from sluice.runtime.failover.reconciling import RULINGS, Finding, reconciled
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import BatchKey
from tests.kit.coordinator.core_driver import committable, split

OWN = 9
RECORD = RegionRecord(region="main", attempt_id=3, batch_id=5, splits=(split(0, 40, 50),))


def epoch(batch_id: int, start: int, *, attempt_id: int = 3, partition: int = 0) -> OpenWork:
    return OpenWork(
        batch=BatchKey(region="main", attempt_id=attempt_id, batch_id=batch_id),
        committables=(committable(f"{attempt_id}.{batch_id}"),),
        splits=(split(partition, start, start + 10),),
    )


def report(*epochs: OpenWork, attempt_id: int = 3, may_resume: bool = True) -> RegionRegistration:
    return RegionRegistration(
        region="main", attempt_id=attempt_id, open=epochs, may_resume=may_resume
    )


def found(
    *reports: RegionRegistration,
    record: RegionRecord = RECORD,
    listed: int | None = 3,
    unchanged: bool = True,
) -> Finding:
    rulings = reconciled(
        reports,
        {"main": record},
        own_attempt=OWN,
        listed={} if listed is None else {"main": listed},
        unchanged={"main"} if unchanged else (),
    )
    finding = rulings.findings["main"]
    assert ("main" in rulings.resumed) is RULINGS[finding]
    assert (rulings.left == ()) is (RULINGS[finding] or not reports)
    return finding


def test_an_attempt_that_matches_the_last_decision_resumes() -> None:
    assert found(report()) is Finding.MATCHES
    assert found(report(epoch(6, 50))) is Finding.MATCHES


def test_a_decided_epoch_is_not_acknowledged_again() -> None:
    """Its old leader decided it after the report, or died before it answered."""
    rulings = reconciled(
        [report(epoch(5, 40), epoch(6, 50))],
        {"main": RECORD},
        own_attempt=OWN,
        listed={"main": 3},
        unchanged={"main"},
    )
    assert rulings.resumed["main"].open == (epoch(6, 50),)
    assert rulings.attempts == {"main": 3}


def test_an_attempt_without_a_decision_begins_where_the_last_decision_ends() -> None:
    reported = report(epoch(0, 50, attempt_id=7), attempt_id=7)
    assert found(reported, listed=7) is Finding.MATCHES
    other = report(epoch(0, 40, attempt_id=7), attempt_id=7)
    assert found(other, listed=7) is Finding.ELSEWHERE


def test_a_region_without_a_report_restarts() -> None:
    assert found() is Finding.NOT_REPORTED


def test_an_attempt_that_has_ended_restarts_also_if_an_older_report_says_otherwise() -> None:
    ended = report(may_resume=False)
    for reports in ([ended], [ended, report()], [report(), ended]):
        assert found(*reports) is Finding.NOT_RUNNING


@pytest.mark.parametrize("listed", [None, 2, 4])
def test_an_attempt_that_an_earlier_leader_has_ended_restarts(listed: int | None) -> None:
    """That leader may have aborted its transactions."""
    assert found(report(epoch(6, 50)), listed=listed) is Finding.ENDED


def test_an_attempt_below_the_decided_one_restarts() -> None:
    assert found(report(attempt_id=2), listed=2) is Finding.ENDED


def test_an_attempt_of_this_run_or_a_later_one_is_not_of_an_earlier_leader() -> None:
    assert found(report(attempt_id=OWN), listed=OWN) is Finding.UNKNOWN


def test_a_region_with_other_splits_restarts() -> None:
    assert found(report(), unchanged=False) is Finding.CHANGED


def test_several_undecided_epochs_restart_the_region() -> None:
    assert found(report(epoch(6, 50), epoch(7, 60))) is Finding.SEVERAL_EPOCHS


@pytest.mark.parametrize("start", [49, 51])
def test_an_epoch_that_begins_elsewhere_is_never_decided(start: int) -> None:
    """Before the decided end it would double records, after it it would lose them."""
    assert found(report(epoch(6, start))) is Finding.ELSEWHERE


def test_an_epoch_may_read_markers_again_but_no_record() -> None:
    marked = replace(split(0, 40, 50), leader_epoch=1, leader_epoch_end=48)
    record = replace(RECORD, splits=(marked,))
    assert found(report(epoch(6, 48)), record=record) is Finding.MATCHES
    assert found(report(epoch(6, 47)), record=record) is Finding.ELSEWHERE


def test_an_epoch_of_other_splits_is_never_decided() -> None:
    assert found(report(epoch(6, 50, partition=1))) is Finding.ELSEWHERE
    more = replace(epoch(6, 50), splits=(split(0, 50, 60), split(1, 0, 5)))
    assert found(report(more)) is Finding.ELSEWHERE


def test_the_newest_attempt_counts_and_work_of_the_others_is_left() -> None:
    old, new = report(epoch(6, 50)), report(attempt_id=7)
    for reports in ([old, new], [new, old]):
        rulings = reconciled(
            reports, {"main": RECORD}, own_attempt=OWN, listed={"main": 7}, unchanged={"main"}
        )
        assert rulings.attempts == {"main": 7}
        assert rulings.left == (old,)


def test_a_region_that_left_the_job_is_left() -> None:
    gone = RegionRegistration(region="gone", attempt_id=3, may_resume=True)
    rulings = reconciled(
        [gone], {"main": RECORD}, own_attempt=OWN, listed={"gone": 3}, unchanged={"gone"}
    )
    assert rulings.left == (gone,)
