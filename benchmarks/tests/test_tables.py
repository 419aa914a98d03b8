"""Tables and figures of the benchmarks."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.jobs.transform_profile import part_of_process, part_of_thread, spent_between
from benchmarks.measuring.figures import (
    PARTS_RESULTS,
    Figure,
    command_line,
    log_figures,
    read_figures,
)
from benchmarks.regions import coordinator_load
from benchmarks.scaling.scaling_points import AXES, Point, points
from benchmarks.scaling.scaling_tables import tables
from benchmarks.tuning.tuning_tables import tables as tuning_tables


def figure(**changes: object) -> Figure:
    given: dict[str, Any] = {"what": "rate", "runs": [3.0, 1.0, 2.0], "unit": "records/s"}
    return Figure(**{**given, **changes})


@pytest.mark.parametrize(
    ("least", "most", "reached"),
    [(None, None, None), (2.0, None, True), (2.1, None, False), (None, 1.9, False), (1, 3, True)],
)
def test_a_goal_is_judged_by_the_median(
    least: float | None, most: float | None, reached: bool | None
) -> None:
    assert figure().median == 2.0
    assert figure(least=least, most=most).is_reached is reached


@pytest.mark.parametrize("where", [["--results", "/a/b"], ["--results=/a/b"], []])
def test_a_logged_command_says_how_to_measure_and_not_where_it_was_logged(where: list[str]) -> None:
    """A command does not name a path of one machine."""
    command = command_line(["messages", *where, "--repeat", "5"])
    assert command == "python -m benchmarks messages --repeat 5"
    assert not any("--results" in each.command for each in read_figures(PARTS_RESULTS))


def test_of_logged_figures_the_newest_run_of_each_part_and_engine_is_read(tmp_path: Path) -> None:
    """A run with other figures replaces the earlier run as a whole."""
    path = tmp_path / "build" / "parts.jsonl"
    where = {"part": "kills", "command": "c", "load_before": 0.5, "machine": {"cores": "2"}}
    log_figures(path, [figure(), figure(what="old")], engine="continuous", **where)
    log_figures(path, [figure(what="other")], engine="micro-batch", **where)
    log_figures(path, [figure(most=3.0, details=["a"])], engine="continuous", **where)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"part": "ki')  # a kill in the middle of a line
    found = read_figures(path)
    assert [(one.engine, one.figure.what) for one in found] == [
        ("continuous", "rate"),
        ("micro-batch", "other"),
    ]
    assert found[0].figure.is_reached
    assert found[0].machine == {"cores": "2"}
    assert read_figures(tmp_path / "absent") == []


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


@pytest.mark.parametrize("tasks", [1, 50])
def test_the_measured_load_is_committed(tasks: int) -> None:
    figure = coordinator_load.measure(tasks, checkpoints=2, repeat=1)
    assert figure.median > 0


def line_tuning(value: str, turn: int, cpu_s: float, load: str = "100 B") -> dict[str, object]:
    """A run of one setting."""
    figures = {"cpu_s_per_million": cpu_s, "per_s": 1e6 / cpu_s, "memory_bytes": 2.0**20}
    return {"setting": "linger.ms", "value": value, "load": load, "turn": turn, "figures": figures}


def test_a_slow_turn_is_not_held_against_a_value() -> None:
    lines = [
        line_tuning("default", 0, 1.0),
        line_tuning("0", 0, 1.5),
        line_tuning("0", 1, 6.0),
        line_tuning("default", 1, 4.0),
    ]
    *_, default, other = tuning_tables(lines).splitlines()
    assert default.startswith("| `linger.ms` | default | 2 | 2.50 (1.00 to 4.00) |  |")
    assert other.startswith("| `linger.ms` | 0 | 2 | 3.75 (1.50 to 6.00) | 1.50 (1.50 to 1.50) x |")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("Executor task l", "JVM: tasks"),
        ("Executor task i", "JVM: tasks"),
        ("stream executio", "JVM: query (planning, logs)"),
        ("C2 CompilerThre", "JVM: compiling"),
        ("Sweeper thread", "JVM: others"),
    ],
)
def test_threads_are_reported_by_what_linux_keeps_of_their_names(name: str, part: str) -> None:
    assert part_of_thread(name) == part


def test_workers_are_reported_by_their_environment() -> None:
    daemon = ["python", "-m", "sluice.runtime.spark.fast_start.python_daemon", "pyspark.worker"]
    assert part_of_process(daemon, {"SLUICE_WORKERS": "sink"}) == "Python: tasks that write"
    assert part_of_process(daemon, {}) == "Python: tasks that read"
    runner = ["python", "-m", "pyspark.sql.streaming.python_streaming_source_runner"]
    assert part_of_process(runner, {}) == "Python: source runner"


def test_what_has_ended_meanwhile_takes_no_time_back() -> None:
    """The time of an ended thread counts in the sum of its JVM, and in no living thread."""
    before = {
        ("JVM", 1): 10.0,
        ("JVM: tasks", 11): 6.0,
        ("JVM: others", 12): 1.0,
        ("Python: planners", 2): 5.0,
    }
    after = {("JVM", 1): 14.0, ("JVM: others", 12): 2.0, ("JVM: tasks", 13): 2.0}
    assert spent_between(before, after) == {"JVM: tasks": 2.0, "JVM: others": 2.0}
