"""A goal of the benchmark counts as reached only after a measurement of it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.measuring.figures import Measured
from benchmarks.peers import waits
from benchmarks.peers.results import Result, Setting
from benchmarks.peers.summary import ratio, rows_by_setting
from benchmarks.report import goals

RACE = Setting(
    kind="throughput", records=1_000_000, value_bytes=100, interval_s=1.0, is_quick=False
)
STEADY = Setting(kind="steady", records=5_000, value_bytes=100, interval_s=0.1, is_quick=False)
OURS, FLINK = "sluice-continuous", "flink-sql"


def run(contender: str, turn: int, setting: Setting, **figures: object) -> Result:
    return Result(
        setting=setting,
        contender=contender,
        label=f"label of {contender}",
        guarantee="exactly once",
        turn=turn,
        sitting="s",
        at="2026-01-02 03:04",
        load_before=0.1,
        figures=figures,
        machine={"processor": "abacus"},
    )


def race(contender: str, rates: Sequence[float], setting: Setting = RACE) -> list[Result]:
    none = dict.fromkeys(("lost", "duplicated", "unexpected", "reordered"), 0)
    figures = {"cpu_s": 2.0, "cpu_with_start_s": 3.0, "peak_bytes": 2**20, "verdict": none}
    return [
        run(contender, turn, setting, rate=rate, second_half_rate=2 * rate, **figures)
        for turn, rate in enumerate(rates)
    ]


def paced(contender: str, p50_s: float, setting: Setting, **more: object) -> Result:
    waited = {"p50_s": p50_s, "p99_s": 2 * p50_s, "max_s": 3 * p50_s}
    return run(contender, 0, setting, **waited, cores=0.5, sent=10, seen=10, **more)


def goal(results: Sequence[Result], figures: Sequence[Measured], what: str) -> goals.Judged:
    return next(one for one in goals.judged(results, figures) if one.what.startswith(what))


def test_a_ratio_is_that_of_medians_and_shows_those_of_the_turns_that_both_ran() -> None:
    rows = rows_by_setting([*race(OURS, [40.0, 60.0, 50.0]), *race(FLINK, [20.0, 10.0])])[RACE]
    found = ratio(rows[0], rows[1], "rate")
    assert found.of_medians == pytest.approx(50 / 15)
    assert found.by_turn == [2.0, 6.0]
    assert found.turns == (3, 2)


def test_a_goal_against_a_peer_is_judged_and_fewer_turns_are_reported() -> None:
    results = [*race(OURS, [230.0] * 3), *race(FLINK, [100.0] * 3)]
    whole = goal(results, [], "1,000,000 records of 100 B")
    assert (whole.is_reached, whole.found) == (True, "2.30 x (2.30 to 2.30), 3 turns")
    fewer = goal(results[:-2], [], "1,000,000 records of 100 B")
    assert "**3 and 1** turns of 3" in fewer.found
    more = goal([*race(OURS, [230.0] * 5), *results[3:]], [], "1,000,000 records of 100 B")
    assert more.found.endswith(", 5 and 3 turns")
    # The start of a peer counts in the first of these lines.
    found = [
        goal(results, [], what).found[:6]
        for what in (
            "CPU-seconds of 1,000,000 records of 100 B without",
            "CPU-seconds of 1,000,000 records of 100 B, both",
        )
    ]
    assert found == ["0.67 x", "1.00 x"]
    slower = goal([*race(OURS, [229.0] * 3), *results[3:]], [], "1,000,000 records of 100 B")
    assert slower.is_reached is False


def test_a_goal_without_a_run_of_either_is_not_judged_and_names_command_and_contender() -> None:
    alone = goal(race(OURS, [1.0] * 3), [], "1,000,000 records of 100 B")
    assert (alone.is_reached, alone.found) == (None, "no run of flink-sql")
    assert alone.command.startswith("python -m benchmarks peers")
    quick = replace(RACE, is_quick=True)
    looks = [*race(OURS, [9.0], quick), *race(FLINK, [1.0], quick)]
    assert goal(looks, [], "1,000,000 records of 100 B").is_reached is None
    failed = replace(race(FLINK, [1.0])[0], figures={}, failure="no jar")
    assert goal([*race(OURS, [1.0]), failed], [], "1,000,000 records").is_reached is None


def test_latency_is_held_only_if_every_one_of_ten_minutes_holds_it() -> None:
    def judged(waits_s: Sequence[float]) -> bool | None:
        minutes = [{"p50_s": one, "p99_s": 0.1, "counted": 5} for one in waits_s]
        results = [paced(OURS, 0.05, STEADY, minutes=minutes)]
        return goal(results, [], "latency at 5,000 records/s, commits every 0.1 s, p50").is_reached

    assert judged([0.08] * 10) is True
    assert judged([0.08] * 9 + [0.095]) is False
    assert judged([0.08] * 9) is None, "the tenth minute is unknown"


def test_a_minute_of_which_nothing_was_seen_holds_nothing() -> None:
    seen = {"p50_s": 0.05, "p99_s": 0.1, "max_s": 0.2, "counted": 5}
    minutes = [*[seen] * 9, {"counted": 0.0}]
    results = [paced(OURS, 0.05, STEADY, minutes=minutes)]
    assert goal(results, [], "latency at 5,000 records/s, commits every 0.1 s, p50").is_reached is (
        False
    )


def test_waits_are_reported_minute_by_minute_and_a_short_rest_belongs_to_the_last() -> None:
    minute = 60_000_000
    made = np.array([0, 1, minute, minute + 1, 2 * minute + 5], dtype=np.int64)
    seen = made + np.array([1, 3, 5, 7, 9], dtype=np.int64) * 1_000_000
    found = waits.by_minute(made, seen, 0, 2 * minute + 10)
    assert [each["counted"] for each in found] == [2, 3]
    assert [each["max_s"] for each in found] == [3.0, 9.0]
    assert found[0]["p50_s"] == 2.0
    assert waits.by_minute(made[:2], seen[:2], 0, 2 * minute)[1] == {"counted": 0.0}
