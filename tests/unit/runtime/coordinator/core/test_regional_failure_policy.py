"""Limits of regional checkpoints, and the lines that a regional job logs."""

import io
from dataclasses import replace
from typing import Any

import pytest

from examples.regional import RegionLines
from sluice.runtime.contracts import FailureReason, RegisteredAttempt
from sluice.runtime.coordinator.core.events import (
    Commit,
    EndJob,
    MarkCommitted,
    Progress,
    Publish,
    RegionalStep,
    RegionFailed,
    SweepOrphans,
    Triggered,
)
from sluice.runtime.coordinator.policy.checkpoint_plan import RegionPlan
from sluice.runtime.coordinator.policy.handlers import (
    CheckpointHandler,
    RegionalCheckpointHandler,
)
from sluice.runtime.coordinator.policy.state_tables import State
from sluice.runtime.errors import DeliveryError, StorageUnreachableError
from sluice.runtime.model.checkpoint_record import CheckpointKind, RegionStatus, Verdict
from sluice.runtime.model.splits import Barrier, BatchKey
from sluice.runtime.process.failed_tasks import task_failed
from tests.kit.coordinator.core_driver import FAST, TWO, CoreDriver

_FOUR = tuple(RegionPlan(name=f"r{number}", source_ids=("source",)) for number in range(4))
_REGIONAL = replace(FAST, handler=RegionalCheckpointHandler())


def _fail(driver: CoreDriver, region: str, attempt_id: int = 0) -> None:
    error = RuntimeError("a task failed four times")
    driver.tell(RegionFailed(region=region, attempt_id=attempt_id, error=error))


def _all_closed() -> CoreDriver:
    """Four regions whose checkpoint has expired; none of them has come back yet."""
    driver = CoreDriver(_REGIONAL, regions=_FOUR)
    driver.tick()
    for plan in _FOUR:
        driver.poll(3, region=plan.name)
    driver.tick(10.0)
    assert not any(driver.core.is_live(plan.name, 0) for plan in _FOUR)
    return driver


def test_regions_that_come_back_one_by_one_cost_one_failure() -> None:
    """A checkpoint that could only be given up is not begun: else each region that is back first
    would take it down, until the job has failed too often."""
    driver = _all_closed()
    attempt_ids: dict[str, int] = {}
    for plan in (*_FOUR, _FOUR[0]):
        if plan.name not in attempt_ids:
            attempt_ids[plan.name] = driver.restart(plan.name)
        driver.tick(1.0)
        attempt_id = attempt_ids[plan.name]
        if barrier := driver.poll(3, region=plan.name, attempt_id=attempt_id):
            driver.ack(barrier, region=plan.name, attempt_id=attempt_id)
    verdicts = [published.verdict for published in driver.seen(Publish)]
    assert verdicts.count(Verdict.ABORTED) == 1
    assert not driver.seen(EndJob)
    driver.tick(1.0)
    assert driver.core.last_committed > 0


def test_a_savepoint_waits_for_regions_that_are_coming_back() -> None:
    """It is a global one: begun while a region is away it would be given up at once."""
    driver = CoreDriver(_REGIONAL, regions=TWO)
    driver.tick()
    _fail(driver, "side")
    driver.trigger(CheckpointKind.SAVEPOINT, "somebody")
    assert not driver.seen(Triggered)
    attempt_id = driver.restart("side")
    assert driver.seen(Triggered)
    driver.ack(driver.poll(3))
    barrier = driver.poll(3, region="side", attempt_id=attempt_id)
    driver.ack(barrier, region="side", attempt_id=attempt_id)
    (decided,) = [p for p in driver.seen(Publish) if p.verdict is Verdict.DECIDED]
    assert decided.kind is CheckpointKind.SAVEPOINT


def test_a_savepoint_takes_over_a_barrier_that_is_idle_once_all_are_back() -> None:
    driver = _all_closed()
    for plan in _FOUR[:3]:
        driver.restart(plan.name)
    driver.tick(1.0)
    driver.trigger(CheckpointKind.SAVEPOINT, "somebody")
    assert not driver.seen(Triggered)
    driver.restart("r3")
    assert driver.seen(Triggered)


