"""The stages of a task: each moment goes to one of them, or to none."""

import pytest

from sluice.runtime.functions.stage_timer import WRITING_STAGES, StageTimer
from sluice.runtime.model.acknowledgement import StageTimes
from tests.kit.fakes import ManualClock


def test_each_stage_has_its_time_and_idle_time_has_none() -> None:
    clock = ManualClock()
    timer = StageTimer(clock=clock)
    for stage in ("read_s", "function_s", "write_s", None, "function_s", "flush_s"):
        timer.enter(stage)
        clock.advance(1.0)
    assert timer.times() == StageTimes(read_s=1.0, function_s=2.0, write_s=1.0, flush_s=1.0)


def test_a_task_behind_sparks_plan_knows_when_it_writes() -> None:
    clock = ManualClock()
    timer = StageTimer(WRITING_STAGES, clock=clock)

    def batches() -> object:
        clock.advance(5.0)
        yield 1

    for _ in timer.reading(batches()):  # type: ignore[arg-type]  # a generator
        timer.enter("write_s")
        clock.advance(2.0)
        timer.enter("function_s")
    assert timer.times() == StageTimes(write_s=2.0, flush_s=0.0)


def test_the_slowest_task_counts() -> None:
    slow = StageTimes(write_s=3.0)
    tasks = [StageTimes(read_s=1.0, write_s=1.5), None, slow]
    assert StageTimes.slowest(tasks) is slow
    assert StageTimes.slowest([None]) is None
    assert slow.sum_s == pytest.approx(3.0)
