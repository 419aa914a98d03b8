"""Which attempts resume under a new leader: one case for each finding."""

from dataclasses import replace

import pytest

from sluice.runtime.contracts import OpenWork, RegionRegistration
from sluice.runtime.failover.reconciling import RESUMES, Finding, reconciled
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.model.state.keyed_state import KeyedState, SplitState, StatePart
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
    outcome = reconciled(
        reports,
        {"main": record},
        own_attempt=OWN,
        listed={} if listed is None else {"main": listed},
        unchanged={"main"} if unchanged else (),
    )
    finding = outcome.findings["main"]
    assert ("main" in outcome.resumed) is RESUMES[finding]
    assert (outcome.left == ()) is (RESUMES[finding] or not reports)
    return finding


def test_an_attempt_that_matches_the_last_decision_resumes() -> None:
    assert found(report()) is Finding.MATCHES
    assert found(report(epoch(6, 50))) is Finding.MATCHES


def test_a_decided_epoch_is_not_acknowledged_again() -> None:
    """Its old leader decided it after the report, or died before it answered."""
    outcome = reconciled(
        [report(epoch(5, 40), epoch(6, 50))],
        {"main": RECORD},
        own_attempt=OWN,
        listed={"main": 3},
        unchanged={"main"},
    )
    assert outcome.resumed["main"].open == (epoch(6, 50),)
    assert outcome.attempts == {"main": 3}


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
        outcome = reconciled(
            reports, {"main": RECORD}, own_attempt=OWN, listed={"main": 7}, unchanged={"main"}
        )
        assert outcome.attempts == {"main": 7}
        assert outcome.left == (old,)


def test_a_region_that_left_the_job_is_left() -> None:
    gone = RegionRegistration(region="gone", attempt_id=3, may_resume=True)
    outcome = reconciled(
        [gone], {"main": RECORD}, own_attempt=OWN, listed={"gone": 3}, unchanged={"gone"}
    )
    assert outcome.left == (gone,)


def keyed_state(*writers: str) -> KeyedState:
    """The state of one split: a file of each region that has written some of it."""
    paths = [f"state/{region}/3-{at}.changes" for at, region in enumerate(writers)]
    files = tuple(FileReference(path=path, length_bytes=9, sha256="0" * 64) for path in paths)
    parts = tuple(StatePart(file=at, offset=0, length=9) for at in range(len(files)))
    place = SplitState(source_id="source", topic="topic", partition=0, parts=parts)
    return KeyedState(files=files, splits=(place,))


def keyed_finding(
    reported: KeyedState | None, decided: KeyedState | None, *epochs: OpenWork
) -> Finding:
    its_own = replace(report(*epochs), splits=(split(0, 40, 50).key,), keyed_state=reported)
    outcome = reconciled(
        [its_own],
        {"main": replace(RECORD, keyed_state=decided)},
        own_attempt=OWN,
        listed={"main": 3},
        unchanged={"main"},
        keyed={"main"},
    )
    return outcome.findings["main"]


def test_state_with_output_a_split_that_was_away_between_two_barriers_restarts_its_region() -> None:
    """Its task has the older state: the next barrier would bring it no other one."""
    mine, others = keyed_state("main"), keyed_state("main", "side")
    assert keyed_finding(mine, mine) is Finding.MATCHES
    assert keyed_finding(mine, others) is Finding.MOVED
    assert keyed_finding(None, others) is Finding.MOVED


def test_state_without_parts_is_none() -> None:
    assert keyed_finding(None, keyed_state()) is Finding.MATCHES
    assert keyed_finding(keyed_state(), None) is Finding.MATCHES


def test_an_undecided_epoch_has_a_later_state_than_the_decision() -> None:
    decided, later = keyed_state("main"), keyed_state("main", "main")
    assert keyed_finding(later, decided, epoch(6, 50)) is Finding.MATCHES