def test_a_region_that_fails_before_any_barrier_is_counted() -> None:
    """No checkpoint skips it and none is given up: its new attempts would never end."""
    driver = CoreDriver(_REGIONAL, regions=TWO)
    driver.tick()
    attempt_id = 0
    for _ in range(_REGIONAL.tolerable_failures):
        _fail(driver, "side", attempt_id)
        assert not driver.seen(EndJob)
        attempt_id = driver.restart("side")
        driver.tick(1.0)
    _fail(driver, "side", attempt_id)
    assert driver.seen(EndJob)


def test_an_outage_before_any_barrier_is_not_counted() -> None:
    driver = CoreDriver(_REGIONAL, regions=TWO)
    driver.tick()
    attempt_id = 0
    for _ in range(_REGIONAL.tolerable_failures + 2):
        error = StorageUnreachableError("a file system is away", {}, "Wait.")
        driver.tell(RegionFailed(region="side", attempt_id=attempt_id, error=error))
        attempt_id = driver.restart("side")
        driver.tick(1.0)
    assert not driver.seen(EndJob)


def test_restore_by_attempt_a_late_region_at_the_limit_is_stopped_and_cut_smaller() -> None:
    """Its barrier is of an older checkpoint: the one that expires has no part of it."""
    handler = RegionalCheckpointHandler(max_skipped_in_a_row=1, region_timeout_s=1.0)
    settings = replace(FAST, handler=handler, first_epoch_records=100)
    driver = CoreDriver(settings, regions=TWO)
    driver.tick()
    driver.poll(80, region="side")
    driver.ack(driver.poll(3))
    driver.tick(1.0)
    (first,) = driver.seen(Publish)
    assert {r.region: r.status for r in first.regions}["side"] is RegionStatus.SKIPPED
    driver.ack(driver.poll(6))
    driver.tick(1.0)
    assert len(driver.seen(Publish)) == 1, "it waits: side is at its limit"
    driver.tick(9.0)
    assert not driver.core.is_live("side", 0)
    attempt_id = driver.restart("side")
    driver.restart("main")
    driver.tick(1.0)
    cut = driver.asked_cut_of("side", attempt_id)
    assert cut.max_records is not None
    assert cut.max_records < 50


def test_a_decision_says_whom_it_carries_holds_and_releases() -> None:
    handler = RegionalCheckpointHandler(region_timeout_s=1.5)
    driver = CoreDriver(replace(FAST, handler=handler), regions=_FOUR)
    names = [plan.name for plan in _FOUR]

    def checkpoint(end: int, *acknowledging: str) -> Publish:
        driver.tick(1.0)
        barriers = {name: driver.poll(end, region=name) for name in names}
        for name in acknowledging:
            driver.ack(barriers[name] or late.pop(name), region=name)
        late.update({n: b for n, b in barriers.items() if b and n not in acknowledging})
        driver.tick(1.5)
        return driver.seen(Publish)[-1]

    late: dict[str, Barrier] = {}
    assert checkpoint(3, *names).steps == ()
    assert checkpoint(6, "r0", "r1", "r2").steps == (RegionalStep.HOLD,)
    assert checkpoint(9, *names).steps == (RegionalStep.RELEASE,)
    driver.tick(1.0)
    barriers = {name: driver.poll(12, region=name) for name in names}
    _fail(driver, "r3")
    for name in names[:3]:
        driver.ack(barriers[name], region=name)
    assert driver.seen(Publish)[-1].steps == (RegionalStep.SKIP,)


def test_a_checkpoint_that_expires_counts_although_an_outage_is_part_of_it() -> None:
    """The slow region is cut smaller: else it would be too slow with the same range again."""
    settings = replace(_REGIONAL, tolerable_failures=0, first_epoch_records=100)
    driver = CoreDriver(settings, regions=_FOUR)
    driver.tick()
    driver.poll(80, region="r0")
    for name in ("r1", "r2"):
        driver.ack(driver.poll(3, region=name), region=name)
    away = StorageUnreachableError("a file system is away", {}, "Wait.")
    driver.tell(RegionFailed(region="r3", attempt_id=0, error=away))
    driver.tick(10.0)
    (ended,) = driver.seen(EndJob)
    assert "missing=r0" in str(ended.error)


def test_an_outage_does_not_hide_another_failure() -> None:
    """Which of two failed regions comes first by name says nothing."""
    driver = CoreDriver(replace(_REGIONAL, tolerable_failures=0), regions=TWO)
    driver.tick()
    driver.poll(3)
    driver.poll(3, region="side")
    away = StorageUnreachableError("a file system is away", {}, "Wait.")
    driver.tell(RegionFailed(region="main", attempt_id=0, error=away))
    assert not driver.seen(EndJob)
    _fail(driver, "side")
    assert driver.seen(EndJob)


