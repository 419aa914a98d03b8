"""Which regions a takeover may resume by their plan alone."""

from dataclasses import replace

from sluice.runtime.coordinator.policy.checkpoint_plan import JobPlan, RegionPlan
from sluice.runtime.coordinator.start.takeover import endless_regions

_WRITER = RegionPlan(name="writer")
_READER = RegionPlan(name="reader", bounded=True, upstream=("writer",))
_LAST = RegionPlan(name="last", bounded=True, upstream=("reader",))


def endless(*regions: RegionPlan) -> frozenset[str]:
    return endless_regions(JobPlan(name="job", regions=regions))


def test_a_reader_of_a_repartition_topic_ends_when_its_writers_do() -> None:
    """Its source is bounded in itself."""
    assert endless(_WRITER, _READER, _LAST) == {"writer", "reader", "last"}
    assert not endless(replace(_WRITER, bounded=True), _READER, _LAST)


def test_a_reader_ends_if_one_of_its_writers_does() -> None:
    """Else it might end before that one is read again, to a later end."""
    other = RegionPlan(name="other", bounded=True)
    join = replace(_READER, upstream=("writer", "other"))
    assert endless(_WRITER, other, join) == {"writer"}
