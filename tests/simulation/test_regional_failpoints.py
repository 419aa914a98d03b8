"""Worlds whose coordinators die where regions fail, are late, or exchange splits.

The cheap form of `tests/chaos/test_regional.py`: the production code of every step, on fakes.
"""

import itertools

import pytest

from tests.kit.coordinator.coordinator_failpoints import REGIONAL_FAILPOINTS
from tests.simulation.profile import Profile
from tests.simulation.world import World

_WORLDS = 3
_MOST_SEEDS = 30
_ROUGH = Profile(
    regions=3,
    partitions=5,
    steps=100,
    regional=True,
    move=0.5,
    fail_region=0.03,
    kill=0.0,
    pause=0.0,
)


@pytest.mark.parametrize("point", REGIONAL_FAILPOINTS)
def test_restore_by_attempt_and_abort_before_skip_two_kills_at_a_regional_step_lose_and_double_nothing(
    point: str,
) -> None:
    """The second as soon as the next coordinator gets there; whole and in order in the end."""
    worlds = (_killed_twice(point, seed) for seed in range(_MOST_SEEDS))
    died = list(itertools.islice(filter(None, worlds), _WORLDS))
    assert len(died) == _WORLDS, f"only {len(died)} of {_MOST_SEEDS} worlds got there twice"


def _killed_twice(point: str, seed: int) -> bool:
    """Whether the world got there so often; judged either way."""
    world = World(seed, _ROUGH)
    world.deadly = [point, point]
    world.run()
    return not world.deadly
