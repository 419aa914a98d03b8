"""Under which attempt lost work is written again, and of what."""

from collections.abc import Mapping

import pytest

from sluice.runtime.checkpoint.lost_work import LostCommittables
from sluice.runtime.contracts import PublishOutcome, SweepView
from sluice.runtime.coordinator.committing.commit_steps import drive
from sluice.runtime.coordinator.committing.repairs import Repairs
from sluice.runtime.coordinator.core.events import Repair
from sluice.runtime.errors import DataLostError, TransactionLostError
from sluice.runtime.model.checkpoint_record import RegionRecord, StateEntry
from sluice.runtime.model.splits import SplitRange
from tests.kit.coordinator.core_driver import committable, split
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.fakes import FakeSource

_RUN = 3


class _Repairer:
    """Keeps the attempts it was given."""

    def __init__(self) -> None:
        self.attempt_ids: list[int] = []

    def repair(
        self,
        checkpoint_id: int,
        lost: LostCommittables,
        *,
        job_uid: str,
        attempt_id: int,
        timeout_s: float,
    ) -> Mapping[bytes, StateEntry]:
        """See `Repairer`."""
        self.attempt_ids.append(attempt_id)
        return {entry.payload: committable("again") for entry in lost.committables}

    def ranges(self, lost: LostCommittables) -> tuple[SplitRange, ...]:
        """See `Repairer`."""
        return lost.region.splits


def _written_under(attempt_id: int) -> int:
    """By a run of attempt 3, for a batch of this one."""
    repairer = _Repairer()
    repairs = Repairs(
        repairer=repairer,
        store=FakeStore(),
        sinks={},
        sources={},
        session="s",
        job_uid="uid",
        attempt_id=_RUN,
        timeout_s=1.0,
    )
    entry = committable("lost")
    region = RegionRecord(region="main", attempt_id=attempt_id, batch_id=1, committables=(entry,))
    lost = LostCommittables(region=region, committables=(entry,))
    outcome, _ = drive(repairs.run(Repair(checkpoint_id=9, lost=(lost,))))
    assert outcome is PublishOutcome.OURS
    (written,) = repairer.attempt_ids
    return written


def test_a_repair_of_a_restarted_region_is_not_swept_while_it_is_written() -> None:
    """What is of an older attempt than the region's goes with the next sweep, ten seconds later
    at most; no record names a repair before it is whole."""
    restarted = 7
    view = SweepView(job_uid="uid", attempt_ids={"main": restarted}, protected=(), orphans=())
    assert not view.is_attempt_over("main", _written_under(restarted))


def test_a_repair_at_a_start_is_of_this_run() -> None:
    """Older lives are swept there."""
    view = SweepView(job_uid="uid", attempt_ids={"main": _RUN}, protected=(), orphans=())
    assert not view.is_attempt_over("main", _written_under(1))


def test_a_repair_says_what_it_has_mended(caplog: pytest.LogCaptureFixture) -> None:
    """The loss was told as an error: nobody shall write the same by hand."""
    with caplog.at_level("WARNING"):
        _written_under(1)
    assert "lost transactions were written again: checkpoint_id=9 regions=main" in caplog.text


@pytest.mark.parametrize("error", [None, DataLostError("gone", {"range": "input-1[3,9)"}, "Stop.")])
def test_what_a_log_has_lost_meanwhile_is_not_waited_for_at_each_start_again(
    error: DataLostError | None,
) -> None:
    """Whether the source calls that an error or not: less than was lost is no repair. Nor does the
    source count what the job stops for."""
    repairer, entry = _Repairer(), committable("lost")
    ranges = tuple(split(partition, 2, 9) for partition in range(2))
    source = FakeSource("source", {0: 9, 1: 3}, error=error)
    repairs = Repairs(
        repairer=repairer,
        store=FakeStore(),
        sinks={},
        sources={"source": source},
        session="s",
        job_uid="uid",
        attempt_id=_RUN,
        timeout_s=1.0,
    )
    region = RegionRecord(
        region="main", attempt_id=1, batch_id=1, committables=(entry,), splits=ranges
    )
    action = Repair(checkpoint_id=9, lost=(LostCommittables(region=region, committables=(entry,)),))
    with pytest.raises(TransactionLostError, match=r"input-1:\[2,9\).*accept-loss"):
        drive(repairs.run(action))
    assert not repairer.attempt_ids, "nothing was read"
    source.ends, source.error = {0: 9, 1: 9}, None
    outcome, _ = drive(repairs.run(action))
    assert outcome is PublishOutcome.OURS
