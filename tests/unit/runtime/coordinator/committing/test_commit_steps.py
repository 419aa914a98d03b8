"""What a decision commits: regions that it skips, repairs, and the ledger of shared committers."""

import dataclasses
from collections.abc import Mapping, Sequence

import pytest

from sluice.runtime.checkpoint.lost_work import LostCommittables
from sluice.runtime.contracts import (
    CommitOutcome,
    CommitReport,
    FailedScope,
    FailedTask,
    FailureReason,
    PublishOutcome,
    RegionCheckpointFailedDetail,
    RegionProgress,
    SweepView,
)
from sluice.runtime.coordinator.committing.commit_ledger import (
    Ledger,
    aborted,
    checkpoints_due,
    decided,
    pending,
    pre_committed,
    wave,
)
from sluice.runtime.coordinator.committing.commit_steps import DecidedWork, SharedCommitters, drive
from sluice.runtime.coordinator.committing.repairs import Repairs
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.events import (
    MarkCommitted,
    Marked,
    Repair,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from sluice.runtime.errors import (
    ConfigError,
    DataLostError,
    IllegalTransitionError,
    TransactionLostError,
    UnreachableError,
)
from sluice.runtime.model.checkpoint_record import (
    Redistribution,
    RegionRecord,
    RegionStatus,
    StateEntry,
)
from sluice.runtime.model.splits import SplitRange
from tests.kit.coordinator.core_driver import committable, split
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.starting_job import PLAN, Job, record
from tests.kit.fakes import FakeSource, TransactionState, identity_of

_TWO = dataclasses.replace(
    PLAN,
    regions=(
        RegionPlan(name="main", source_ids=("source",), sink_ids=("sink",)),
        RegionPlan(name="side", source_ids=("source",), sink_ids=("sink",)),
    ),
)
_STATE = StateEntry(
    operator_id="sink",
    state_name="open partitions",
    kind="fake",
    version=1,
    redistribution=Redistribution.SPLIT,
    payload=b"dt=1",
)
_SOURCES_STATE = dataclasses.replace(_STATE, operator_id="source")


class _Following:
    """A sink's committer that wants to know how far the regions are."""

    def __init__(self, job: Job) -> None:
        inner = job.sink.committer
        self.commit, self.abort = inner.commit, inner.abort
        self.await_visible = inner.await_visible
        self.told: list[tuple[int, Sequence[RegionProgress]]] = []
        self.answers: list[CommitOutcome] = []
        self._job = job
        job.sink.committer = self

    def regions_published(
        self, checkpoint_id: int, regions: Sequence[RegionProgress], *, timeout_s: float
    ) -> CommitReport:
        assert checkpoint_id not in self._job.store.committed, "reported after the mark"
        assert not self._job.broker.ongoing(), "reported before all is published"
        self.told.append((checkpoint_id, regions))
        outcome = self.answers.pop(0) if self.answers else CommitOutcome.COMMITTED
        return CommitReport(outcome=outcome, detail="a partition is not marked yet")


def _job() -> Job:
    start = record(0)
    side = RegionRecord(region="side", attempt_id=0)
    return Job(dataclasses.replace(start, regions=(*start.regions, side)), committed=(0,))


def _main(*entries: StateEntry) -> RegionRecord:
    return RegionRecord(
        region="main",
        attempt_id=0,
        batch_id=1,
        splits=(split(0, 0, 10),),
        least_watermark_ms=9,
        committables=entries,
        operator_states=(_STATE, _SOURCES_STATE),
    )


def _carried(*entries: StateEntry) -> RegionRecord:
    return RegionRecord(
        region="side",
        attempt_id=0,
        status=RegionStatus.SKIPPED,
        snapshot_id=0,
        least_watermark_ms=3,
        committables=entries,
    )


def _decide(job: Job, checkpoint_id: int, *regions: RegionRecord) -> None:
    job.store.records[checkpoint_id] = record(checkpoint_id, regions=regions)


def _io_executor(job: Job) -> IoExecutor:
    return job.io_executor(session="new", attempt_id=1, plan=_TWO)


def _state(job: Job, entry: StateEntry) -> TransactionState:
    return job.broker.transactions[identity_of(entry)].state


# --- the start ------------------------------------------------------------------------------------


def test_a_start_commits_the_completed_regions_of_a_decision_and_no_skipped_one() -> None:
    job = _job()
    done, held = job.pre_commit("done"), job.pre_commit("held")
    _decide(job, 1, _main(done), _carried(held))
    job.start(plan=_TWO)
    assert job.store.committed == {0, 1}
    assert _state(job, done) is TransactionState.COMMITTED
    assert _state(job, held) is TransactionState.ABORTED
    assert job.points.index("after-mark") < job.points.index("before-sweep")


def test_a_start_gives_up_in_time_on_a_sink_that_does_not_follow() -> None:
    """With the sink's words; nothing is marked, so the next start continues there."""
    job = _job()
    _Following(job).answers = [CommitOutcome.PENDING] * 10_000
    _decide(job, 1, _main(), _carried())
    with pytest.raises(UnreachableError, match="a partition is not marked yet"):
        job.start(plan=_TWO)
    assert job.store.committed == {0}


# --- at work --------------------------------------------------------------------------------------


def test_a_mark_waits_until_the_sinks_have_followed() -> None:
    """Through the lock that a coordinator puts around its sinks."""
    job = _job()
    streaming = _Following(job)
    streaming.answers = [CommitOutcome.PENDING]
    io_executor = _io_executor(job)
    action = MarkCommitted(checkpoint_id=1, regions=(_main(), _carried()))
    assert drive(io_executor.perform(action)) == Marked(checkpoint_id=1, durable=False)
    assert 1 not in job.store.committed
    assert drive(io_executor.perform(action)) == Marked(checkpoint_id=1, durable=True)
    assert 1 in job.store.committed
    assert len(streaming.told) == 2


_LATE = FailedTask(
    subtask_id=3,
    task_name="task 3.1 in stage 5.0 (TID 12)",
    region="side",
    reason=FailureReason.ERROR,
    message="ValueError: no",
)


def _detail(
    committers: SharedCommitters, checkpoint_id: int, *, skips: bool, known: bool = True
) -> RegionCheckpointFailedDetail | None:
    regions = (_main(), _carried() if skips else dataclasses.replace(_main(), region="side"))
    tasks = (_LATE,) if skips and known else ()
    work = DecidedWork(checkpoint_id=checkpoint_id, regions=regions, failed_tasks=tasks)
    return committers.failed_detail("sink", work)


def test_a_detail_names_what_failed_up_stream_down_stream_or_on_both_sides() -> None:
    """Skipped writers; and a commit listener that did not complete the decision before at once."""
    job = _job()
    streaming = _Following(job)
    plan = dataclasses.replace(_TWO, graph=())
    committers = SharedCommitters({"sink": SerialSink(job.sink)}, plan)
    done = DecidedWork(checkpoint_id=1, regions=(_main(),))
    assert _detail(committers, 1, skips=False) is None
    up = _detail(committers, 1, skips=True)
    assert up is not None
    assert (up.scope, up.failed_tasks) == (FailedScope.UP_STREAM, (_LATE,))
    assert up.failed_regions == {"side"}

    streaming.answers = [CommitOutcome.PENDING]
    committers.follow_all(done, timeout_s=1.0)
    committers.follow_all(done, timeout_s=1.0)  # now it follows
    assert _detail(committers, 1, skips=False) is None, "the same for each try of a checkpoint"
    listener = FailedTask(
        subtask_id=0,
        task_name="sink",
        region=None,
        reason=FailureReason.EXPIRED,
        message="a partition is not marked yet",
    )
    down = _detail(committers, 4, skips=False)
    assert down is not None
    assert (down.scope, down.failed_tasks) == (FailedScope.DOWN_STREAM, (listener,))
    assert down.failed_regions == frozenset(), "no writer waits for it"
    both = _detail(committers, 4, skips=True)
    assert both is not None
    assert (both.scope, both.failed_tasks) == (FailedScope.BOTH, (_LATE, listener))
    assert both.failed_regions == {"side"}

    committers.follow_all(dataclasses.replace(done, checkpoint_id=4), timeout_s=1.0)
    assert _detail(committers, 5, skips=False) is None, "it follows again"


def test_a_listener_that_raises_has_failed_with_the_first_line_of_its_error() -> None:
    job = _job()
    streaming = _Following(job)

    def unreachable(checkpoint_id: int, regions: object, *, timeout_s: float) -> CommitReport:
        raise UnreachableError("the metastore is away\nfor long", {}, "Wait.")

    streaming.regions_published = unreachable  # type: ignore[method-assign, assignment]
    committers = SharedCommitters({"sink": SerialSink(job.sink)}, _TWO)
    committers.follow_all(DecidedWork(checkpoint_id=1, regions=(_main(),)), timeout_s=1.0)
    found = _detail(committers, 2, skips=False)
    assert found is not None
    (task,) = found.failed_tasks
    assert (task.reason, task.message) == (FailureReason.ERROR, "the metastore is away")


def test_after_a_crash_a_detail_knows_the_region_alone() -> None:
    job = _job()
    committers = SharedCommitters({"sink": SerialSink(job.sink)}, _TWO)
    found = _detail(committers, 2, skips=True, known=False)
    assert found is not None
    (task,) = found.failed_tasks
    assert (task.region, task.task_name, task.reason) == ("side", "side", FailureReason.ERROR)
    assert task.message == "keeps its snapshot of checkpoint 0"


def test_a_decision_that_forgets_held_work_of_a_completed_region_stops_the_job() -> None:
    """It would be published though no record says so, or lost."""
    job = _job()
    held, new = job.pre_commit("held"), job.pre_commit("new")
    committers = SharedCommitters({"sink": SerialSink(job.sink)}, _TWO)
    committers.of("sink").pre_committed(1, {"main": [held]})
    wrong = DecidedWork(checkpoint_id=2, regions=(_main(new),), entries=(new,))
    with pytest.raises(IllegalTransitionError, match="does not name a region's pending work"):
        committers.notify("sink", wrong, timeout_s=1.0, after_crash=False)
    assert len(job.broker.ongoing()) == 2
    right = DecidedWork(checkpoint_id=2, regions=(_main(held, new),), entries=(held, new))
    reports = committers.notify("sink", right, timeout_s=1.0, after_crash=False)
    assert list(reports) == [held, new]


# --- the detail -----------------------------------------------------------------------------------


_TASK = FailedTask(subtask_id=0, task_name="main", region="main", reason=FailureReason.EXPIRED)


@pytest.mark.parametrize(("checkpoint_id", "tasks"), [(0, (_TASK,)), (1, ()), (1, (_TASK, _TASK))])
def test_a_detail_that_cannot_be_is_refused(
    checkpoint_id: int, tasks: tuple[FailedTask, ...]
) -> None:
    """Checkpoint 0 has no work, a complete checkpoint no failed task, a task fails once."""
    with pytest.raises(ConfigError):
        RegionCheckpointFailedDetail(
            checkpoint_id=checkpoint_id, scope=FailedScope.UP_STREAM, failed_tasks=tasks
        )


@pytest.mark.parametrize(("subtask_id", "task_name"), [(-1, "main"), (0, "")])
def test_a_failed_task_that_cannot_be_is_refused(subtask_id: int, task_name: str) -> None:
    with pytest.raises(ConfigError):
        FailedTask(
            subtask_id=subtask_id, task_name=task_name, region="main", reason=FailureReason.ERROR
        )


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
        self.attempt_ids.append(attempt_id)
        return {entry.payload: committable("again") for entry in lost.committables}

    def ranges(self, lost: LostCommittables) -> tuple[SplitRange, ...]:
        return lost.region.splits


def _written_under(attempt_id: int) -> int:
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
    restarted = 7
    view = SweepView(job_uid="uid", attempt_ids={"main": restarted}, protected=(), orphans=())
    assert not view.is_attempt_over("main", _written_under(restarted))


def test_a_repair_at_a_start_is_of_this_run() -> None:
    view = SweepView(job_uid="uid", attempt_ids={"main": _RUN}, protected=(), orphans=())
    assert not view.is_attempt_over("main", _written_under(1))


@pytest.mark.parametrize("error", [None, DataLostError("gone", {"range": "input-1[3,9)"}, "Stop.")])
def test_what_a_log_has_lost_meanwhile_is_not_waited_for_at_each_start_again(
    error: DataLostError | None,
) -> None:
    """Whether the source calls that an error or not: less than was lost is no repair."""
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
    ledger = told(told(Ledger(), 1, "main"), 2, "main")
    ledger = decided(decided(ledger, 1, ()), 2, ())
    assert checkpoints_due(ledger, 1) == (1,)
    assert checkpoints_due(ledger, 2) == (1, 2)


def test_a_decision_decides_nothing_of_a_region_that_failed() -> None:
    ledger = decided(told(Ledger(), 1, "main", "side"), 1, ["side"])
    assert wave(ledger, 1) == (committable("main-1"),)
    assert pending(ledger, "side", through=1) == (committable("side-1"),)


def test_an_abort_takes_along_nothing_that_is_decided() -> None:
    """Work is reported late for a checkpoint below the last decision, and thrown away."""
    ledger = decided(told(Ledger(), 2, "main"), 2, ())
    ledger = told(ledger, 1, "main")
    left, gone = aborted(ledger, [committable("main-1")])
    assert gone == (committable("main-1"),)
    assert wave(left, 2) == (committable("main-2"),)


def test_an_abort_takes_along_what_the_region_did_after_it_and_nothing_of_others() -> None:
    ledger = told(told(told(Ledger(), 1, "main", "side"), 2, "main", "side"), 3, "main")
    left, gone = aborted(ledger, [committable("main-2")])
    assert gone == (committable("main-2"), committable("main-3"))
    assert pending(left, "main", through=3) == (committable("main-1"),)
    assert len(pending(left, "side", through=3)) == 2
