"""The figures of killed leaders, and of a coordinator's cost, from what a reader saw."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.leading import coordinator_cost, leader_kills
from benchmarks.leading.leader_kills import KilledLeader, Sitting
from benchmarks.measuring.visibility import Seen


def _sitting(gaps_s: list[float], *, ha: str = "lease", faults: int = 0) -> Sitting:
    return Sitting(
        ha=ha,
        timeout_s=None,
        kills=[KilledLeader(gap_s=gap_s, led_s=gap_s - 1) for gap_s in gaps_s],
        faults=faults,
        restarted=0,
        stray_leaders=0,
        sent=1_000,
    )


def test_the_gap_is_the_longest_pause_that_overlaps_the_effects_of_a_kill() -> None:
    seen = Seen(at_s=[0.0, 9.0, 10.0, 16.0, 17.0, 29.0], offsets=[], made_s=[])
    assert seen.longest_pause_s(10.5, 17.0) == 12.0, "the first record after the effects counts"
    assert seen.longest_pause_s(10.5, 16.5) == 6.0
    assert seen.longest_pause_s(9.5, 9.6) == 1.0
    assert Seen().longest_pause_s(0.0, 9.0) == 0.0


def test_gaps_of_all_sittings_are_judged_together() -> None:
    sittings = [_sitting([5.0] * 49 + [14.0]), _sitting([5.0] * 49 + [12.0])]
    figure = leader_kills.figures(sittings)[3]
    assert (figure.runs, figure.most, figure.is_reached) == ([12.0], 13.0, True)
    few = leader_kills.figures([_sitting([5.0, 14.0])])[3]
    assert (few.runs, few.is_reached) == ([14.0], False), "of few kills the longest counts"
    quick = leader_kills.figures([_sitting([6.5], ha="zookeeper", faults=3)])
    assert [each.is_reached for each in quick[:4]] == [False, True, True, False]


def test_sittings_of_other_settings_and_truncated_lines_do_not_count(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert leader_kills.read_sittings(kept, "lease", None) == []
    lines = [_sitting([5.0]), _sitting([4.0], ha="zookeeper"), _sitting([6.0])]
    text = "".join(json.dumps(asdict(each)) + "\n" for each in lines)
    kept.write_text(text[:-2])
    assert leader_kills.read_sittings(kept, "lease", None) == lines[:1]
    assert leader_kills.read_sittings(kept, "lease", 3.0) == []


def test_an_epoch_is_as_old_as_its_newest_record_when_it_becomes_visible() -> None:
    seen = Seen(
        at_s=[1.0, 1.01, 2.0, 2.02, 3.0],
        offsets=list(range(5)),
        made_s=[0.2, 0.9, 1.2, 1.95, 2.1],
    )
    assert list(coordinator_cost.epoch_ages(seen, 0.0)) == pytest.approx([0.1, 0.05])
    assert list(coordinator_cost.epoch_ages(seen, 1.5)) == pytest.approx([0.05])
