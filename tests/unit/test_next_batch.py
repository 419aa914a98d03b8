"""Batches without records of a query that keeps state."""

from typing import cast

import pytest
from pyspark.sql import DataFrame

from runtime.model import SplitRange
from runtime.spark.next_batch import repeats_its_result, wants_another


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
