"""Figures of the region benchmark: from kills, the coordinator's log lines and a reader."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring.visibility import Seen
from benchmarks.regions import region_deaths
from benchmarks.regions.mortal_sink import ANY_TIME, PRE_COMMITTED, Death, Doom
from tests.kit.waiting import PATIENCE_S


def line(state: str, at_s: float, **changes: object) -> Mapping[str, Any]:
    """A change of a checkpoint whose barrier was half a second before."""
    attempts = {"a": 1, "b": 1}
    named = changes.get("skipped", ())
    assert isinstance(named, list | tuple)
    changes["skipped"] = dict.fromkeys(named, "error")
    given = {"state": state, "at_s": at_s, "checkpoint": 7, "regions": 2, "attempts": attempts}
    return {**given, "decided_s": 0.5, "marked_s": 0.5, "reason": "", **changes}


def death(region: str, at_s: float) -> Death:
    return Death(
        region=region, moment=PRE_COMMITTED, attempt_id=1, at_s=at_s, lived_s=0.1, ranges=()
    )


def lost(lines: Sequence[Mapping[str, Any]], deaths: Sequence[Death]) -> int:
    return sum(one.count for one in region_deaths.lost_epochs(lines, deaths))


def restarted(region: str, at_s: float, why: str) -> Mapping[str, Any]:
    """A warning as `sluice.runtime.spark.run.attempt_supervisor` writes it."""
    message = f"region restarted: region={region} attempt_id=3 cause={why}"
    return {"at_s": at_s, "message": message}


def test_a_region_that_died_may_be_away_until_it_is_back_and_the_others_may_not() -> None:
    lines = [
        line("decided", 1.0),
        line("decided", 2.0, skipped=["a"]),
        line("decided", 3.0, skipped=["a", "b"]),
        line("decided", 4.0),
        line("decided", 5.0, skipped=["a"]),
        line("aborted", 6.0, regions=0),
        line("aborted", 7.0, regions=2),
    ]
    deaths = [death("a", 1.8)]
    assert lost(lines[:2], deaths) == 0
    assert lost(lines[:4], deaths) == 1
    assert lost(lines[:6], deaths) == 2
    assert lost(lines, deaths) == 4


def test_a_region_is_back_with_a_checkpoint_that_began_after_its_death() -> None:
    lines = [
        line("marked", 2.0),
        line("marked", 3.0, skipped=["a"]),
        line("decided", 4.0),
        line("marked", 4.5),
    ]
    assert region_deaths.back_after_s(lines, death("a", 1.75)) == 2.75
    assert region_deaths.back_after_s(lines, death("a", 1.25)) == 0.75
    assert region_deaths.back_after_s(lines, death("a", 4.25)) is None


def test_a_death_explains_one_new_attempt_of_its_region() -> None:
    events = [restarted("a", 2.0, "killed"), restarted("a", 5.0, "late"), restarted("b", 6.0, "x")]
    assert region_deaths.unasked_ends(events, [death("a", 1.5), death("b", 5.0)]) == [
        "a ended by itself: late"
    ]
    assert region_deaths.begun_after_s(events, death("a", 1.5)) == 0.5
    assert region_deaths.begun_after_s(events, death("b", 7.0)) is None


def test_a_reader_s_sight_is_judged_record_by_record() -> None:
    whole = Seen(at_s=[1.0, 1.0, 2.0], offsets=[0, 1, 2], made_s=[0.5, 0.75, 1.5])
    assert whole.faults(3) == 0
    assert whole.faults(4) == 1
    assert whole.faults(2) == 1
    assert Seen(offsets=[0, 2, 1]).faults(3) == 1
    assert Seen(offsets=[0, 2, 1]).faults(3, ordered=False) == 0
    assert Seen(offsets=[0, 1, 1]).faults(2) == 1
    assert (whole.between(1.0, 2.0), whole.back_s(0.75), whole.back_s(1.5)) == (2, 2.0, None)
    assert whole.waits_s(1.0, 2.0) == [0.5, 0.25]


_DIES = """
import sys
from benchmarks.regions.mortal_sink import Death, Doom
from pathlib import Path
doom = Doom(Path(sys.argv[1]))
assert doom.take("b") is None
moment = doom.take("a")
assert moment is not None and doom.take("a") is None
doom.die(Death(region="a", moment=moment, attempt_id=1, at_s=1.0, lived_s=0.5, ranges=[(0, 1, 2)]))
"""


def test_a_death_is_given_to_one_task_and_noted_before_it(tmp_path: Path) -> None:
    doom = Doom(tmp_path)
    assert doom.deaths() == []
    doom.request("a", PRE_COMMITTED)
    assert doom.is_requested("a")
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", _DIES, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    assert not doom.is_requested("a")
    (noted,) = doom.deaths()
    assert (noted.region, noted.moment) == ("a", PRE_COMMITTED)
    assert [[*one] for one in noted.ranges] == [[0, 1, 2]]


_LIVES = """
import sys, time
from benchmarks.regions.mortal_sink import Doom
from pathlib import Path
Doom(Path(sys.argv[1])).register("a", 4)
print("lives", flush=True)
time.sleep(300)
"""


def test_the_process_of_a_continuous_region_is_killed_from_outside_and_no_other(
    tmp_path: Path,
) -> None:
    doom = Doom(tmp_path)
    assert not doom.strike("a"), "no process is alive yet"
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", _LIVES, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
    ) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == b"lives\n"
        assert doom.strike("a")
        assert task.wait(PATIENCE_S) == -signal.SIGKILL
    (noted,) = doom.deaths()
    assert (noted.region, noted.moment, noted.attempt_id) == ("a", ANY_TIME, 4)
    assert noted.lived_s > 0
    assert not doom.strike("a"), "it is gone"
    attempt = tmp_path / "attempt-a"
    text = attempt.read_text("utf-8").replace(str(task.pid), str(os.getpid()))
    attempt.write_text(text, "utf-8")
    assert not doom.strike("a"), "this process has that number, and began at another time"
