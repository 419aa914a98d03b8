"""How rows travel between the subtasks of two vertices, and which subtasks that joins. Pure."""

import enum
from collections.abc import Mapping
from itertools import pairwise

from sluice.runtime.errors import ConfigError

__all__ = ["Distribution", "choose_distribution", "rescale_channels"]


class Distribution(enum.Enum):
    """How an edge distributes rows."""

    FORWARD = "forward"  # subtask i to subtask i
    RESCALE = "rescale"  # each subtask to, or from, a few neighbours: `rescale_channels`
    REBALANCE = "rebalance"  # evenly, each subtask to all
    KEY_BY = "key-by"  # by key, each subtask to all: aggregations and joins
    SHUFFLE = "shuffle"  # Spark's planner decides; perhaps each subtask to all

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

    By default a function or a sink accepts any distribution. Equal numbers are forwarded. If one
    number is a multiple of the other, they are rescaled: all subtasks of a side then have equally
    many channels, so their load is even. Other numbers are rebalanced, which joins everything,
    because a rescale would give some subtasks one channel more than others. A rescale from 2 to 3,
    for example, gives one subtask two channels and the other subtask one.

    With ``force_rescale`` the user accepts this uneven load to get more regions. For a frame that
    Spark plans, the user also promises that rows of different subtasks are independent. It turns a
    rebalance or a shuffle into a rescale. It cannot replace a distribution by key: the rows of one
    key would reach several subtasks.

    Args:
        upstream, downstream: subtasks; >= 1.
        wanted: required by the downstream operator; None: any distribution.
        force_rescale: whether the user forces a rescale.
        where: names the edge in an error.
    Raises:
        ConfigError: a rescale is forced on rows that are distributed by key.
    """
    chosen = wanted or _default(upstream, downstream)
    if not force_rescale or chosen is Distribution.FORWARD:
        return chosen
    if chosen is Distribution.KEY_BY:
        raise ConfigError(
            "force_rescale is not possible for rows that are distributed by key",
            {**where, "distribution": chosen.value},
            "Remove force_rescale: state and joins need all rows of a key in one subtask.",
        )
    return Distribution.RESCALE


def _default(upstream: int, downstream: int) -> Distribution:
    if upstream == downstream:
        return Distribution.FORWARD
    if max(upstream, downstream) % min(upstream, downstream) == 0:
        return Distribution.RESCALE
    return Distribution.REBALANCE


def rescale_channels(upstream: int, downstream: int) -> tuple[range, ...]:
    """The downstream subtasks that a rescale connects each upstream subtask to.

    Every subtask has a channel. Within a side, the numbers of channels differ by one at most. There
    are as many regions as that allows: ``min(upstream, downstream)``.

    Proof. *No more*: every subtask has a channel, so every region has a subtask of both sides, and
    the smaller side has only ``min`` of them. *So many*: let ``s <= l`` be the two numbers. Connect
    subtask ``j`` of the larger side to ``floor(j * s / l)`` of the smaller one alone. Then each
    subtask of the larger side has one channel. Subtask ``i`` of the smaller one has the ``j`` of
    ``i * l / s <= j < (i + 1) * l / s``, an interval of length ``l / s >= 1``. That holds
    ``floor(l / s)`` or ``ceil(l / s)`` integers, at least one. Two subtasks of the smaller side
    share no channel, hence ``s`` regions.

    If all subtasks of a side must have equally many channels, the maximum is
    ``gcd(upstream, downstream)``. Let each upstream subtask have ``a`` channels and each downstream
    one ``b``. Then ``upstream * a == downstream * b``, and ``u * a == d * b`` for a region of ``u``
    and ``d`` subtasks. So ``u / d == upstream / downstream``, and ``u`` is a multiple of
    ``upstream / gcd``. Both maxima are equal if and only if one number is a multiple of the other:
    the case that `choose_distribution` rescales by default.

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
