"""Batches without records of a query that keeps state."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sluice.runtime.model.splits import SplitRange
from sluice.runtime.spark.microbatch.stateful_batches import (
    late_rows,
    repeats_its_result,
    wants_another,
)


def split(start: int, end: int) -> SplitRange:
    """A range of one partition."""
    return SplitRange(
        source_id="s", topic="in", topic_id="id", partition=0, start_offset=start, end_offset=end
    )


@pytest.mark.parametrize(
    ("mode", "ranges", "repeats"),
    [
        ("complete", [(3, 3), (4, 4)], True),
        ("complete", [(3, 3), (4, 5)], False),
        ("append", [(3, 3)], False),
        ("update", [(3, 3)], False),
    ],
)
def test_a_whole_result_is_not_written_again_where_nothing_has_changed_it(
    mode: str, ranges: list[tuple[int, int]], repeats: bool
) -> None:
    """A batch that a sink has asked for, or that was due at a start, gives no rows then."""
    assert repeats_its_result(mode, [split(*each) for each in ranges]) is repeats


def test_a_query_that_nobody_has_yet_may_want_a_batch() -> None:
    """Its first one may run before its start has returned; one more that gives nothing is right."""
    assert wants_another(None, cast(DataFrame, None))


class Execution:
    """As much as is asked of the run of a query that has just run a batch: its tracker knows the
    watermark of the batch before, its plan what the batch's own records have seen."""

    def __init__(self, *, seen_ms: int, due_ms: int) -> None:
        self.watermark_ms = 1000
        self.seen_ms = seen_ms
        self.due_ms = due_ms

    def streamingQuery(self) -> "Execution":
        return self

    def lastExecution(self) -> "Execution":
        return self

    def executedPlan(self) -> int:
        return self.seen_ms

    def watermarkTracker(self) -> "Execution":
        return self

    def updateWatermark(self, plan: int) -> None:
        self.watermark_ms = max(self.watermark_ms, plan)

    def currentWatermark(self) -> int:
        return self.watermark_ms

    def shouldRunAnotherBatch(self, said: dict[str, Any]) -> bool:
        return int(said.get("batchWatermarkMs", 0)) >= self.due_ms


class Jvm:
    """Spark's classes, by whatever packages they are in."""

    def __getattr__(self, name: str) -> "Jvm":
        return self

    def apply(self, said: str) -> Any:
        return json.loads(said)


@pytest.mark.parametrize(("seen_ms", "is_wanted"), [(7000, True), (3000, False), (0, False)])
def test_a_plan_is_asked_with_the_watermark_that_its_own_records_have_moved(
    seen_ms: int, *, is_wanted: bool
) -> None:
    """With the one before, a window that they have closed would be given by the batch of the next
    record: where none comes, never."""
    query = SimpleNamespace(_jsq=Execution(seen_ms=seen_ms, due_ms=5000))
    frame = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=SimpleNamespace(_jvm=Jvm())))
    wanted = wants_another(cast(StreamingQuery, query), cast(DataFrame, frame))
    assert wanted is is_wanted


class Plan:
    """A physical plan, as py4j shows it."""

    def __init__(self, late: int | None, *children: "Plan") -> None:
        self._late, self._children = late, children

    def metrics(self) -> Any:
        metric = SimpleNamespace(value=lambda: self._late)
        found = SimpleNamespace(isDefined=lambda: self._late is not None, get=lambda: metric)
        return SimpleNamespace(get=lambda name: name == "numRowsDroppedByWatermark" and found)

    def children(self) -> Any:
        return SimpleNamespace(size=lambda: len(self._children), apply=self._children.__getitem__)


def test_late_rows_of_all_stateful_operators_are_counted() -> None:
    """With the watermark that they were later than; nothing before the query has begun."""
    plan = Plan(None, Plan(2, Plan(None)), Plan(3))
    execution = SimpleNamespace(
        lastExecution=lambda: SimpleNamespace(executedPlan=lambda: plan),
        watermarkTracker=lambda: SimpleNamespace(currentWatermark=lambda: 7000),
    )
    query = SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: execution))
    assert late_rows(cast(StreamingQuery, query)) == (5, 7000)
    assert late_rows(None) == (0, 0)
