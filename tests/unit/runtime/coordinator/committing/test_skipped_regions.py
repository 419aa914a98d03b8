"""A decision that carries a region: what is committed and told of it, at work and at a start."""

import dataclasses
from collections.abc import Sequence

import pytest

from sluice.runtime.contracts import (
    CommitOutcome,
    CommitReport,
    FailedScope,
    FailedTask,
    FailureReason,
    RegionCheckpointFailedDetail,
    RegionProgress,
)
from sluice.runtime.coordinator.committing.commit_steps import (
    DecidedWork,
    SharedCommitters,
    drive,
)
from sluice.runtime.coordinator.committing.sink_committer import SerialSink
from sluice.runtime.coordinator.core.events import Commit, CommitReported, MarkCommitted, Marked
from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.coordinator.shell.io_executor import IoExecutor
from sluice.runtime.errors import ConfigError, IllegalTransitionError, UnreachableError
from sluice.runtime.model.checkpoint_record import (
    Redistribution,
    RegionRecord,
    RegionStatus,
    StateEntry,
)
from tests.kit.coordinator.core_driver import split
from tests.kit.coordinator.starting_job import PLAN, Job, record
from tests.kit.fakes import TransactionState, identity_of

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
        """See `CommitListener.regions_published`."""
        assert checkpoint_id not in self._job.store.committed, "told behind the mark"
        assert not self._job.broker.ongoing(), "told before all is published"
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


def test_a_start_commits_the_completed_regions_of_a_decision_and_no_carried_one() -> None:
    """What the carried region's record names is another decision's; held work is swept."""
    job = _job()
    done, held = job.pre_commit("done"), job.pre_commit("held")
    _decide(job, 1, _main(done), _carried(held))
    job.start(plan=_TWO)
    assert job.store.committed == {0, 1}
    assert _state(job, done) is TransactionState.COMMITTED
    assert _state(job, held) is TransactionState.ABORTED
    assert job.points.index("after-mark") < job.points.index("before-sweep")


def test_a_start_tells_sinks_how_far_the_regions_are_before_each_mark() -> None:
    """Oldest first, again until it is done, and of every decision that was not marked."""
    job = _job()
    streaming = _Following(job)
    streaming.answers = [CommitOutcome.PENDING]
    first, second = job.pre_commit("1"), job.pre_commit("2")
    job.broker.end(identity_of(second), commit=True)  # so that nothing is open behind the first
    _decide(job, 1, _main(first), _carried())
    _decide(job, 2, _main(second), _carried())
    job.start(plan=_TWO)
    assert [checkpoint_id for checkpoint_id, _ in streaming.told] == [1, 1, 2]
    assert job.store.committed == {0, 1, 2}
    assert streaming.told[0][1] == (
        RegionProgress(
            region="main",
            status=RegionStatus.COMPLETED,
            least_watermark_ms=9,
            operator_states=(_STATE,),
            committables=(first,),
        ),
        RegionProgress(
            region="side", status=RegionStatus.SKIPPED, has_splits=False, least_watermark_ms=3
        ),
    )


def test_a_start_gives_up_in_time_on_a_sink_that_does_not_follow() -> None:
    """With the sink's words; nothing is marked, so the next start goes on there."""
    job = _job()
    _Following(job).answers = [CommitOutcome.PENDING] * 10_000
    _decide(job, 1, _main(), _carried())
    with pytest.raises(UnreachableError, match="a partition is not marked yet"):
        job.start(plan=_TWO)
    assert job.store.committed == {0}


# --- at work --------------------------------------------------------------------------------------


def test_a_commit_leaves_the_carried_regions_work_alone() -> None:
    """Step 5 for the completed ones, tried again until they are committed."""
    job = _job()
    done, held = job.pre_commit("done"), job.pre_commit("held")
    regions = (_main(done), _carried(held))
    io_executor = _io_executor(job)
    reaches = iter([False, True])
    job.sink.may_reach = lambda: next(reaches)
    outcomes = []
    for after_crash in (False, True):
        event = drive(
            io_executor.perform(
                Commit(
                    checkpoint_id=1, committables=(done,), after_crash=after_crash, regions=regions
                )
            )
        )
        assert isinstance(event, CommitReported)
        outcomes += [report.outcome for report in event.reports]
    assert outcomes == [CommitOutcome.PENDING, CommitOutcome.COMMITTED]
    assert _state(job, held) is TransactionState.ONGOING


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


def test_a_region_that_does_not_write_to_a_sink_does_not_count_for_it() -> None:
    """Neither its failure nor its progress is the sink's."""
    job = _job()
    streaming = _Following(job)
    main, side = _TWO.regions
    plan = dataclasses.replace(_TWO, regions=(main, dataclasses.replace(side, sink_ids=())))
    committers = SharedCommitters({"sink": SerialSink(job.sink)}, plan)
    # By a start with other regions: it may have.
    gone = dataclasses.replace(_carried(), region="gone")
    decided = DecidedWork(checkpoint_id=1, regions=(_main(), _carried(), gone))
    detail = committers.failed_detail("sink", decided)
    assert detail is not None
    assert detail.failed_regions == {"gone"}
    _decide(job, 1, _main(job.pre_commit("done")), _carried())
    job.start(plan=plan)
    assert [region.region for region in streaming.told[0][1]] == ["main"]


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


def test_the_detail_names_the_regions_whose_work_is_held() -> None:
    """Several tasks of one region are one region."""
    tasks = tuple(
        FailedTask(subtask_id=number, task_name=name, reason=FailureReason.ERROR)
        for name in ("main", "side")
        for number in range(2)
    )
    detail = RegionCheckpointFailedDetail(
        checkpoint_id=1, scope=FailedScope.BOTH, failed_tasks=tasks
    )
    assert detail.failed_regions == {"main", "side"}


_TASK = FailedTask(subtask_id=0, task_name="main", reason=FailureReason.EXPIRED)


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
    """It must say which region is meant."""
    with pytest.raises(ConfigError):
        FailedTask(subtask_id=subtask_id, task_name=task_name, reason=FailureReason.ERROR)
