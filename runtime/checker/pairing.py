"""Pairs found records with expected ones: pure, over arrays."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.runtime.checker.records.history import Columns

__all__ = ["Pairing", "in_several_lanes", "pair"]

_Keys = npt.NDArray[np.uint64]
_Ints = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Pairing:
    """Indexes in the arrays of keys expected (e) and found (f); pair i is (e[i], f[i]).

    Attributes:
        lost: expected ones without a partner.
        duplicated: found ones whose key was expected, less often.
        unexpected: found ones whose key was never expected.
    """

    e: _Ints
    f: _Ints
    lost: _Ints
    duplicated: _Ints
    unexpected: _Ints


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Keys by value; equal ones stay in reading order.

    Attributes:
        order: indexes of the keys, sorted.
        values, starts, counts: each distinct key, the start of its run, and its length.
    """

    order: _Ints
    values: _Keys
    starts: _Ints
    counts: _Ints

    @classmethod
    def of(cls, keys: _Keys) -> "_Sorted":
        order = np.argsort(keys, kind="stable")
        values, starts, counts = np.unique(keys[order], return_index=True, return_counts=True)
        return cls(order, values, starts, counts)

    def ranks(self) -> tuple[_Ints, _Ints]:
        """For each sorted index: the number of its distinct value, and its rank among equal
        ones."""
        value = np.repeat(np.arange(len(self.values)), self.counts)
        return value, np.arange(len(self.order)) - self.starts[value]

    def count_of(self, values: _Keys) -> tuple[_Ints, _Ints]:
        """For each value: its number here (any, if absent) and its count."""
        if not len(self.values):
            nothing = np.zeros(len(values), dtype=np.int64)
            return nothing, nothing
        at = np.minimum(np.searchsorted(self.values, values), len(self.values) - 1)
        return at, np.where(self.values[at] == values, self.counts[at], 0)


def pair(expected: _Keys, found: _Keys) -> Pairing:
    """The k-th found record of a key belongs to the k-th expected one of that key."""
    wanted, had = _Sorted.of(expected), _Sorted.of(found)
    value, rank = had.ranks()
    at, allowed = wanted.count_of(had.values)
    paired: _Flags = rank < allowed[value]
    foreign: _Flags = allowed[value] == 0
    want_value, want_rank = wanted.ranks()
    _, present = had.count_of(wanted.values)
    partners = _starts(wanted)[at][value[paired]] + rank[paired]
    return Pairing(
        e=wanted.order[partners],
        f=had.order[paired],
        lost=np.sort(wanted.order[want_rank >= present[want_value]]),
        duplicated=np.sort(had.order[~paired & ~foreign]),
        unexpected=np.sort(had.order[foreign]),
    )


def _starts(keys: _Sorted) -> _Ints:
    # Indexing an empty array by an array of zeros would fail if nothing is paired.
    return keys.starts if len(keys.starts) else np.zeros(1, dtype=np.int64)


def in_several_lanes(records: Columns) -> _Flags:
    """For each record: whether more than one partition holds its content, hidden or not."""
    if not len(records):
        return np.zeros(0, dtype=np.bool_)
    lanes = np.maximum(records.lanes, ~records.lanes)
    _, group = np.unique(records.fingerprints, return_inverse=True)
    least = np.full(group.max() + 1, np.iinfo(np.int32).max, dtype=np.int32)
    most = np.full(group.max() + 1, -1, dtype=np.int32)
    np.minimum.at(least, group, lanes)
    np.maximum.at(most, group, lanes)
    return np.asarray((least != most)[group])
