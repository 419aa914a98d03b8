"""Key groups of repartition topics: a start divides rows as the state of their topic is divided."""

from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from sluice.connectors.kafka.repartition.repartition_messages import partitions_of_keys
from sluice.runtime.contracts import JobTopic, TopicStart
from sluice.runtime.coordinator.policy.assignment import assignment_of
from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan
from sluice.runtime.coordinator.start.recovery import first_regions
from sluice.runtime.coordinator.start.rescaling import redistributed
from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.model.checkpoint_record import RegionRecord
from sluice.runtime.model.splits import SplitRange
from sluice.runtime.model.state.keyed_state import KeyedState, SplitState
from tests.kit.coordinator.starting_job import PLAN, record

_SMALL, _LARGE = "small-topic", "large-topic"
_PARTITIONS = {_SMALL: 2, _LARGE: 128}
_KEYS = pa.array([b"\x01key-%d" % number for number in range(1_000)], pa.large_binary())


def _plan(regions: int) -> JobPlan:
    return replace(
        PLAN,
        regions=tuple(
            replace(
                PLAN.regions[0],
                name=f"{source}-{at}",
                source_ids=(source,),
                keyed=True,
                upstream=("writer",),
            )
            for source in _PARTITIONS
            for at in range(regions)
        ),
    )


def _splits(source: str) -> tuple[SplitRange, ...]:
    return tuple(
        SplitRange(
            source_id=source,
            topic=source,
            topic_id="",
            partition=partition,
            start_offset=0,
            end_offset=0,
        )
        for partition in range(_PARTITIONS[source])
    )


def _start(source: str, regions: Iterable[RegionRecord]) -> TopicStart:
    readers = [region for region in regions if region.region.startswith(source)]
    return TopicStart(readers=readers, is_first=False)


def _state(region: RegionRecord, max_parallelism: int) -> RegionRecord:
    """The region after an epoch."""
    splits = tuple(
        SplitState(source_id=s.source_id, topic=s.topic, partition=s.partition)
        for s in region.splits
    )
    state = KeyedState(max_parallelism=max_parallelism, splits=splits)
    return replace(region, batch_id=0, keyed_state=state)


def _decided(plan: JobPlan, *, without_rows: Collection[str] = ()) -> tuple[RegionRecord, ...]:
    """The regions after the first epoch. Those without splits or rows have had no barrier."""
    first = first_regions(plan, {source: _splits(source) for source in _PARTITIONS})
    return tuple(
        _state(region, _start(region.splits[0].source_id, first).max_parallelism)
        if region.splits and region.region not in without_rows
        else region
        for region in first
    )


def _owners(start: TopicStart) -> list[int]:
    topic = JobTopic(partitions=start.partitions, max_parallelism=start.max_parallelism)
    return partitions_of_keys(_KEYS, topic).tolist()


@pytest.mark.parametrize("without_rows", [(), (f"{_SMALL}-1",), (f"{_SMALL}-0", f"{_SMALL}-1")])
@pytest.mark.parametrize("now", [4, 1, 5])
def test_keys_stay_in_their_partitions_over_a_restart(
    now: int, without_rows: tuple[str, ...]
) -> None:
    """There are more regions than partitions of the small topic. A region without state gets the
    tables of all topics, and not their numbers of key groups."""
    plan = _plan(4)
    decided = _decided(plan, without_rows=without_rows)
    before = record(1, regions=decided, assignment=assignment_of(decided))
    again, _ = redistributed(before, _plan(now), attempt_id=2)
    for source, most in ((_SMALL, 1_024), (_LARGE, 2_048)):
        start = _start(source, again)
        assert (start.partitions, start.max_parallelism) == (_PARTITIONS[source], most)
        assert _owners(start) == _owners(_start(source, decided))
    assert not np.array_equal(_owners(_start(_SMALL, again)), _owners(_start(_LARGE, again)))


def test_the_number_of_a_reader_without_splits_does_not_count() -> None:
    decided = _decided(_plan(4))
    found = tuple(r if r.splits else _state(r, 2_048) for r in decided)
    assert _start(_SMALL, found).max_parallelism == 1_024


def test_state_of_one_topic_that_was_divided_by_two_numbers_is_refused() -> None:
    decided = tuple(
        _state(r, 2_048) if r.region == f"{_SMALL}-1" else r for r in _decided(_plan(2))
    )
    with pytest.raises(DamagedCheckpointError, match="key groups name=1024,2048"):
        _ = _start(_SMALL, decided).max_parallelism
    before = record(1, regions=decided, assignment=assignment_of(decided))
    with pytest.raises(DamagedCheckpointError, match="key groups"):
        redistributed(before, _plan(1), attempt_id=2)