def _starting(handler: CheckpointHandler) -> tuple[CoreDriver, int]:
    """``side`` has failed, and its new attempt, of that attempt, has begun."""
    driver = CoreDriver(replace(FAST, handler=handler), regions=TWO)
    driver.tick()
    driver.poll(3)
    driver.poll(3, region="side")
    _fail(driver, "side")
    if handler.is_regional:
        driver.ack(driver.poll(3))
        return driver, driver.restart("side")
    driver.restart("main")
    return driver, driver.restart("side")


def _decided(driver: CoreDriver) -> list[Publish]:
    return [found for found in driver.seen(Publish) if found.verdict is Verdict.DECIDED]


def test_the_others_epochs_do_not_wait_until_a_new_attempt_is_at_work() -> None:
    """Its query takes seconds to its first barrier."""
    driver, attempt_id = _starting(RegionalCheckpointHandler())
    sweeps = len(driver.seen(SweepOrphans))
    for end in (6, 9):
        driver.tick(1.0)
        driver.ack(driver.poll(end))
    assert [[r.status for r in p.regions] for p in _decided(driver)[-2:]] == [
        [RegionStatus.COMPLETED, RegionStatus.SKIPPED]
    ] * 2
    (task,) = driver.seen(Commit)[-1].failed_tasks
    assert (task.region, task.reason) == ("side", FailureReason.ERROR)
    assert len(driver.seen(SweepOrphans)) == sweeps + 1

    driver.tick(1.0)
    barrier = driver.poll(12)
    late = driver.poll(12, region="side", attempt_id=attempt_id)
    driver.ack(barrier)
    assert len(_decided(driver)) == 3, "now it is at work, and waited for"
    driver.ack(late, region="side", attempt_id=attempt_id)
    assert {r.status for r in _decided(driver)[-1].regions} == {RegionStatus.COMPLETED}


_TRACE = (
    "Job aborted due to stage failure: Task 3 in stage 5.0 failed 4 times, most recent failure: "
    "Lost task 3.1 in stage 5.0 (TID 12) (host executor 1): Traceback (most recent call last):\n"
    "ValueError: no number"
)


@pytest.mark.parametrize(
    ("error", "subtask_id", "task_name", "message"),
    [
        (
            DeliveryError("the broker refused records", {"task": "2.0"}, "Look at the topic."),
            *(2, "task 2.0", "DeliveryError: the broker refused records"),
        ),
        (
            task_failed("a query failed", RuntimeError(_TRACE), region="side", attempt_id=0),
            *(3, "task 3.1 in stage 5.0 (TID 12)", "StreamError: a query failed"),
        ),
        (
            StorageUnreachableError("HDFS is away", {}, "Wait."),
            0,
            "side",
            "StorageUnreachableError",
        ),
        (ValueError("first\nsecond"), 0, "side", "ValueError: first"),
    ],
)
def test_a_failed_region_is_reported_with_its_task_and_the_first_line_of_the_cause(
    error: Exception, subtask_id: int, task_name: str, message: str
) -> None:
    driver = CoreDriver(_REGIONAL, regions=TWO)
    driver.tick()
    barrier = driver.poll(3)
    driver.poll(3, region="side")
    driver.tell(RegionFailed(region="side", attempt_id=0, error=error))
    driver.ack(barrier)
    (task,) = driver.seen(Commit)[-1].failed_tasks
    assert (task.region, task.reason) == ("side", FailureReason.ERROR)
    assert (task.subtask_id, task.task_name) == (subtask_id, task_name)
    assert task.message.startswith(message)
    assert "\n" not in task.message
    marked = [p.failed_tasks for p in driver.seen(Progress) if p.state is State.MARKED]
    assert marked == [(task,)]


def test_an_expired_region_is_reported_with_its_delay() -> None:
    handler = RegionalCheckpointHandler(region_timeout_s=4.0)
    driver = CoreDriver(replace(FAST, handler=handler), regions=TWO)
    driver.tick()
    barrier = driver.poll(3)
    driver.poll(3, region="side")
    driver.ack(barrier)
    driver.tick(4.0)
    (task,) = driver.seen(Commit)[-1].failed_tasks
    assert (task.region, task.task_name, task.reason) == ("side", "side", FailureReason.EXPIRED)
    assert task.message == "has not acknowledged 4.0 s after the barrier"


