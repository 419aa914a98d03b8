"""Finds records out of order: the smallest set whose removal leaves each flow sorted.

A flow is all records from one input partition to one output partition. At a point where all earlier
records belong before all later ones, the two parts can be judged separately. So a history in order
needs no memory, and a disordered one only as much as its mixed stretches.
"""

import bisect
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

__all__ = ["NONE_LATER", "PAIR", "OrderJudge", "least_by_flow"]

PAIR = np.dtype([("position", "i8"), ("expected", "i8"), ("flow", "i8"), ("offset", "i8")])
"""A found record: its number in the found history, that of its partner in the expected one, input
lane << 32 | output lane, and its offset."""

_Pairs = npt.NDArray[np.void]
_Ints = npt.NDArray[np.int64]
NONE_LATER = int(np.iinfo(np.int64).max)
"""For a flow without later records."""


def least_by_flow(pairs: _Pairs) -> dict[int, int]:
    """The least expected number in each flow."""
    return {flow: int(mine["expected"].min()) for flow, mine in _by_flow(pairs)}


class OrderJudge:
    """Receives a found history block by block, in reading order. Used by one thread.

    Args:
        limit: of undecided pairs in memory. Above it, the largest flow is counted in another way:
            records that follow a later one, which may be more than the smallest set.
    """

    def __init__(self, *, limit: int) -> None:
        self.is_exact = True
        self._limit = limit
        self._undecided: dict[int, _Pairs] = {}
        self._floors: dict[int, int] = {}  # of flows over the limit

    def feed(self, pairs: _Pairs, later: Mapping[int, int]) -> _Pairs:
        """The next block; returns the records that are decided to be out of order.

        Args:
            pairs: shape (n,), dtype `PAIR`, by position.
            later: least expected number of each flow in all later blocks.
        """
        faults = [pairs[:0]]
        for flow, block in _by_flow(pairs):
            kept = self._undecided.pop(flow, None)
            is_late = block["expected"] < self._floors.get(flow, -1)
            faults.append(block[is_late])
            mine = block[~is_late]
            sequence = mine if kept is None else np.concatenate([kept, mine])
            faults += self._decide(flow, sequence, later.get(flow, NONE_LATER))
        while sum(map(len, self._undecided.values())) > self._limit:
            faults.append(self._give_up(max(self._undecided, key=self._len_of)))
        return np.concatenate(faults)

    def _len_of(self, flow: int) -> int:
        return len(self._undecided[flow])

    def _give_up(self, flow: int) -> _Pairs:
        """Count late records now and later, instead of keeping them; the rest is in order."""
        self.is_exact = False
        wanted = self._undecided[flow]["expected"]
        most = np.maximum.accumulate(wanted)
        self._floors[flow] = int(most[-1])
        return self._undecided.pop(flow)[wanted < most]

    def _decide(self, flow: int, sequence: _Pairs, later: int) -> Iterator[_Pairs]:
        wanted = sequence["expected"]
        most_before = np.maximum.accumulate(wanted)
        after = np.append(wanted[1:], later)
        least_after = np.minimum.accumulate(after[::-1])[::-1]
        ends = np.flatnonzero(most_before < least_after) + 1
        decided = int(ends[-1]) if len(ends) else 0
        starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])[: len(ends)]
        for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
            part = sequence[start:end]
            yield part[_out_of_order(part["expected"])]
        rest = sequence[decided:]
        if len(rest):
            self._undecided[flow] = rest.copy()  # not a view that keeps the whole block


def _by_flow(pairs: _Pairs) -> Iterator[tuple[int, _Pairs]]:
    if not len(pairs):
        return
    order = np.argsort(pairs["flow"], kind="stable")
    grouped = pairs[order]
    borders = np.flatnonzero(np.diff(grouped["flow"])) + 1
    for mine in np.split(grouped, borders):
        yield int(mine["flow"][0]), mine


def _out_of_order(sequence: _Ints) -> _Ints:
    """Positions outside one longest increasing subsequence (patience sorting)."""
    tails: list[int] = []  # least last value of an increasing run of each length
    tail_at: list[int] = []
    before = np.full(len(sequence), -1, dtype=np.int64)
    for position, value in enumerate(sequence.tolist()):
        length = bisect.bisect_left(tails, value)
        if length == len(tails):
            tails.append(value)
            tail_at.append(position)
        else:
            tails[length], tail_at[length] = value, position
        if length:
            before[position] = tail_at[length - 1]
    kept = np.zeros(len(sequence), dtype=np.bool_)
    position = tail_at[-1]
    while position >= 0:
        kept[position] = True
        position = int(before[position])
    return np.flatnonzero(~kept)
