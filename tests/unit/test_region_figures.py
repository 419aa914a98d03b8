"""What the benchmark of regions makes of deaths, of the coordinator's lines and of a reader."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bookkeeping, region_lives
from benchmarks.mortal_sink import PRE_COMMITTED, Death, Doom
from benchmarks.visibility import Paced, Seen


def line(state: str, at_s: float, **changes: object) -> Mapping[str, Any]:
    """A change of a checkpoint whose barrier was half a second before."""
    lives = {"a": 1, "b": 1}
    given = {"state": state, "at_s": at_s, "carried": [], "regions": 2, "attempts": lives}
    return {**given, "decided_s": 0.5, "marked_s": 0.5, **changes}


def death(region: str, at_s: float) -> Death:
    return Death(
        region=region, moment=PRE_COMMITTED, generation=1, at_s=at_s, lived_s=0.1, ranges=()
    )


def test_a_region_that_died_may_be_away_until_it_is_back_and_the_others_may_not() -> None:
    lines = [
        line("decided", 1.0),
        line("decided", 2.0, carried=["a"]),
        line("decided", 3.0, carried=["a", "b"]),
        line("decided", 4.0),
        line("decided", 5.0, carried=["a"]),
        line("aborted", 6.0, regions=0),
        line("aborted", 7.0, regions=2),
    ]
    deaths = [death("a", 1.8)]
    assert region_lives.epochs_lost_by_others(lines[:2], deaths) == 0
    assert region_lives.epochs_lost_by_others(lines[:4], deaths) == 1
    assert region_lives.epochs_lost_by_others(lines[:6], deaths) == 2
    assert region_lives.epochs_lost_by_others(lines, deaths) == 4


def test_a_region_is_back_with_a_checkpoint_that_began_behind_its_death() -> None:
    lines = [
        line("marked", 2.0),
        line("marked", 3.0, carried=["a"]),
        line("decided", 4.0),
        line("marked", 4.5),
    ]
    assert region_lives.back_after_s(lines, death("a", 1.75)) == 2.75
    assert region_lives.back_after_s(lines, death("a", 1.25)) == 0.75
    assert region_lives.back_after_s(lines, death("a", 4.25)) is None


def test_lives_are_counted_against_deaths() -> None:
    lines = [line("marked", 1.0), line("marked", 2.0, attempts={"a": 3, "b": 2})]
    assert region_lives.extra_lives(lines, [death("a", 1.5)]) == 2


def test_a_reader_s_sight_is_judged_record_by_record() -> None:
    whole = Seen(at_s=[1.0, 1.0, 2.0], offsets=[0, 1, 2], made_s=[0.5, 0.75, 1.5])
    assert whole.faults(3) == 0
    assert whole.faults(4) == 1
    assert whole.faults(2) == 1
    assert Seen(offsets=[0, 2, 1]).faults(3) == 1
    assert Seen(offsets=[0, 2, 1]).faults(3, ordered=False) == 0
    assert Seen(offsets=[0, 1, 1]).faults(2) == 1
    assert (whole.between(1.0, 2.0), whole.seen_s(2), whole.seen_s(7)) == (2, 2.0, None)
    assert whole.waits_s(1.0, 2.0) == [0.5, 0.25]


def test_a_pace_gives_each_partition_its_share_in_order() -> None:
    pace = Paced(3, per_s=1e9)
    pace()
    list(pace._due(8))  # noqa: SLF001 - without the clock
    assert pace.sent == 8
    assert [pace.sent_to(partition) for partition in range(3)] == [3, 3, 2]


_DIES = """
import sys
from benchmarks.mortal_sink import Death, Doom
from pathlib import Path
doom = Doom(Path(sys.argv[1]))
assert doom.take("b") is None
moment = doom.take("a")
assert moment is not None and doom.take("a") is None
doom.die(Death(region="a", moment=moment, generation=1, at_s=1.0, lived_s=0.5, ranges=[(0, 1, 2)]))
"""


def test_a_death_is_given_to_one_task_and_noted_before_it(tmp_path: Path) -> None:
    doom = Doom(tmp_path)
    assert doom.deaths() == []
    doom.ask("a", PRE_COMMITTED)
    assert doom.is_asked("a")
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", _DIES, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    assert not doom.is_asked("a")
    (noted,) = doom.deaths()
    assert (noted.region, noted.moment, list(noted.ranges)) == ("a", PRE_COMMITTED, [[0, 1, 2]])


def test_bookkeeping_costs_milliseconds_for_each_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first look at what `python -m benchmarks bookkeeping` measures, with room for a machine
    that is ten times slower."""
    monkeypatch.setattr(bookkeeping, "_CHECKPOINTS", 30)
    monkeypatch.setattr(bookkeeping, "_WARM", 5)
    cpu, wall = bookkeeping.measure(repeat=1, regions=(8,))
    assert 0 < cpu.median < 50
    assert wall.median > 0
