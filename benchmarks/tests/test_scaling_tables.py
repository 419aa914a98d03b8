"""An axis of the scaling benchmark changes one setting, and costs are compared within an axis."""

from dataclasses import asdict

import pytest

from benchmarks.scaling.scaling_points import AXES, Point, points
from benchmarks.scaling.scaling_tables import tables


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


def test_state_has_no_points_in_the_continuous_engine_and_all_else_has() -> None:
    assert not list(points("keys", 1_000, "continuous"))
    for axis in AXES.keys() - {"keys"}:
        both = [list(points(axis, 1_000, engine)) for engine in (None, "continuous")]
        assert [point.grown for point in both[0]] == [point.grown for point in both[1]]


def test_a_continuous_task_is_a_region_and_its_epochs_have_no_bound() -> None:
    assert Point(axis="tasks", records=1, tasks=4, engine="continuous").arguments() == [
        *("--mode", "chained", "--tasks", "4", "--interval", "1.0"),
        *("--regions", "4", "--engine", "continuous"),
    ]
    assert "--max-records" in Point(axis="tasks", records=1, tasks=4).arguments()


def line(point: Point, **figures: float) -> dict[str, object]:
    given = {
        "rate": 20.0,
        "cpu_us": 2.5,
        "broker_us": 1.0,
        "epochs": 3,
        "epoch_s": 1.0,
        "longest_s": 2.0,
        "peak_bytes": 2**20,
        "missing": 0,
        **figures,
    }
    return {
        "point": asdict(point),
        "figures": given,
        "load_before": 0.5,
        "machine": {"processor": "abacus"},
        "at": "2026-01-02 10:00",
    }


def test_cost_of_a_unit_of_work_is_set_against_the_first_row_and_the_one_before() -> None:
    """A record for most axes; a byte where records grow."""
    epochs = [Point(axis="epochs", records=10, interval_s=every_s) for every_s in (10.0, 1.0, 0.1)]
    lines = [line(point, cpu_us=us) for point, us in zip(epochs, (4.0, 2.0, 1.0), strict=True)]
    rows = [row for row in tables(lines).splitlines() if row.startswith("| ")][2:]
    assert [row.split(" | ")[5:7] for row in rows] == [
        ["1.00 x", "1.00 x"],
        ["2.00 x", "2.00 x"],
        ["4.00 x", "2.00 x"],
    ], "in the order of the axis, not of the runs"
    sizes = [Point(axis="sizes", records=10, value_bytes=size) for size in (10, 100)]
    lines = [line(point, cpu_us=us) for point, us in zip(sizes, (2.0, 5.0), strict=True)]
    last = tables(lines).splitlines()[-3]
    assert last.split(" | ")[3:6] == ["5.00", "50.0", "0.25 x"]
