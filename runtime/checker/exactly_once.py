"""The verdict on a run: what of the expected output is lost, doubled, foreign or out of order.

Records are told apart by content (`Identity`), so a run is judged best on records that carry a
number of their own (`runtime.checker.payload`). Content that is expected more than once is counted
as a multiset: as often as expected, no more and no less.
"""

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.checker.history import Columns, History, Place
from runtime.checker.record import Identity, Record
from runtime.errors import ConfigError

__all__ = ["Examples", "HistoryVerdict", "Mapping", "check", "expect"]

Mapping = Callable[[Record], Iterable[Record]]
"""From an input record to the output records that it must become, in order.

Topic (and partition, where `Identity.partition`) of the results are those of the output."""

_Ints = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]
_MAX_EXAMPLES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """The first few places of each kind of fault, for people."""

    lost: tuple[Place, ...] = ()
    duplicated: tuple[Place, ...] = ()
    unexpected: tuple[Place, ...] = ()
    reordered: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryVerdict:
    """What `check` found.

    Attributes:
        expected: records that the output must hold.
        found: records that the output does hold.
        lost: expected and not found; examples are places in the input.
        duplicated: found more often than expected; examples are places in the output.
        unexpected: found and never expected: aborted, half written or not ours.
        reordered: the fewest records whose removal leaves each (input partition, output
            partition) pair in input order.
        unordered: found records that order cannot be judged of, because several input or output
            partitions hold the same content.
        examples: see `Examples`.
    """

    expected: int
    found: int
    lost: int
    duplicated: int
    unexpected: int
    reordered: int
    unordered: int
    examples: Examples

    @property
    def is_clean(self) -> bool:
        """Nothing lost, doubled, foreign or out of order."""
        return not (self.lost or self.duplicated or self.unexpected or self.reordered)

    def __str__(self) -> str:
        names = ("lost", "duplicated", "unexpected", "reordered")
        faults = [f"{name} {getattr(self, name)}{self._shown(name)}" for name in names]
        return f"expected {self.expected}, found {self.found}, " + ", ".join(faults)

    def _shown(self, name: str) -> str:
        places: tuple[Place, ...] = getattr(self.examples, name)
        return f" (e.g. {', '.join(map(str, places[:3]))})" if places else ""


def expect(inputs: Iterable[Record], mapping: Mapping, identity: Identity | None = None) -> History:
    """The history that the output must hold: each input record through ``mapping``."""
    history = History(identity)
    for record in inputs:
        place = Place(record.topic, record.partition, record.offset)
        for wanted in mapping(record):
            history.append(wanted, read_from=place)
    return history


