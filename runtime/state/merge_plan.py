"""Which parts of a split's state to merge next: pure.

Parts are adjacent and oldest first. Parts of about the same size form a tier: tier *t + 1* is
*fan-out* times as large as tier *t*. If a tier has as many parts as the fan-out, they become one
part, together with all later ones. So a split has O(log n) parts after n epochs, and each byte is
written again at most once for each tier. The fan-out grows with the square root of the state's
size: two tiers are enough for a state of up to 1,000 epochs' changes.
"""

import math
from collections.abc import Sequence

__all__ = ["first_to_merge", "most_parts"]

_LEAST_FAN_OUT = 8
_MOST_FAN_OUT = 32


def first_to_merge(sizes: Sequence[int], *, unit: float) -> int | None:
    """From which part on to merge all parts into one; None: nothing is to be merged yet.

    Args:
        sizes: bytes of each part, oldest first.
        unit: bytes that an epoch's changes usually have.
    """
    fan_out = _fan_out(sizes, unit)
    if len(sizes) < fan_out:
        return None
    tiers = [_tier(size, unit, fan_out) for size in sizes]
    for tier in range(max(tiers) + 1):
        first = len(sizes)
        while first and tiers[first - 1] <= tier:
            first -= 1
        found = tiers[first:]
        if found.count(tier) >= fan_out or len(found) >= fan_out * (tier + 1):
            return first
    return None


def most_parts(sizes: Sequence[int], *, unit: float) -> int:
    """How many parts there may be without a merge being due."""
    fan_out = _fan_out(sizes, unit)
    return fan_out * (1 + max((_tier(size, unit, fan_out) for size in sizes), default=0))


def _fan_out(sizes: Sequence[int], unit: float) -> int:
    return min(max(math.ceil(math.sqrt(sum(sizes) / unit)), _LEAST_FAN_OUT), _MOST_FAN_OUT)


def _tier(size: int, unit: float, fan_out: int) -> int:
    """A merged part has up to ``fan_out`` times what its parts had: the middle is the border."""
    return max(0, round(math.log(max(size, 1) / unit, fan_out)))
