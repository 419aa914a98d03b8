"""Worlds of continuous tasks are rough, and would notice a broken rule about them."""

import pytest

from tests.simulation.continuous_mutations import CONTINUOUS_MUTATIONS
from tests.simulation.profile import Profile
from tests.simulation.profiles import PROFILES
from tests.simulation.shrink import find
from tests.simulation.world import World

MUTANT_SEEDS = 200


def test_continuous_order_tasks_run_ahead_and_commit_natively() -> None:
    names = ("continuous tasks", "continuous tasks, answers are lost")
    worlds = [World(seed, PROFILES[name]) for name in names for seed in range(20)]
    for world in worlds:
        world.run()
    assert sum(world.producers.ahead for world in worlds) > 20
    assert sum(world.producers.natively for world in worlds) > 100
    assert sum(world.faults["a producer's commit is not answered"] for world in worlds) > 5
    by_hand = [commit for world in worlds for _, commit, _ in world.broker.requests]
    assert by_hand.count(True) > 50


@pytest.mark.parametrize("name", CONTINUOUS_MUTATIONS)
def test_worlds_notice_a_broken_rule_about_continuous_tasks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation, rough, what = CONTINUOUS_MUTATIONS[name]
    mutation(monkeypatch)
    profile = Profile(**{"processes": 8, **rough})
    found = (find(seed, profile) for seed in range(MUTANT_SEEDS))
    assert any(failure is not None and failure.what == what for failure in found)
