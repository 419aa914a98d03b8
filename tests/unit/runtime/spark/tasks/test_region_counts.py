"""What a region's functions have read and where they failed: counted on record, and limited."""

from dataclasses import replace
from typing import Any, cast

import pytest

from sluice.runtime.coordinator.policy.failure_policy import PERMANENT_ERRORS
from sluice.runtime.errors import ConfigError, FencedError, PoisonRecordsError
from sluice.runtime.functions.function_run import ChainedFunction
from sluice.runtime.functions.record_counts import decode_totals
from sluice.runtime.model.acknowledgement import RecordCounts
from sluice.runtime.model.on_error import DeadLetters
from sluice.runtime.spark.tasks.region_tasks import TaskResult
from tests.kit.coordinator.region_simulation import RegionWorld, barrier

PARSE = ChainedFunction(
    name="parse",
    operator_id="id-parse",
    function=lambda batch: batch,
    policy=DeadLetters(topic="dead"),
)


def counted(read: int, dead_lettered: int) -> TaskResult:
    """A task's answer."""
    counts = RecordCounts(read=read, dead_lettered=dead_lettered)
    return TaskResult(
        counts={"id-parse": counts},
        examples={"id-parse": "in-0@3 ValueError: no"},
        failed_rows={"id-parse": dead_lettered},
    )


def totals(world: RegionWorld) -> RecordCounts:
    """What the last acknowledged record says in all."""
    assert world.coordinator.region is not None
    (entry,) = world.coordinator.region.operator_states
    assert entry.operator_id == "id-parse"
    return decode_totals(entry)


def test_counts_of_the_tasks_travel_with_the_acknowledgement() -> None:
    """Of this batch, by the function's name; in all, in the region's record, where an attempt
    that was not decided leaves nothing."""
    world = RegionWorld(functions=(PARSE,))
    world.coordinator.refusal = FencedError("not wanted", {}, "Restart.")
    with pytest.raises(RuntimeError):
        world.batch(1, barrier(), results=(counted(5, 1),))
    world.coordinator.refusal = None
    world.batch(1, barrier(), results=(counted(5, 1), counted(7, 2)))
    assert world.coordinator.counts[-1] == {"parse": RecordCounts(read=12, dead_lettered=3)}
    assert totals(world) == RecordCounts(read=12, dead_lettered=3)
    world.batch(2, barrier(8), results=(counted(1, 1),))
    assert world.coordinator.counts[-1] == {"parse": RecordCounts(read=1, dead_lettered=1)}
    assert totals(world) == RecordCounts(read=13, dead_lettered=4)


def test_a_batch_without_tasks_keeps_the_totals() -> None:
    """A sink may ask for one when there are no records."""
    world = RegionWorld(functions=(PARSE,))
    world.batch(1, barrier(), results=(counted(5, 1),))
    world.batch(2, barrier(8), results=())
    assert world.coordinator.counts[-1] == {"parse": RecordCounts()}
    assert totals(world) == RecordCounts(read=5, dead_lettered=1)


def test_functions_without_a_policy_leave_the_record_as_it_was() -> None:
    """So an older version still reads it."""
    world = RegionWorld(functions=(replace(PARSE, policy=None),))
    world.batch(1, barrier())
    assert world.coordinator.counts == [{}]
    assert world.coordinator.region is not None
    assert world.coordinator.region.operator_states == ()


def test_an_epoch_with_too_many_failures_is_never_acknowledged() -> None:
    """Over all its tasks; the error says what failed first, for the dead letters are gone."""
    world = RegionWorld(functions=(PARSE,))
    with pytest.raises(RuntimeError, match="PoisonRecordsError"):
        world.batch(1, barrier(), results=(counted(100, 70), counted(50, 50)))
    [(what, error)] = cast(list[Any], world.coordinator.told)
    assert what == "failed"
    assert isinstance(error, PoisonRecordsError)
    assert isinstance(error, PERMANENT_ERRORS)
    assert "read=150 failed=120" in str(error)
    assert "in-0@3 ValueError: no" in str(error)


def test_a_batch_of_the_pipelines_own_dead_letters_is_not_run() -> None:
    """The topic may match a source's pattern."""
    policy = DeadLetters(topic="in")
    world = RegionWorld(functions=(replace(PARSE, policy=policy),))
    with pytest.raises(RuntimeError, match="ConfigError"):
        world.batch(1, barrier())
    [(what, error)] = cast(list[Any], world.coordinator.told)
    assert what == "failed"
    assert isinstance(error, ConfigError)
