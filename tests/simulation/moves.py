"""Splits that change their region at random, as often as no sensible balancer would."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sluice.runtime.coordinator.policy.assignment import Move
from sluice.runtime.coordinator.policy.balance import Choice, RegionLoad
from sluice.runtime.model.checkpoint_record import Assignment
from sluice.runtime.model.splits import SplitKey

if TYPE_CHECKING:
    from tests.simulation.world import World


class RandomMoves:
    """A `Balancer` that rolls dice, and empties regions, too."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def choose(self, offered: Mapping[str, RegionLoad], overloaded: Mapping[str, int]) -> Choice:
        """See `Balancer.choose`."""
        places = {key: name for name in sorted(offered) for key in sorted(offered[name].records)}
        moves = []
        while places and self._world.random.random() < self._world.profile.move:  # also in the calm
            key = self._world.random.choice(list(places))
            source_region = places.pop(key)
            target_region = self._world.random.choice(
                [name for name in sorted(offered) if name != source_region]
            )
            moves.append(Move(split=key, source_region=source_region, target_region=target_region))
        return Choice(moves=tuple(moves))


def owners(assignment: Assignment) -> dict[SplitKey, str]:
    """Whose each split is."""
    return {key: name for name, keys in assignment.regions.items() for key in keys}
