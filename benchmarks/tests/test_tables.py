"""Tables and figures of the benchmarks."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.jobs.transform_profile import spent_between
from benchmarks.keyed import keyed_tables
from benchmarks.measuring.figures import (
    PARTS_RESULTS,
    Figure,
    Measured,
    command_line,
    log_figures,
    read_figures,
)
from benchmarks.peers.results import Result, Setting
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


def test_keyed_tables_compare_each_backend_with_flink_s_own() -> None:
    """Growth has a line for each point."""
    results = [
        keyed_result("sluice-memory", 300.0),
        keyed_result("flink-hashmap", 100.0),
        keyed_result("flink-rocksdb", 1.0),
    ]
    grown = [
        measured("memory, keys 10,000: updates", 5_000.0),
        measured("memory, keys 10,000: barrier, the slowest", 12.0),
        measured("memory, keys 10,000: bytes written over changed", 2.5),
    ]
    text = keyed_tables.markdown(results, grown)
    assert "| **sluice-memory** | 300 | 3.00 x |" in text
    assert "| memory, keys 10,000 | 5,000 | 12 | 2.5 |" in text


def keyed_result(name: str, rate: float) -> Result:
    setting = Setting(kind="count-10k", records=10, value_bytes=100, interval_s=1.0, is_quick=False)
    verdict = {"found": 10, "lost": 0, "duplicated": 0, "unexpected": 0, "reordered": 0}
    return Result(
        setting=setting,
        contender=name,
        label=name,
        guarantee="exactly once",
        turn=0,
        sitting="s",
        at="2026-01-01 00:00",
        load_before=0.1,
        figures={"rate": rate, "cpu_s": 1.0, "peak_bytes": 2**20, "verdict": verdict},
        machine={"cores": "2"},
    )


def measured(what: str, value: float) -> Measured:
    return Measured(
        run="r",
        part="keyed-growth",
        engine="",
        command="c",
        at="2026-01-01 00:00",
        load_before=0.1,
        machine={},
        figure=Figure(what=what, runs=[value], unit="x"),
    )
