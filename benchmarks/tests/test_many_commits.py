"""Compares parts of many commits."""

import pytest

from benchmarks.iceberg.many_commits import growth


def test_growth_compares_the_first_tenth_with_the_last() -> None:
    same = {"p50_ms": 20.0, "look_up_ms": 5.0, "metadata_bytes": 75_000}
    costs = [20.0, 40.0, *([999.0] * 16), 30.0, 36.0]
    lines = [
        {"commits": 1000 * number, "mean_cpu_ms": cost, **same}
        for number, cost in enumerate(costs, 1)
    ]
    figures = {figure.what.partition(":")[0]: figure for figure in growth(lines)}
    assert figures["processor time of a commit"].runs == pytest.approx([1.1])
    assert figures["processor time of a commit"].is_reached
    assert figures["time of a commit, p50"].runs == [1.0]
