"""Worlds with keyed state write, move, merge and delete it, and would notice a broken rule about it."""

from collections import Counter

import pytest

from tests.simulation.profile import Profile
from tests.simulation.profiles import PROFILES
from tests.simulation.shared_mutations import SHARED_MUTATIONS
from tests.simulation.shrink import find
from tests.simulation.state_mutations import STATE_MUTATIONS
from tests.simulation.world import World

MUTANT_SEEDS = 200


def test_state_with_output_worlds_decide_move_and_delete_state() -> None:
    """Or the worlds with keyed state prove little."""
    names = [name for name in PROFILES if "keyed state" in name]
    assert len(names) > 10
    worlds = [World(seed, PROFILES[name]) for name in names for seed in range(3)]
    for world in worlds:
        world.run()
    watches = [world.watch.state for world in worlds]
    assert sum(watch.decisions for watch in watches) > 200
    assert sum(watch.merged for watch in watches) > 100
    assert sum(watch.deleted for watch in watches) > 100
    assert sum(watch.moved for watch in watches) > 10
    faults = sum((world.faults for world in worlds), Counter[str]())
    assert faults["a state file is uploaded after its attempt"] > 3


def test_worlds_share_lists_topics_and_broadcast_streams() -> None:
    """Or the worlds with them prove little."""
    names = [name for name in PROFILES if name.startswith("what regions share")]
    worlds = [World(seed, PROFILES[name]) for name in names for seed in range(4)]
    for world in worlds:
        world.run()
    watches = [world.watch.shared for world in worlds]
    assert sum(watch.rows for watch in watches) > 200
    assert sum(watch.left for watch in watches) > 5
    assert sum(watch.versions for watch in watches) > 50


_MUTATIONS = {**STATE_MUTATIONS, **SHARED_MUTATIONS}


@pytest.mark.parametrize("name", _MUTATIONS)
def test_worlds_notice_a_broken_rule_about_keyed_state(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation, rough, what = _MUTATIONS[name]
    mutation(monkeypatch)
    profile = Profile(**{"processes": 8, **rough})
    found = (find(seed, profile) for seed in range(MUTANT_SEEDS))
    assert any(failure is not None and failure.what == what for failure in found)
