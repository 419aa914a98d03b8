"""The time from making records to their sight: of a whole run, and minute by minute."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.peers.records import Ints

__all__ = ["by_minute", "summary", "waits_between"]

Seconds = npt.NDArray[np.float64]

_MINUTE_US = 60_000_000


def waits_between(made_us: Ints, seen_us: Ints, first_us: int, last_us: int) -> Seconds:
    """The waits of records made in ``[first_us, last_us)``; shape (n,), ascending."""
    counted = (made_us >= first_us) & (made_us < last_us)
    return np.sort((seen_us[counted] - made_us[counted]) / 1e6)


def summary(waits_s: Seconds) -> dict[str, float]:
    """Figures of at least one wait."""
    return {
        "p50_s": float(np.quantile(waits_s, 0.5)),
        "p99_s": float(np.quantile(waits_s, 0.99)),
        "max_s": float(waits_s.max()),
        "counted": len(waits_s),
    }


def by_minute(
    made_us: Ints, seen_us: Ints, first_us: int, last_us: int
) -> Sequence[Mapping[str, float]]:
    """`summary` of each minute in which records were made, in order; a drift shows here.

    A minute without seen records has only ``counted`` 0. A rest of at least half a minute is a
    minute of its own; a shorter one belongs to the last minute.
    """
    minutes = max(1, round((last_us - first_us) / _MINUTE_US))
    edges = [first_us + number * _MINUTE_US for number in range(minutes)] + [last_us]
    found = []
    for start_us, end_us in itertools.pairwise(edges):
        waits_s = waits_between(made_us, seen_us, start_us, end_us)
        found.append(summary(waits_s) if len(waits_s) else {"counted": 0.0})
    return found
