"""How ranges become read tasks: the cases of Spark's ``KafkaOffsetRangeCalculatorSuite``."""

import pytest

from sluice.connectors.kafka.source.splits import split_evenly
from sluice.runtime.model.splits import SplitRange

Bounds = list[tuple[int, int]]


def ranges(*bounds: tuple[int, int]) -> list[SplitRange]:
    return [
        SplitRange(
            source_id="s",
            topic=f"t{n}",
            topic_id="id",
            partition=1,
            start_offset=start,
            end_offset=end,
        )
        for n, (start, end) in enumerate(bounds, 1)
    ]


SKEWED = {"t1": [(1, 5)], "t2": [(1, 7), (7, 14), (14, 21)]}


@pytest.mark.parametrize(
    ("min_partitions", "given", "tasks"),
    [
        pytest.param(None, [(1, 2)], {"t1": [(1, 2)]}, id="without minPartitions"),
        pytest.param(None, [(1, 2), (1, 1)], {"t1": [(1, 2)]}, id="empty, without minPartitions"),
        pytest.param(3, [(1, 2)] * 3, {f"t{n}": [(1, 2)] for n in (1, 2, 3)}, id="n to n"),
        pytest.param(4, [(1, 5)], {"t1": [(n, n + 1) for n in range(1, 5)]}, id="1 to n"),
        pytest.param(4, [(1, 5), (1, 21)], SKEWED, id="skewed"),
        pytest.param(4, [(1, 5), (1, 21), (1, 1)], SKEWED, id="skewed, empty"),
        pytest.param(
            4, [(1, 1), (1, 21)], {"t2": [(1, 6), (6, 11), (11, 16), (16, 21)]}, id="empty"
        ),
        pytest.param(
            4,
            [(1, 2), (1, 1001)],
            {"t1": [(1, 2)], "t2": [(1, 334), (334, 667), (667, 1001)]},
            id="very skewed",
        ),
        pytest.param(
            1, [(1, 5), (1, 21)], {"t1": [(1, 5)], "t2": [(1, 21)]}, id="fewer than partitions"
        ),
        pytest.param(3, [(1, 11)], {"t1": [(1, 4), (4, 7), (7, 11)]}, id="inexact multiple"),
        pytest.param(
            6,
            [(0, 10), (0, 10), (0, 1)],
            {"t1": [(0, 3), (3, 6), (6, 10)], "t2": [(0, 3), (3, 6), (6, 10)], "t3": [(0, 1)]},
            id="no offset is dropped",
        ),
        pytest.param(
            9,
            [(0, 10_000), (0, 15_000), (0, 20_000)],
            {
                f"t{n}": [(at, at + 5_000) for at in range(0, 5_000 * (n + 1), 5_000)]
                for n in (1, 2, 3)
            },
            id="3 large",
        ),
        pytest.param(
            6,
            [(0, 500), (0, 12_000), (0, 15_001)],
            {
                "t1": [(0, 500)],
                "t2": [(0, 6_000), (6_000, 12_000)],
                "t3": [(0, 5_000), (5_000, 10_000), (10_000, 15_001)],
            },
            id="1 small and 2 large",
        ),
        pytest.param(
            6,
            [(0, 1), (0, 1), (0, 10_000)],
            {
                "t1": [(0, 1)],
                "t2": [(0, 1)],
                "t3": [(at, at + 2_500) for at in range(0, 10_000, 2_500)],
            },
            id="2 small and 1 large",
        ),
        pytest.param(4, [(0, 7)], {"t1": [(0, 1), (1, 3), (3, 5), (5, 7)]}, id="remainder last"),
    ],
)
def test_min_partitions_makes_the_tasks_of_sparks_source(
    min_partitions: int | None, given: Bounds, tasks: dict[str, Bounds]
) -> None:
    found: dict[str, Bounds] = {}
    for part in split_evenly(ranges(*given), min_partitions=min_partitions):
        found.setdefault(part.topic, []).append((part.start_offset, part.end_offset))
    assert found == tasks