def test_a_new_attempt_that_fails_before_it_is_at_work_is_swept_again() -> None:
    driver, attempt_id = _starting(RegionalCheckpointHandler())
    sweeps = len(driver.seen(SweepOrphans))
    driver.tick(1.0)
    driver.poll(6)
    _fail(driver, "side", attempt_id)
    driver.ack(driver.poll(6))
    assert len(driver.seen(SweepOrphans)) == sweeps + 1


def test_one_more_failure_beside_attempts_that_start_costs_nobody_else_an_epoch() -> None:
    """Three of four are more than may be skipped: those that start are waited for, until
    half of all have acknowledged."""
    driver = CoreDriver(_REGIONAL, regions=_FOUR)
    driver.tick(1.0)
    attempt_ids = dict.fromkeys((plan.name for plan in _FOUR), 0)
    for name in ("r1", "r2"):
        _fail(driver, name)
    for name in ("r1", "r2"):
        attempt_ids[name] = driver.restart(name)
    driver.tick(1.0)
    driver.ack(driver.poll(3, region="r0"), region="r0")
    _fail(driver, "r3")
    assert driver.core.is_live("r0", 0)
    assert not _decided(driver)
    barrier = driver.poll(3, region="r1", attempt_id=attempt_ids["r1"])
    driver.ack(barrier, region="r1", attempt_id=attempt_ids["r1"])
    assert len(_decided(driver)) == 1
    assert {task.region for task in driver.seen(Commit)[-1].failed_tasks} == {"r2", "r3"}


def _progress(checkpoint_id: int, state: State, **more: Any) -> Progress:
    return Progress(
        checkpoint_id=checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        requested_by="interval",
        state=state,
        **more,
    )


def test_a_line_for_each_checkpoint_and_the_attempts_at_any_end() -> None:
    """A region that failed after the last checkpoint counts, too."""
    out = io.StringIO()
    lines = RegionLines(out)
    once = {"a": 1, "b": 1}
    with lines:
        lines.on_progress(_progress(7, State.DECIDED, attempts=once))
        lines.on_progress(
            _progress(
                7,
                State.MARKED,
                attempts=once,
                skipped={"b": FailureReason.ERROR},
                records=5,
                marked_s=0.25,
            )
        )
        lines.on_progress(_progress(8, State.ALIGNING, attempts={"a": 1, "b": 2}))
    assert out.getvalue().splitlines() == [
        "checkpoint=7 completed=a skipped=b records=5 seconds=0.250",
        "region=a attempts=1",
        "region=b attempts=2",
        "last_checkpoint=7",
    ]


def test_a_run_without_a_checkpoint_says_so() -> None:
    """The run ended before its first checkpoint."""
    out = io.StringIO()
    with RegionLines(out):
        pass
    assert out.getvalue() == "last_checkpoint=none\n"


def test_abort_before_skip_the_sweep_waits_for_the_mark_of_the_failed_regions_last_batch() -> None:
    """Until then a sweep leaves what a failed task of that batch has open: readers would wait
    for it as soon as the next decision is committed."""
    driver = CoreDriver(replace(_REGIONAL, max_concurrent=2), regions=TWO)
    driver.tick()
    driver.ack(driver.poll(3))
    side = driver.poll(3, region="side")
    lost = BatchKey(region="side", attempt_id=0, batch_id=1)
    driver.core.register(RegisteredAttempt(batch=lost, operator_id="sink", resource="lost"))
    driver.auto = False
    driver.ack(side, region="side")
    driver.answer(driver.held.pop())
    (commit,) = driver.held
    driver.tick(1.0)
    barrier = driver.poll(6)
    _fail(driver, "side")
    driver.ack(barrier)
    assert not driver.seen(SweepOrphans), "a sweep would not take it"

    driver.auto = True
    driver.held.clear()
    driver.answer(commit)
    order = [type(found) for found in driver.log if isinstance(found, MarkCommitted | SweepOrphans)]
    assert order[:2] == [MarkCommitted, SweepOrphans]
    assert [found.resource for found in driver.core.sweep_view("job").orphans] == ["lost"]
    assert driver.core.last_committed == 2
