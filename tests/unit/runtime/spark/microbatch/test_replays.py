"""A batch that Spark runs once more reports how far it has come."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from pyspark import SparkContext

from sluice.runtime.errors import FencedError
from sluice.runtime.spark.microbatch.stateful_batches import ReplayProgress, tasks_done
from tests.kit.waiting import wait_for


def test_what_is_done_is_reported_when_it_has_changed() -> None:
    """At once, and then each other number; what cannot be found out is none."""
    looks: Iterator[int | OSError] = iter([3, 3, OSError("the session is away"), 4])
    told: list[int] = []
    seen = threading.Event()

    def done() -> int:
        found = next(looks, None)
        if isinstance(found, OSError):
            raise found
        if found is None:
            seen.set()
            return 4
        return found

    with ReplayProgress(done, told.append, interval_s=0.001):
        wait_for(seen.is_set, poll_s=0.001)
    assert told == [3, 4]


def test_nothing_is_reported_an_attempt_that_is_over() -> None:
    """It is refused once."""
    told: list[int] = []

    def refuse(done: int) -> None:
        told.append(done)
        raise FencedError("a newer life", {}, "Stop.")

    with ReplayProgress(lambda: len(told), refuse, interval_s=0.001) as replay:
        wait_for(lambda: not replay.is_reporting, poll_s=0.001)
    assert told == [0]


def test_the_tasks_of_all_jobs_of_a_query_are_counted() -> None:
    stages: dict[int, Any] = {
        7: SimpleNamespace(numCompletedTasks=2),
        8: SimpleNamespace(numCompletedTasks=3),
        9: None,
    }
    jobs = {1: SimpleNamespace(stageIds=[7, 8]), 2: None, 3: SimpleNamespace(stageIds=[8, 9])}
    tracker = SimpleNamespace(
        getJobIdsForGroup={"run-1": [1, 2, 3]}.get, getJobInfo=jobs.get, getStageInfo=stages.get
    )
    context = SimpleNamespace(
        getLocalProperty={"spark.jobGroup.id": "run-1"}.get, statusTracker=lambda: tracker
    )
    assert tasks_done(cast(SparkContext, context))() == 5


def test_nobody_looks_any_more_once_the_batch_has_run() -> None:
    looks: list[int] = []

    def done() -> int:
        looks.append(1)
        return 0

    with ReplayProgress(done, lambda _done: None, interval_s=3600.0) as replay:
        wait_for(lambda: looks, poll_s=0.001)
    wait_for(lambda: len(looks) > 100 or not replay.is_reporting, poll_s=0.001)
    assert not replay.is_reporting
    assert len(looks) == 1
