"""What a job may be restored from, and Spark's operators of a transform and of a checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from sluice.runtime.coordinator.start.restoring import RestoredState
from sluice.runtime.coordinator.start.translation import TakenState
from sluice.runtime.errors import ConfigError, WrongJobError
from sluice.runtime.job.job import Job
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.spark.frames.plan_analysis import PlanAnalysis
from sluice.runtime.spark.run.restore_request import require_fitting
from tests.kit.coordinator.starting_job import NEVER_WRITTEN


def restored(*operators: str) -> RestoredState:
    state = replace(NEVER_WRITTEN, operators=tuple(enumerate(operators)))
    before = RegionRecord(region="old", attempt_id=1, batch_id=7, state=state)
    taken = TakenState(before=before, region="orders", sources={}, topics={})
    return RestoredState(taken=taken, now=replace(before, region="orders"))


def fitting(kinds: tuple[str, ...], *operators: str) -> None:
    require_fitting({"orders": PlanAnalysis(stateful_kinds=kinds)}, [restored(*operators)])


@pytest.mark.parametrize(
    ("kinds", "operators"),
    [
        (("Aggregate",), ("stateStoreSave",)),
        (("Aggregate",), ("sessionWindowStateStoreSaveExec",)),
        (("Deduplicate", "Aggregate"), ("stateStoreSave", "dedupe")),
        (("OfALaterSpark",), ("anything",)),
    ],
)
def test_the_operators_of_the_same_transform_fit(
    kinds: tuple[str, ...], operators: tuple[str, ...]
) -> None:
    fitting(kinds, *operators)


@pytest.mark.parametrize(
    ("kinds", "operators"),
    [
        (("Deduplicate",), ("stateStoreSave",)),
        (("Aggregate", "Aggregate"), ("stateStoreSave",)),
        (("Aggregate",), ("stateStoreSave", "dedupe")),
        (("Aggregate", "Aggregate"), ("stateStoreSave", "dedupe")),
    ],
)
def test_other_operators_are_refused_with_both_lists(
    kinds: tuple[str, ...], operators: tuple[str, ...]
) -> None:
    with pytest.raises(WrongJobError) as caught:
        fitting(kinds, *operators)
    where = caught.value.args[1]
    assert (where["checkpoint_has"], where["transform_has"]) == (
        ",".join(operators),
        ",".join(kinds),
    )


def job(**arguments: Any) -> Job:
    return Job("j", cast(SparkSession, None), checkpoint_dir="/c", **arguments)


def test_a_path_is_a_uri_and_a_number_is_a_checkpoint() -> None:
    assert job(restore_from=7).spec.restore_from == 7
    assert job(restore_from="/s/one").spec.restore_from == "file:///s/one"
    assert job(restore_from=Path("/s/one")).spec.restore_from == "file:///s/one"
    rules = job(restore_from="/s", match="strict", topic_map={"a": "b"}).spec.restore_rules
    assert (rules.by_name, rules.topic_map) == (False, {"a": "b"})


@pytest.mark.parametrize("origin", ["", "7", "s3://bucket/savepoint"])
def test_what_is_no_savepoint_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError):
        job(restore_from=origin)


@pytest.mark.parametrize(
    "rules", [{"topic_map": {"a": "b"}}, {"match": "strict"}, {"allow_non_restored_state": True}]
)
@pytest.mark.parametrize("origin", [None, 7])
def test_rules_without_a_restore_are_refused(origin: int | None, rules: dict[str, Any]) -> None:
    """They would have no effect."""
    with pytest.raises(ConfigError, match="need a restore from a URI"):
        job(restore_from=origin, **rules)
