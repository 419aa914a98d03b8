"""The load that the benchmark puts on the coordinator is committed."""

import pytest

from benchmarks.regions import coordinator_load


@pytest.mark.parametrize("tasks", [1, 50])
def test_the_measured_load_is_committed(tasks: int) -> None:
    figure = coordinator_load.measure(tasks, checkpoints=2, repeat=1)
    assert figure.median > 0
