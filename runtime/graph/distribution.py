"""How the rows of one vertex reach the subtasks of the next, and what that joins. Pure."""

import enum
from collections.abc import Mapping
from itertools import pairwise

from sluice.runtime.errors import ConfigError

__all__ = ["Distribution", "choose_distribution", "rescale_channels"]


class Distribution(enum.Enum):
    """What an edge does with the rows."""

    FORWARD = "forward"  # subtask i to subtask i
    RESCALE = "rescale"  # each subtask to, or from, a few neighbours: `rescale_channels`
    REBALANCE = "rebalance"  # evenly, from each to all
    KEY_BY = "key-by"  # by key, from each to all: an aggregation, either input of a join
    SHUFFLE = "shuffle"  # as Spark's planner sees fit: it may be from each to all

    @property
    def joins(self) -> bool:
        """Whether all subtasks at its two ends must restart together."""
        return self not in (Distribution.FORWARD, Distribution.RESCALE)


def choose_distribution(
    upstream: int,
    downstream: int,
    *,
    wanted: Distribution | None = None,
    force_rescale: bool = False,
    where: Mapping[str, object],
) -> Distribution:
    """The distribution of an edge from ``upstream`` to ``downstream`` subtasks.

    By default a function or a sink takes rows as they come. Equal numbers are forwarded; where one
    is a multiple of the other they are rescaled, for each subtask then has as many channels as its
    siblings, so their load is even. Other numbers are rebalanced, which joins everything: a rescale
    gives some subtasks one channel more, e.g. of 2 to 3 one that serves two and one that serves
    one.

    ``force_rescale`` is the user's word that this unevenness is welcome for the regions that it
    buys, and, of what Spark plans, that no two rows of different subtasks have to meet. It makes a
    rescale of a rebalance and of a shuffle. It cannot overrule a key: the rows of one key would
    end in several places.

    Args:
        upstream, downstream: subtasks; >= 1.
        wanted: what the operator behind the edge needs; None: nothing, rows as they come.
        force_rescale: whether the user asks for a rescale against the default.
        where: names the edge in an error.
    Raises:
        ConfigError: a rescale is forced on rows that go by key.
    """
    chosen = wanted or _default(upstream, downstream)
    if not force_rescale or chosen is Distribution.FORWARD:
        return chosen
    if chosen is Distribution.KEY_BY:
        raise ConfigError(
            "a rescale is forced on rows that go by key",
            {**where, "distribution": chosen.value},
            "State and joins need all rows of a key in one place: leave force_rescale out.",
        )
    return Distribution.RESCALE


def _default(upstream: int, downstream: int) -> Distribution:
    if upstream == downstream:
        return Distribution.FORWARD
    if max(upstream, downstream) % min(upstream, downstream) == 0:
        return Distribution.RESCALE
    return Distribution.REBALANCE


def rescale_channels(upstream: int, downstream: int) -> tuple[range, ...]:
    """The downstream subtasks that each upstream subtask is connected to by a rescale.

    Every subtask has a channel; on either side their numbers differ by one at most; and there are
    as many regions as that allows, ``min(upstream, downstream)``.

    Proof. *No more*: every subtask has a channel, so every region has a subtask of both sides, and
    the smaller side has only ``min`` of them. *So many*: let ``s <= l`` be the two numbers. Subtask
    ``j`` of the larger side is given to ``floor(j * s / l)`` of the smaller one, and to no other.
    Then each of the larger side has one channel, and subtask ``i`` of the smaller one has the ``j``
    of ``i * l / s <= j < (i + 1) * l / s``, an interval of length ``l / s >= 1``: ``floor(l / s)``
    or ``ceil(l / s)`` of them, at least one. Two of the smaller side share nothing, hence ``s``
    regions.

    (With no difference at all, on neither side, the maximum is ``gcd(upstream, downstream)``: where
    each upstream subtask has ``a`` channels and each downstream one ``b``, the whole gives
    ``upstream * a == downstream * b`` and a region of ``u`` and ``d`` subtasks ``u * a == d * b``,
    so ``u / d == upstream / downstream``, and ``u`` is a multiple of ``upstream / gcd``. Both
    maxima agree exactly where one number is a multiple of the other, which is where
    `choose_distribution` rescales unasked.)

    Args:
        upstream, downstream: subtasks; >= 1.
    Returns:
        One range per upstream subtask, non-empty, non-decreasing.
    """
    if upstream >= downstream:
        owners = (at * downstream // upstream for at in range(upstream))
        return tuple(range(owner, owner + 1) for owner in owners)
    bounds = [-(-at * downstream // upstream) for at in range(upstream + 1)]  # rounded up
    return tuple(range(start, end) for start, end in pairwise(bounds))
