"""Which decision follows which: starts continue from the last one, or from an older one that somebody
asks for. Judged where a seal says what its run continues from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sluice.runtime.model.checkpoint_record import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a job stands after a decision: ends by input partition, and whose each split is."""

    ends: Mapping[int, int]
    assignment: Assignment | None


class Lineages:
    """Decisions from one restore to the next are a lineage, numbered from 0.

    Attributes:
        number: of the present one.
        last: the decision that the next one follows; None: there is none.
        wish: what the newest run was asked to go back to, or what it went back to for another run.
        turns: how often a run went back.
    """

    def __init__(self, require: Callable[[object, str], None]) -> None:
        self._require = require
        self.number = 0
        self.last: int | None = None
        self.wish: int | None = None
        self._of: dict[int, int] = {}
        self._after: dict[int, Standing] = {}
        self._starts: list[Mapping[int, int]] = [{}]
        self._ends: list[Mapping[int, int]] = []  # of lineages that are over
        self._is_new = False  # the newest run has decided nothing yet

    @property
    def turns(self) -> int:
        """How many lineages are over."""
        return len(self._ends)

    def decided(self, at: int, standing: Standing) -> None:
        """A decision stands."""
        self._of[at] = self.number
        self._after[at] = standing
        self.last, self._is_new = at, False

    def begins(self, wish: int | None) -> None:
        """A run has its first own record."""
        self.wish, self._is_new = wish, True

    def sealed(self, restored_from: int | None, wish: int | None) -> Standing | None:
        """A run begins after a seal; where, if that is not after the last decision."""
        is_new_wish = wish is not None and wish != self.wish
        due = wish if is_new_wish else self.last
        if restored_from != due and wish is not None and restored_from == wish:
            self._require(False, "a restore is done twice")
        self._require(
            restored_from == due, f"a start continues elsewhere: {restored_from}, not {due}"
        )
        repeats = wish is None and self._is_new and self.wish == due  # the restore of that run
        self.begins(self.wish if repeats else wish)
        assert due is not None
        if due == self.last:
            return None
        assert self.last is not None
        self._ends.append(self._after[self.last].ends)
        self._starts.append(self._after[due].ends)
        self.number += 1
        self.last = due
        return self._after[due]

    def decisions(self) -> list[int]:
        """All that there ever were, ascending."""
        return sorted(self._of)

    def of(self, at: int) -> int:
        """The lineage of a decision."""
        return self._of[at]

    def start(self, lineage: int, partition: int) -> int:
        """Where a lineage begins in an input partition."""
        return self._starts[lineage].get(partition, 0)

    def is_over(self, lineage: int, partition: int, offset: int) -> bool:
        """Whether all that a lineage has of an input partition lies before an offset, and another
        one continues."""
        return lineage < self.turns and offset == self._ends[lineage].get(partition, 0)

    def is_needed(self, at: int) -> bool:
        """Whether the newest run continues from this decision, and has taken none itself yet: each
        start would go back to it."""
        return self._is_new and at == self.last
