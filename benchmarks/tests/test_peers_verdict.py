"""The verdict of a race finds every fault, and the log of results is read back whole."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import records
from benchmarks.peers.results import Log, Setting, read_results
from benchmarks.peers.summary import rows_by_setting
from benchmarks.peers.verdict import Verdict, judge

_STAMP = 1_000


def ints(*values: int) -> records.Ints:
    return np.array(values, dtype=np.int64)


def verdict(*outputs: list[tuple[int, int]], shares: tuple[int, ...] = (3, 2)) -> Verdict:
    """The verdict on output partitions with (input partition, number), a second apart."""
    found = {
        place: (
            ints(*(p for p, _ in held)),
            ints(*(n for _, n in held)),
            ints(*(_STAMP * at for at in range(len(held)))),
        )
        for place, held in enumerate(outputs)
    }
    return judge(found, shares, foreign=0)


def test_a_whole_output_is_clean_however_it_is_spread() -> None:
    found = verdict([(0, 0), (1, 0), (0, 2)], [(0, 1), (1, 1)])
    assert (found.found, found.faults) == (5, 0)


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        ([(0, 0), (0, 1), (1, 0), (1, 1)], {"lost": 1}),
        ([(0, 0), (0, 1), (0, 1), (0, 2), (1, 0), (1, 1)], {"duplicated": 1}),
        ([(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)], {"unexpected": 1}),
        ([(0, 0), (0, 1), (0, 2), (2, 0), (1, 0), (1, 1)], {"unexpected": 1}),
        ([(0, 0), (0, -1), (0, 1), (0, 2), (1, 0), (1, 1)], {"unexpected": 1, "reordered": 1}),
        ([(0, 1), (0, 0), (0, 2), (1, 0), (1, 1)], {"reordered": 1}),
    ],
)
def test_each_fault_is_counted(output: list[tuple[int, int]], fault: dict[str, int]) -> None:
    found = verdict(output)
    names = ("lost", "duplicated", "unexpected", "reordered")
    assert {name: getattr(found, name) for name in names} == dict.fromkeys(names, 0) | fault


def test_an_output_with_nothing_in_it_has_lost_everything() -> None:
    assert (verdict().lost, verdict().found, verdict([]).lost) == (5, 0, 5)


def test_rates_count_from_the_first_append_and_from_the_middle_one() -> None:
    found = verdict([(0, n) for n in range(11)], shares=(11,))
    assert found.rate == pytest.approx(11 / 10)
    assert found.second_half_rate == pytest.approx(5.5 / 5)


def test_a_record_says_which_one_it_is_and_when_it_was_made() -> None:
    value = records.paced_value(7, 123, 100)
    partitions, numbers, made_us = records.heads([value, b"x" * records.HEAD_BYTES])
    assert len(value) == 100
    assert partitions.tolist() == [7, -1]
    assert numbers.tolist() == [123, -1]
    assert made_us[0] > 1_600_000_000_000_000
    assert records.tail_of(100) == value[records.HEAD_BYTES :] + b"!"


# --- results and report ---------------------------------------------------------------------------

_RACE = Setting(kind="throughput", records=1_000, value_bytes=100, interval_s=1.0, is_quick=False)
_PACE = Setting(kind="latency", records=5_000, value_bytes=100, interval_s=1.0, is_quick=False)
_OURS = ("sluice-chained", "Sluice, chained", "exactly once")
_PEER = ("spark", "Spark | its own", "at least once")


def race_figures(rate: float, **faults: int) -> dict[str, object]:
    kinds = dict.fromkeys(("lost", "duplicated", "unexpected", "reordered"), 0) | faults
    return {
        "rate": rate,
        "second_half_rate": 2 * rate,
        "cpu_s": 1.0,
        "cpu_with_start_s": 3.0,
        "peak_bytes": 2**20,
        "verdict": kinds,
    }


def filled(path: Path) -> Log:
    log = Log(path, {"processor": "abacus"})
    for turn, rate in enumerate((100.0, 300.0, 200.0)):
        log.add(_RACE, _OURS, turn, load_before=0.1, figures=race_figures(rate))
    log.add(_RACE, _PEER, 0, load_before=0.1, figures=race_figures(900.0, duplicated=7))
    log.add(_RACE, ("quix", "Quix", "exactly once"), 0, load_before=0.1, failure="no wheel\nlog")
    paced = {"p50_s": 0.5, "p99_s": 1.0, "max_s": 1.5, "cores": 0.3, "sent": 10, "seen": 9}
    log.add(_PACE, _OURS, 0, load_before=0.1, figures=paced)
    return log


def test_what_was_measured_is_not_measured_again_but_what_failed_is(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    filled(path)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"setting": {"kind": "thr')  # a kill in the middle of a line
    again = Log(path, {})
    assert again.has(_RACE, "sluice-chained", 2)
    assert not again.has(_RACE, "sluice-chained", 3)
    assert not again.has(_RACE, "quix", 0)
    again.add(_RACE, ("quix", "Quix", "exactly once"), 0, load_before=0.1, figures=race_figures(1))
    results = read_results([path])
    assert [one.contender for one in results][-2:] == ["sluice-chained", "quix"]
    assert all(json.loads(line) for line in path.read_text("utf-8").splitlines())
    rows = {row.contender: row for row in rows_by_setting(results)[_RACE]}
    assert rows["quix"].runs
    assert not rows["quix"].failure


def test_numbers_of_a_partitioned_input_are_a_step_apart() -> None:
    stamps = np.array([1, 2, 3], np.int64)
    found = {0: (np.array([1, 1, 1], np.int64), np.array([1, 5, 9], np.int64), stamps)}
    assert judge(found, [0, 3, 0, 0], 0, every=4).faults == 0
    assert judge(found, [0, 4, 0, 0], 0, every=4).lost == 1
    assert judge(found, [0, 3, 0, 0], 0, every=3).unexpected == 2
