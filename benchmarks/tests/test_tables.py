"""Tables and figures of the benchmarks."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.jobs.transform_profile import spent_between
from benchmarks.measuring.figures import (
    PARTS_RESULTS,
    Figure,
    command_line,
    log_figures,
    read_figures,
)
from benchmarks.regions import coordinator_load
from benchmarks.scaling.scaling_points import Point


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


@pytest.mark.parametrize("tasks", [1, 50])
def test_the_measured_load_is_committed(tasks: int) -> None:
    figure = coordinator_load.measure(tasks, checkpoints=2, repeat=1)
    assert figure.median > 0


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
