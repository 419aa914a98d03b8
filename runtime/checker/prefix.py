"""A reader that ran during the whole run must have seen a prefix of each partition's final content.

The prefix breaks if a committed record vanishes, if a record appears before ones already read, or
if the reader saw a record that was never committed.
"""

from dataclasses import dataclass

import numpy as np

from sluice.runtime.checker.records.history import Columns, History, Location
from sluice.runtime.errors import ConfigError

__all__ = ["PrefixVerdict", "check_prefix", "first_difference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixVerdict:
    """Result of `check_prefix`.

    Attributes:
        seen: number of records that the reader saw.
        final: number of records in the partitions.
        broken: the first position of each partition where the reader saw another record than the
            final one.
    """

    seen: int
    final: int
    broken: tuple[Location, ...]

    @property
    def is_clean(self) -> bool:
        """Every partition continues exactly after the records that the reader saw.

        A reader that saw none of the records proves nothing. If there are no records, it saw all of
        them; the verdict on the output decides whether there should be some.
        """
        return not self.broken and (self.seen > 0 or self.final == 0)

    def __str__(self) -> str:
        if self.final and not self.seen:
            return f"seen 0 of {self.final}: nothing was compared"
        where = f", broken at {', '.join(map(str, self.broken))}" if self.broken else ""
        return f"seen {self.seen} of {self.final}{where}"


def check_prefix(seen: History, final: History) -> PrefixVerdict:
    """Compare the records that a read_committed reader saw during kills with the final content.

    In memory; for more records there is `SpilledPrefix`.

    Args:
        seen: from the first record of every partition on, each in offset order.
        final: the whole content, each partition in offset order.
    """
    if seen.identity != final.identity:
        raise ConfigError(
            "the histories were made with different identities",
            {"seen": seen.identity, "final": final.identity},
            "Give both histories the same Identity.",
        )
    contents = dict(final.by_lane())
    broken = []
    for (topic, partition), columns in seen.by_lane():
        final_columns = contents.get((topic, partition), columns.at(np.arange(0)))
        at = first_difference(columns, final_columns)
        if at is not None:
            broken.append(Location(topic, partition, int(columns.offsets[at])))
    return PrefixVerdict(seen=len(seen), final=len(final), broken=tuple(broken))


def first_difference(seen: Columns, final: Columns) -> int | None:
    """The number of the first record of a topic-partition that was seen and is absent now."""
    shared = min(len(seen), len(final))
    same = (seen.offsets[:shared] == final.offsets[:shared]) & (
        seen.fingerprints[:shared] == final.fingerprints[:shared]
    )
    if not same.all():
        return int(np.argmin(same))
    return shared if len(seen) > shared else None
