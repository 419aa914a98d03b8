"""A balancer for tests of what moves do, not of when they are good."""

from collections.abc import Mapping
from random import Random

from sluice.runtime.coordinator.policy.assignment import Move
from sluice.runtime.coordinator.policy.balance import Choice, RegionLoad


class RandomMoves:
    """A balancer that moves a split now and then, for no reason.

    Attributes:
        moves: so far.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self.moves = 0

    def choose(self, offered: Mapping[str, RegionLoad], overloaded: Mapping[str, int]) -> Choice:
        """See `sluice.runtime.coordinator.policy.balance.Balancer`."""
        if self._random.random() < 0.5 or not offered:
            return Choice()
        source_region, target_region = (
            self._random.sample(sorted(offered), 2) if len(offered) > 1 else ("", "")
        )
        keys = sorted(offered[source_region].records) if source_region else []
        if not keys:
            return Choice()
        self.moves += 1
        return Choice(
            moves=(
                Move(
                    split=self._random.choice(keys),
                    source_region=source_region,
                    target_region=target_region,
                ),
            )
        )
