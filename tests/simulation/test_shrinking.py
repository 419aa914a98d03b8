"""A seed stands for one schedule for ever, and one that breaks a promise is reported briefly."""

import os
import subprocess
import sys

import pytest

from tests.kit.waiting import PATIENCE_S
from tests.simulation.__main__ import main
from tests.simulation.mutations import MUTATIONS
from tests.simulation.profile import Profile
from tests.simulation.profiles import PROFILES, profile_of
from tests.simulation.schedule import Kind
from tests.simulation.shrink import Failure, find, shrink, story
from tests.simulation.world import World

_TRACE = """
import logging
import sys
logging.disable(logging.CRITICAL)
from tests.simulation.profiles import profile_of
from tests.simulation.world import World
for seed in range(20)[:: int(sys.argv[1])]:
    world = World(seed, profile_of(seed)[1])
    world.run()
    print(seed, hash(tuple(move.seed for move in world.made)), world.clock(), world.watch.seen,
          [(r.checkpoint_id, r.verdict.value, r.requested_by) for r in world.history])
"""


def _first_failure(profile: Profile, *, seeds: int = 200) -> Failure:
    found = next(filter(None, (find(seed, profile) for seed in range(seeds))), None)
    assert found is not None, f"no failure in {seeds} worlds"
    return found


def _broken(name: str, monkeypatch: pytest.MonkeyPatch) -> Failure:
    mutation, rough, _ = MUTATIONS[name]
    mutation(monkeypatch)
    return _first_failure(Profile(**{"processes": 8, **rough}))


@pytest.mark.parametrize("name", ["mark before commit", "settle nothing at start"])
def test_a_broken_rule_is_reported_in_a_few_moves(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The story breaks the same promise, in at most a dozen moves, and names who did what."""
    failure = _broken(name, monkeypatch)

    small = shrink(failure)

    assert small.what == failure.what
    assert len(small.moves) <= 12
    told = story(small)
    assert told.startswith("1. ")
    assert "slot 1: decided by session-" in told
    assert told.splitlines()[-1].startswith(f"ViolationError: {small.what}")


def test_given_moves_make_the_same_world_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the moves are drawn or read, the same promise breaks in the same words."""
    failure = _broken("sweep open batches", monkeypatch)

    again = find(failure.seed, failure.profile, failure.moves)

    assert again.moves == failure.moves
    assert again.detail.partition(";")[0] == failure.detail.partition(";")[0]


def test_a_seed_is_the_same_schedule_in_every_process() -> None:
    """Also where Python hashes text differently, for no set's order decides anything; and whatever
    was run before it: one of a million is run again alone."""
    forwards, backwards = (
        subprocess.run(
            [sys.executable, "-c", _TRACE, step],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        ).stdout.splitlines()
        for seed, step in (("0", "1"), ("7", "-1"))
    )
    assert len(forwards) == 20
    assert forwards == backwards[::-1]


def test_the_command_runs_schedules_and_reports_what_they_did(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whole worlds of two processes: counts of moves, checkpoints and faults, and no failure."""
    assert main(["--schedules", "60", "--workers", "2"]) == 0
    told = capsys.readouterr().out
    assert "60 of 60 schedules" in told
    assert "0 failures" in told
    assert "checkpoints by fencing" in told


def test_the_command_prints_seed_and_story_of_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTATIONS["sweep open batches"][0](monkeypatch)
    assert main(["--schedules", "200", "--workers", "1"]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    seed, what = first.removeprefix("seed ").partition(";")[0].split(": ", 1)

    assert main(["--seed", seed, "--whole"]) == 1

    told = capsys.readouterr().out
    assert f"seed {seed} " in told
    assert f": {what}, in " in told.splitlines()[0]
    assert told.splitlines()[-1].startswith(f"ViolationError: {what}")


def test_schedules_are_of_every_kind_and_rough() -> None:
    worlds = [World(seed, profile_of(seed)[1]) for seed in range(300)]
    assert {profile_of(seed)[0] for seed in range(2000)} == set(PROFILES)
    assert {world.broker.level for world in worlds} == {0, 1, 2}
    for world in worlds[:250]:
        world.run()
    kinds = {move.kind for world in worlds for move in world.made}
    assert kinds >= {Kind.GO, Kind.START, Kind.KILL, Kind.PAUSE, Kind.RESUME, Kind.RECORDS}
    assert kinds >= {Kind.EXPIRE, Kind.LATE, Kind.MARKERS, Kind.PARTITION, Kind.ZOMBIE}
    assert kinds >= {Kind.TXN, Kind.FORGET, Kind.RESTORE}
