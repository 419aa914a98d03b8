"""What the coordinator's progress says of regions that died. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.mortal_sink import Death

__all__ = ["back_after_s", "epochs_lost_by_others", "extra_lives"]

Line = Mapping[str, Any]
"""A change of a checkpoint, as `benchmarks.pipeline.ProgressFile` writes it."""


def epochs_lost_by_others(lines: Sequence[Line], deaths: Sequence[Death]) -> int:
    """Epochs that regions lost without having died: carried, or aborted with their batch.

    A region that died may be away until it has completed a checkpoint.
    """
    away: set[str] = set()
    lost = 0
    pending = sorted(deaths, key=lambda death: death.at_s)
    for line in lines:
        while pending and pending[0].at_s <= line["at_s"]:
            away.add(pending.pop(0).region)
        if line["state"] == "decided":
            carried = set(line["carried"])
            lost += len(carried - away)
            away &= carried | {death.region for death in deaths if _is_later(death, line)}
        elif line["state"] == "aborted":
            lost += line["regions"]
    return lost


def _is_later(death: Death, line: Line) -> bool:
    """Whether a region died behind its part of a checkpoint: the next one carries it."""
    decided_s = float(line["at_s"])
    return decided_s - (line["decided_s"] or 0.0) < death.at_s <= decided_s


def back_after_s(lines: Sequence[Line], death: Death) -> float | None:
    """From a death to the mark of the first checkpoint, begun behind it, that has its region."""
    for line in lines:
        if line["state"] != "marked" or line["marked_s"] is None:
            continue
        is_behind = line["at_s"] - line["marked_s"] > death.at_s
        if is_behind and death.region in line["attempts"] and death.region not in line["carried"]:
            return float(line["at_s"] - death.at_s)
    return None


def extra_lives(lines: Sequence[Line], deaths: Sequence[Death]) -> int:
    """Lives of regions that began although none of theirs had died."""
    newest: dict[str, int] = {}
    for line in lines:
        newest |= line["attempts"]
    dead = {name: sum(death.region == name for death in deaths) for name in newest}
    return sum(max(0, lives - 1 - dead[name]) for name, lives in newest.items())
