"""Repartition topics of a restored job: the rows in flight that it copies."""

import json

import pytest

from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.coordinator.start.topic_restores import copies_of, copy_settings
from sluice.runtime.model.checkpoint_record import OperatorNode, RegionRecord
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.savepoint.keyed_recompute import IN_FLIGHT
from tests.kit.coordinator.starting_job import record

_GRAPH = (OperatorNode(operator_id="topic", name="counts-topic", kind="source", upstream=()),)
_TOPIC = "counts-topic.repartition_topic"


def _split(partition: int, end: int, topic_id: str) -> SplitRange:
    return SplitRange(
        source_id="topic",
        topic="old",
        topic_id=topic_id,
        partition=partition,
        start_offset=end,
        end_offset=end,
    )


@pytest.mark.parametrize("is_recomputed", [False, True])
def test_rows_in_flight_begin_where_the_old_job_has_read(is_recomputed: bool) -> None:
    """The splits of a recomputed savepoint are those of the new topic: they begin at 0."""
    splits = (_split(0, 70, "id"), _split(1, 80, "id"))
    settings = {_TOPIC: "old"}
    if is_recomputed:
        splits = tuple(_split(partition, 0, "") for partition in range(5))
        positions = {"topic": {"topic_id": "id", "offsets": {"0": 70, "1": 80}}}
        settings[IN_FLIGHT] = json.dumps(positions)
    region = RegionRecord(region="counts", attempt_id=0, batch_id=3, splits=splits)
    saved = record(9, graph=_GRAPH, regions=(region,), settings=settings)
    plan = JobPlan(
        name="job", regions=(RegionPlan(name="counts"),), graph=_GRAPH, settings={_TOPIC: "new"}
    )
    copies = copies_of(record(0, settings=copy_settings(saved, plan)))
    copy = copies["topic"]
    assert (copy.topic, copy.topic_id) == ("old", "id")
    assert copy.offsets == {0: 70, 1: 80}


def test_a_job_that_has_copied_nothing_passes_its_copy_on() -> None:
    """It was killed after its checkpoint 0: the rows are in the topic of the job before it."""
    region = RegionRecord(region="counts", attempt_id=0, batch_id=3, splits=(_split(0, 70, "id"),))
    saved = record(9, graph=_GRAPH, regions=(region,), settings={_TOPIC: "old"})

    def plan(topic: str) -> JobPlan:
        regions = (RegionPlan(name="counts"),)
        return JobPlan(name="job", regions=regions, graph=_GRAPH, settings={_TOPIC: topic})

    taken = {_TOPIC: "second", **copy_settings(saved, plan("second"))}
    new = RegionRecord(region="counts", attempt_id=0, batch_id=None, splits=(_split(0, 0, ""),))
    again = copy_settings(record(0, graph=_GRAPH, regions=(new,), settings=taken), plan("third"))
    copy = copies_of(record(0, settings=again))["topic"]
    assert (copy.topic, copy.topic_id, copy.offsets) == ("old", "id", {0: 70})
