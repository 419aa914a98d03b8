"""A reader that ran all along must have seen a prefix of what each partition holds in the end.

A committed record that vanishes, one that shows up in front of what was already read, and one that
was seen though it was never committed all break the prefix.
"""

from dataclasses import dataclass

import numpy as np

from sluice.runtime.checker.records.history import Columns, History, Place
from sluice.runtime.errors import ConfigError

__all__ = ["PrefixVerdict", "check_prefix", "first_difference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixVerdict:
    """What `check_prefix` found.

    Attributes:
        seen: records the reader saw.
        final: records the partitions hold.
        broken: for each partition that is not continued as it was seen, the first place where
            the reader saw something else.
    """

    seen: int
    final: int
    broken: tuple[Place, ...]

    @property
    def is_clean(self) -> bool:
        """Every partition goes on from exactly what the reader saw.

        A reader that saw nothing of what is there has shown nothing. Where nothing is there, it
        saw all; whether something should be there is for the verdict on the output to say.
        """
        return not self.broken and (self.seen > 0 or self.final == 0)

    def __str__(self) -> str:
        if self.final and not self.seen:
            return f"seen 0 of {self.final}: nothing was compared"
        where = f", broken at {', '.join(map(str, self.broken))}" if self.broken else ""
        return f"seen {self.seen} of {self.final}{where}"


def check_prefix(seen: History, final: History) -> PrefixVerdict:
    """Compare what a read_committed reader saw while things were killed with the final content.

    In memory; for what that cannot hold there is `SpilledPrefix`.

    Args:
        seen: from the first record of every partition on, each in offset order.
        final: the whole content, each partition in offset order.
    """
    if seen.identity != final.identity:
        raise ConfigError(
            "the histories were made with different identities",
            {"seen": seen.identity, "final": final.identity},
            "Give both the same Identity.",
        )
    contents = dict(final.by_lane())
    broken = []
    for (topic, partition), columns in seen.by_lane():
        final_columns = contents.get((topic, partition), columns.at(np.arange(0)))
        at = first_difference(columns, final_columns)
        if at is not None:
            broken.append(Place(topic, partition, int(columns.offsets[at])))
    return PrefixVerdict(seen=len(seen), final=len(final), broken=tuple(broken))


def first_difference(seen: Columns, final: Columns) -> int | None:
    """The first record of one topic-partition that was seen and is not there, as its number."""
    shared = min(len(seen), len(final))
    same = (seen.offsets[:shared] == final.offsets[:shared]) & (
        seen.fingerprints[:shared] == final.fingerprints[:shared]
    )
    if not same.all():
        return int(np.argmin(same))
    return shared if len(seen) > shared else None
