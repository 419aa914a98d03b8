"""Result of a comparison: counts of each kind of fault, and their positions."""

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from sluice.runtime.checker.records.history import Location

__all__ = ["Examples", "Finding", "FindingSink", "HistoryVerdict", "Kind", "Tally"]

_MAX_EXAMPLES = 10


class Kind(enum.Enum):
    """A way in which an output breaks its promise."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    UNEXPECTED = "unexpected"
    REORDERED = "reordered"
    CORRUPTED = "corrupted"
    ABORTED = "aborted"
    TORN = "torn"


class Finding(NamedTuple):
    """One fault.

    Attributes:
        position: of a lost record in the input; of a torn transaction its first source range; of
            all others in the output.
        detail: further facts in words; may be empty.
    """

    kind: Kind
    location: Location
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value} {self.location}" + (f" ({self.detail})" if self.detail else "")


FindingSink = Callable[[Finding], None]
"""Receives every fault, in no order: a comparison that must not hold them all in memory passes them
here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """The first few positions of each kind of fault, for people."""

    lost: tuple[Location, ...] = ()
    duplicated: tuple[Location, ...] = ()
    unexpected: tuple[Location, ...] = ()
    reordered: tuple[Location, ...] = ()
    corrupted: tuple[Location, ...] = ()
    aborted: tuple[Location, ...] = ()
    torn: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryVerdict:
    """Result of `check_spilled`.

    Attributes:
        expected: records that the output must have.
        found: records that the output has.
        lost: expected and not found; examples are positions in the input.
        duplicated: found more often than expected; examples are positions in the output.
        unexpected: found and never expected: half written or foreign.
        reordered: the smallest number of records whose removal leaves each (input partition, output
            partition) pair in input order; an upper bound if not `is_reordered_exact`.
        corrupted: found with the name of a missing record, and another content
            (`Identity.name_of`); neither lost nor unexpected.
        aborted: found, and expected only of input records that read_committed readers do not see:
            their transaction was aborted, or is open. Neither duplicated nor unexpected.
        torn: transactions with some records present and some lost.
        unordered: found records whose order cannot be judged, because several input or output
            partitions hold the same content.
        is_reordered_exact: False if records were so far out of order that the memory limit
            prevented an exact count.
        examples: see `Examples`.
    """

    expected: int
    found: int
    lost: int
    duplicated: int
    unexpected: int
    reordered: int
    corrupted: int
    aborted: int
    torn: int
    unordered: int
    is_reordered_exact: bool = True
    examples: Examples = field(default_factory=Examples)

    @property
    def is_empty(self) -> bool:
        """Nothing was expected and nothing found: this is also the result for a job that never
        ran."""
        return not (self.expected or self.found)

    @property
    def is_clean(self) -> bool:
        """Records were compared, and there is no fault of any kind."""
        return not self.is_empty and not any(getattr(self, kind.value) for kind in Kind)

    def __str__(self) -> str:
        if self.is_empty:
            return "expected 0, found 0: nothing was compared"
        faults = [f"{kind.value} {self._counted(kind)}{self._shown(kind)}" for kind in Kind]
        return f"expected {self.expected}, found {self.found}, " + ", ".join(faults)

    def _counted(self, kind: Kind) -> str:
        at_most = kind is Kind.REORDERED and not self.is_reordered_exact
        return ("at most " if at_most else "") + str(getattr(self, kind.value))

    def _shown(self, kind: Kind) -> str:
        locations: tuple[Location, ...] = getattr(self.examples, kind.value)
        return f" (e.g. {', '.join(map(str, locations[:3]))})" if locations else ""


class Tally:
    """Counts all findings, keeps the first of each kind by their rank, passes all to the sink."""

    def __init__(self, sink: FindingSink | None = None) -> None:
        self.counts = dict.fromkeys(Kind, 0)
        self._sink = sink
        self._first: dict[Kind, list[tuple[int, Location]]] = {kind: [] for kind in Kind}

    def add(self, kind: Kind, ranked: Iterable[tuple[int, Location, str]], count: int) -> None:
        """Add findings of one kind.

        Args:
            ranked: sequence number in its history, position and detail of each, in this order;
                without a sink only so many are taken as are kept.
            count: the number of findings.
        """
        self.counts[kind] += count
        kept = self._first[kind]
        taken = 0
        for rank, location, detail in ranked:
            if taken < _MAX_EXAMPLES:
                kept.append((rank, location))
                taken += 1
            if self._sink is not None:
                self._sink(Finding(kind, location, detail))
            elif taken == _MAX_EXAMPLES:
                break
        kept.sort()
        del kept[_MAX_EXAMPLES:]

    def examples(self) -> Examples:
        """The first positions of each kind."""
        return Examples(
            **{
                kind.value: tuple(location for _, location in kept)
                for kind, kept in self._first.items()
            }
        )
