"""Load balancing by backlog: which splits change their region. Pure.

A region's load is the time that it needs for the records of its last epoch and the ones after it.
A region that needs much longer than another, in several checkpoints in a row, gives a split away.
Under constant speeds each move lowers the larger load of its two regions below what it was, so no
assignment comes twice, and the moves end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sluice.runtime.coordinator.policy.assignment import Move
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.splits import SplitKey

__all__ = ["Balancer", "Choice", "LoadBalancer", "RegionLoad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLoad:
    """The load of a region, from its last epochs.

    Attributes:
        records: of each of its splits: read in the last epoch, and waiting after it.
        records_per_s: its speed in the last epoch that read something, > 0; None: not known yet.
    """

    records: Mapping[SplitKey, int]
    records_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Moves of one decision, and for each region in how many in a row it was overloaded."""

    moves: tuple[Move, ...] = ()
    overloaded: Mapping[str, int] = field(default_factory=dict)


class Balancer(Protocol):
    """Chooses moves between regions that read the same source and completed a checkpoint."""

    def choose(self, offered: Mapping[str, RegionLoad], overloaded: Mapping[str, int]) -> Choice:
        """``overloaded``: as the last choice for these regions had it. Pure."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancer(Balancer):
    """Takes splits from a region that needs longer than another one; never its last split.

    Attributes:
        ratio: a region is overloaded if its backlog takes this many times longer than the least
            loaded region's; > 1.
        least_s: and this many seconds longer; > 0.
        patience: in this many checkpoints in a row before each reassignment; >= 1.
        max_moves: splits of one source that one checkpoint reassigns; >= 1.
    """

    ratio: float = 2.0
    least_s: float = 5.0
    patience: int = 3
    max_moves: int = 1

    def __post_init__(self) -> None:
        if self.ratio <= 1 or self.least_s <= 0 or self.patience < 1 or self.max_moves < 1:
            raise ConfigError(
                "a setting of load balancing is out of range",
                {
                    "ratio": self.ratio,
                    "least_s": self.least_s,
                    "patience": self.patience,
                    "max_moves": self.max_moves,
                },
                "Use a ratio above 1, seconds above 0, and at least one checkpoint and one move.",
            )

    def choose(self, offered: Mapping[str, RegionLoad], overloaded: Mapping[str, int]) -> Choice:
        known = [load.records_per_s for load in offered.values() if load.records_per_s]
        if not known:
            return Choice()
        # A region that has read nothing yet counts as fast: it is idle now.
        loads = {
            name: _Load(load.records, load.records_per_s or max(known))
            for name, load in offered.items()
        }
        now = self._overloaded(loads)
        counts = {name: overloaded.get(name, 0) + 1 for name in now}
        moves: list[Move] = []
        for name in now:
            if counts[name] < self.patience or len(moves) == self.max_moves:
                continue
            move = _relieve(name, loads)
            if move is not None:
                moves.append(move)
                loads = _after(move, loads)
                counts[name] = 0
        return Choice(moves=tuple(moves), overloaded=counts)

    def _overloaded(self, loads: Mapping[str, "_Load"]) -> list[str]:
        """The most loaded first."""
        seconds = {name: load.seconds() for name, load in loads.items()}
        least = min(seconds.values())
        found = [name for name, own in seconds.items() if self._is_more(own, least)]
        return sorted(found, key=lambda name: -seconds[name])

    def _is_more(self, seconds: float, other: float) -> bool:
        return seconds >= self.ratio * other and seconds - other >= self.least_s


@dataclass(frozen=True, slots=True)
class _Load:
    """A region's load, its speed known or guessed."""

    records: Mapping[SplitKey, int]
    per_s: float

    def seconds(self) -> float:
        return sum(self.records.values()) / self.per_s


def _relieve(name: str, loads: Mapping[str, _Load]) -> Move | None:
    """The split whose move leaves both regions with the least; None: none is worth it."""
    source_region = loads[name]
    if len(source_region.records) < 2:
        return None
    target = min(loads, key=lambda other: loads[other].seconds())
    target_region = loads[target]
    has, gets = sum(source_region.records.values()), sum(target_region.records.values())

    def larger_s(key: SplitKey) -> float:
        count = source_region.records[key]
        return max((has - count) / source_region.per_s, (gets + count) / target_region.per_s)

    best = min(sorted(source_region.records), key=larger_s)
    if larger_s(best) >= source_region.seconds():
        return None
    return Move(split=best, source_region=name, target_region=target)


def _after(move: Move, loads: Mapping[str, _Load]) -> dict[str, _Load]:
    source_region, target_region = loads[move.source_region], loads[move.target_region]
    left = {key: count for key, count in source_region.records.items() if key != move.split}
    gained = {**target_region.records, move.split: source_region.records[move.split]}
    return {
        **loads,
        move.source_region: _Load(left, source_region.per_s),
        move.target_region: _Load(gained, target_region.per_s),
    }
