"""Worlds in which tasks outlive their leaders take tasks over, and would notice a broken rule."""

import pytest

from tests.simulation.led_mutations import LED_MUTATIONS
from tests.simulation.profile import Profile
from tests.simulation.profiles import PROFILES
from tests.simulation.shrink import find
from tests.simulation.world import World

MUTANT_SEEDS = 150


def test_attempts_and_their_epochs_go_from_leader_to_leader() -> None:
    names = [name for name in PROFILES if "outlive" in name]
    worlds = [World(seed, PROFILES[name]) for name in names for seed in range(4)]
    for world in worlds:
        world.run()
    assert sum(world.faults["an attempt is resumed"] for world in worlds) > 50
    again = sum(world.faults["an epoch is acknowledged to the next leader"] for world in worlds)
    assert again > 5
    assert sum(world.faults["a message reaches an older leader"] for world in worlds) > 0


@pytest.mark.parametrize("name", LED_MUTATIONS)
def test_worlds_notice_a_broken_rule_about_tasks_that_outlive_their_leader(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation, rough = LED_MUTATIONS[name]
    mutation(monkeypatch)
    profile = Profile(**rough)
    assert any(find(seed, profile) is not None for seed in range(MUTANT_SEEDS))
