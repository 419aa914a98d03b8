"""The transforms of a pipeline are one streaming query, which has one output mode."""

from typing import Any

import pytest
from pyspark.sql import DataFrame

from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.pipeline import Pipeline
from sluice.runtime.job.job import Stream
from sluice.runtime.spark.frames.region_frames import output_mode
from tests.unit.runtime.job.test_job_pieces import StubSource


def same(frame: DataFrame) -> DataFrame:
    """No change."""
    return frame


def mode_of(*stated: str | None) -> str:
    pipeline = Pipeline(StubSource())
    stream = Stream(pipeline)
    for mode in stated:
        stream.transform(same, output_mode=mode)
    return output_mode(pipeline)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ([], "update"),
        ([None], "update"),
        (["complete"], "complete"),
        (["complete", None], "complete"),
        ([None, "append"], "append"),
        (["append", None, "Append"], "append"),
    ],
)
def test_the_mode_that_any_transform_states_is_the_querys(
    stated: list[str | None], expected: str
) -> None:
    assert mode_of(*stated) == expected


def test_transforms_that_state_different_modes_are_refused_where_they_are_written() -> None:
    """Running in either one's mode would give the other's rows wrong, without a word."""
    stream = Stream(Pipeline(StubSource()))
    stream.transform(same, name="counts", output_mode="complete").transform(same)
    with pytest.raises(ConfigError, match="counts: complete, tops: update") as refused:
        stream.transform(same, name="tops", output_mode="update")
    assert "another pipeline" in str(refused.value)


@pytest.mark.parametrize("given", ["upsert", "", 5])
def test_a_mode_that_does_not_exist_is_refused(given: Any) -> None:
    """Spark would say so when the query starts."""
    match = f"output_mode={given} known=append, update, complete"
    with pytest.raises(ConfigError, match=match):
        mode_of(given)
