"""What a shared committer knows of regions: what is decided, and what may be thrown away."""

from sluice.runtime.coordinator.committing.commit_ledger import (
    Ledger,
    aborted,
    checkpoints_due,
    decided,
    pending,
    pre_committed,
    wave,
)
from sluice.runtime.coordinator.committing.commit_steps import DecidedWork, SharedCommitters
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.model.checkpoint_record import RegionRecord, RegionStatus
from tests.kit.coordinator.core_driver import committable
from tests.kit.fakes import FakeBroker, FakeSink


def told(ledger: Ledger, checkpoint_id: int, *regions: str) -> Ledger:
    """Each of these has pre-committed something that is named after it."""
    work = {name: (committable(f"{name}-{checkpoint_id}"),) for name in regions}
    return pre_committed(ledger, checkpoint_id, work)


def test_a_decision_decides_nothing_that_was_done_for_a_later_checkpoint() -> None:
    """A task that reads on has the next epoch open already: it may be aborted yet."""
    ledger = told(told(Ledger(), 1, "main"), 2, "main")
    ledger = decided(ledger, 1, ())
    later = committable("main-2")
    assert pending(ledger, "main", through=2) == (later,)
    assert wave(ledger, 2) == ()
    left, gone = aborted(ledger, [later])
    assert gone == (later,)
    assert wave(left, 1) == (committable("main-1"),)


def test_what_is_due_of_a_checkpoint_is_nothing_of_a_later_one() -> None:
    """Each is published by itself, and marked before the next."""
    ledger = told(told(Ledger(), 1, "main"), 2, "main")
    ledger = decided(decided(ledger, 1, ()), 2, ())
    assert checkpoints_due(ledger, 1) == (1,)
    assert checkpoints_due(ledger, 2) == (1, 2)


def test_a_sink_is_told_of_no_region_that_does_not_write_to_it() -> None:
    """That one was carried is no matter of its committer's."""
    skipped = RegionRecord(
        region="side", attempt_id=0, status=RegionStatus.SKIPPED, snapshot_id=1, batch_id=1
    )
    work = DecidedWork(checkpoint_id=2, regions=(skipped,), entries=())
    main, side = (RegionPlan(name=n, sink_ids=(f"{n}-sink",)) for n in ("main", "side"))
    sinks = {f"{name}-sink": SerialSink(FakeSink(FakeBroker())) for name in ("main", "side")}
    committers = SharedCommitters(sinks, JobPlan(name="job", regions=(main, side)))
    assert committers.failed_detail("main-sink", work) is None
    told_of = committers.failed_detail("side-sink", work)
    assert told_of is not None
    assert [task.task_name for task in told_of.failed_tasks] == ["side"]


def test_a_decision_decides_nothing_of_a_region_that_failed() -> None:
    ledger = decided(told(Ledger(), 1, "main", "side"), 1, ["side"])
    assert wave(ledger, 1) == (committable("main-1"),)
    assert pending(ledger, "side", through=1) == (committable("side-1"),)


def test_an_abort_takes_along_nothing_that_is_decided() -> None:
    """Work is told of late for a checkpoint below the last decision, and thrown away."""
    ledger = decided(told(Ledger(), 2, "main"), 2, ())
    ledger = told(ledger, 1, "main")
    left, gone = aborted(ledger, [committable("main-1")])
    assert gone == (committable("main-1"),)
    assert wave(left, 2) == (committable("main-2"),)


def test_an_abort_takes_along_what_the_region_did_behind_it_and_nothing_of_others() -> None:
    ledger = told(told(told(Ledger(), 1, "main", "side"), 2, "main", "side"), 3, "main")
    left, gone = aborted(ledger, [committable("main-2")])
    assert gone == (committable("main-2"), committable("main-3"))
    assert pending(left, "main", through=3) == (committable("main-1"),)
    assert len(pending(left, "side", through=3)) == 2
