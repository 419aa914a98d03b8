"""The axes of the scaling benchmark grow one thing each, and its tables hide nothing."""

from dataclasses import asdict

import pytest

from benchmarks.scaling import AXES, Point, points, tables


@pytest.mark.parametrize("axis", AXES)
def test_an_axis_grows_one_thing_and_leaves_the_rest(axis: str) -> None:
    field, values = AXES[axis]
    found = list(points(axis, 1_000_000))
    assert [point.grown for point in found] == list(values)
    plain = asdict(Point(axis=axis, records=0))
    for point in found:
        changed = {name for name, value in asdict(point).items() if plain[name] != value}
        assert changed <= {field, "records"}


def test_large_records_are_fewer_and_keys_are_all_used() -> None:
    sizes = {point.value_bytes: point.records for point in points("sizes", 1_000_000)}
    assert (sizes[100], sizes[100_000]) == (1_000_000, 5_000)
    assert {p.keys: p.records for p in points("keys", 1_000_000)}[10_000_000] == 10_000_000


def test_a_table_has_medians_and_what_is_missing() -> None:
    point = Point(axis="tasks", records=1_000, tasks=4)
    figures = {
        "cpu_us": 2.5,
        "epochs": 3,
        "epoch_s": 1.0,
        "longest_s": 2.0,
        "peak_bytes": 2**20,
        "missing": 1,
    }
    lines = [
        {"point": asdict(point), "figures": {**figures, "rate": rate}, "load_before": 0.5}
        for rate in (10.0, 30.0, 20.0)
    ]
    row = tables(lines).splitlines()[-1]
    assert row == "| 4 | 1,000 | 20 | 2.50 | 3 | 1.00 | 2.00 | 1 MiB | 3 | 0.5 |"