def check(expected: History, found: History) -> HistoryVerdict:
    """Compare what must be there with what a read_committed reader found.

    Args:
        expected: from `expect`, with the identity of ``found``.
        found: the whole output, each partition in offset order.
    Raises:
        ConfigError: the two histories tell records apart by different rules.
    """
    if expected.identity != found.identity:
        raise ConfigError(
            "the histories were made with different identities",
            {"expected": expected.identity, "found": found.identity},
            "Give both the same Identity.",
        )
    want, have = expected.columns(), found.columns()
    pairing = _pair(want, have)
    disordered, unordered = _disordered(want, have, pairing)
    return HistoryVerdict(
        expected=len(expected),
        found=len(found),
        lost=len(pairing.lost),
        duplicated=len(pairing.duplicated),
        unexpected=len(pairing.unexpected),
        reordered=len(disordered),
        unordered=unordered,
        examples=Examples(
            lost=_places(expected, pairing.lost),
            duplicated=_places(found, pairing.duplicated),
            unexpected=_places(found, pairing.unexpected),
            reordered=_places(found, disordered),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Pairing:
    """Positions in the expected (e) and found (f) history; pair i is (e[i], f[i])."""

    e: _Ints
    f: _Ints
    lost: _Ints
    duplicated: _Ints
    unexpected: _Ints


@dataclass(frozen=True, slots=True)
class _Sorted:
    """A history by fingerprint; equal ones stay in reading order.

    Attributes:
        order: positions in the history, sorted.
        values, starts, counts: each distinct fingerprint, where its run begins, how long it is.
    """

    order: _Ints
    values: npt.NDArray[np.uint64]
    starts: _Ints
    counts: _Ints

    @classmethod
    def of(cls, columns: Columns) -> "_Sorted":
        order = np.argsort(columns.fingerprints, kind="stable")
        values, starts, counts = np.unique(
            columns.fingerprints[order], return_index=True, return_counts=True
        )
        return cls(order, values, starts, counts)

    def ranks(self) -> tuple[_Ints, _Ints]:
        """For each sorted position: which distinct value, and the how manieth of it."""
        value = np.repeat(np.arange(len(self.values)), self.counts)
        return value, np.arange(len(self.order)) - self.starts[value]

    def count_of(self, values: npt.NDArray[np.uint64]) -> tuple[_Ints, _Ints]:
        """For each value: its number here (any, when absent) and how often it occurs."""
        if not len(self.values):
            nothing = np.zeros(len(values), dtype=np.int64)
            return nothing, nothing
        at = np.minimum(np.searchsorted(self.values, values), len(self.values) - 1)
        return at, np.where(self.values[at] == values, self.counts[at], 0)


def _pair(want: Columns, have: Columns) -> _Pairing:
    """The k-th found record of a content belongs to the k-th expected one of that content."""
    wanted, had = _Sorted.of(want), _Sorted.of(have)
    value, rank = had.ranks()
    at, allowed = wanted.count_of(had.values)
    paired: _Flags = rank < allowed[value]
    foreign: _Flags = allowed[value] == 0
    want_value, want_rank = wanted.ranks()
    _, present = had.count_of(wanted.values)
    partners = _starts(wanted)[at][value[paired]] + rank[paired]
    return _Pairing(
        e=wanted.order[partners],
        f=had.order[paired],
        lost=np.sort(wanted.order[want_rank >= present[want_value]]),
        duplicated=np.sort(had.order[~paired & ~foreign]),
        unexpected=np.sort(had.order[foreign]),
    )


def _starts(history: _Sorted) -> _Ints:
    # Indexing an empty array by an array of zeros would fail where nothing is paired anyway.
    return history.starts if len(history.starts) else np.zeros(1, dtype=np.int64)


def _disordered(want: Columns, have: Columns, pairing: _Pairing) -> tuple[_Ints, int]:
    """Positions in the found history that are out of order, and how many cannot be judged."""
    in_reading_order = np.argsort(pairing.f, kind="stable")
    e, f = pairing.e[in_reading_order], pairing.f[in_reading_order]
    judged = ~_ambiguous(want, have, e, f)
    e, f = e[judged], f[judged]
    flow = want.lanes[e].astype(np.int64) << 32 | have.lanes[f]
    faults = [np.zeros(0, dtype=np.int64)]
    for one in np.unique(flow):
        mine = flow == one
        faults.append(f[mine][_out_of_order(e[mine])])
    return np.sort(np.concatenate(faults)), int(np.count_nonzero(~judged))


def _ambiguous(want: Columns, have: Columns, e: _Ints, f: _Ints) -> _Flags:
    """Pairs whose content is expected in, or found in, more than one partition."""
    content = have.fingerprints[f]
    return _in_several_lanes(content, want.lanes[e]) | _in_several_lanes(content, have.lanes[f])


def _in_several_lanes(content: npt.NDArray[np.uint64], lanes: npt.NDArray[np.int32]) -> _Flags:
    if not len(content):
        return np.zeros(0, dtype=np.bool_)
    _, group = np.unique(content, return_inverse=True)
    least = np.full(group.max() + 1, np.iinfo(np.int32).max, dtype=np.int32)
    most = np.full(group.max() + 1, -1, dtype=np.int32)
    np.minimum.at(least, group, lanes)
    np.maximum.at(most, group, lanes)
    return np.asarray((least != most)[group])


def _out_of_order(sequence: _Ints) -> _Ints:
    """Positions outside one longest increasing subsequence (patience sorting)."""
    if np.all(np.diff(sequence) > 0):
        return np.zeros(0, dtype=np.int64)
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


def _places(history: History, positions: _Ints) -> tuple[Place, ...]:
    return tuple(history.place(int(position)) for position in positions[:_MAX_EXAMPLES])
