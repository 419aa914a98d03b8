"""Deaths of regions and their effects, from the coordinator's progress and warnings. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.regions.mortal_sink import Death

__all__ = [
    "LostEpochs",
    "back_after_s",
    "begun_after_s",
    "extra_attempts",
    "lost_epochs",
    "unasked_ends",
]

Line = Mapping[str, Any]
"""A change of a checkpoint, written by `benchmarks.programs.pipeline.ProgressFile`, or a warning of
the job, written by `benchmarks.programs.regional_pipeline.EventFile`."""

_RESTARTED = re.compile(
    r"region restarted: region=(?P<region>\S+) attempt_id=\d+ cause=(?P<why>.*)", re.DOTALL
)
_MISSING = re.compile(r"\b(?:failed|missing)=(?P<names>[^\s\]]+)")
_LONGEST_WHY = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEpochs:
    """Epochs that regions lost in one checkpoint, although no kill hit them.

    Attributes:
        checkpoint: its id.
        count: of regions.
        why: how they were lost, with the job's warning.
    """

    checkpoint: int
    count: int
    why: str

    def __str__(self) -> str:
        return f"checkpoint {self.checkpoint}: {self.count} lost: {self.why}"


@dataclass(frozen=True, slots=True)
class _End:
    """The end of an attempt that a restart followed."""

    region: str
    at_s: float  # start of the next attempt
    why: str


def lost_epochs(
    lines: Sequence[Line], deaths: Sequence[Death], events: Sequence[Line] = ()
) -> list[LostEpochs]:
    """Epochs that living regions lost: skipped, or aborted with their batch.

    A region that died may be absent until it has completed a checkpoint.
    """
    away: set[str] = set()
    lost: list[LostEpochs] = []
    ends = list(_ends(events))
    pending = sorted(deaths, key=lambda death: death.at_s)
    for line in lines:
        while pending and pending[0].at_s <= line["at_s"]:
            away.add(pending.pop(0).region)
        if line["state"] == "decided":
            skipped = set(line["skipped"])
            lost += (_carried(name, line, ends) for name in sorted(skipped - away))
            away &= skipped | {death.region for death in deaths if _is_later(death, line)}
        elif line["state"] == "aborted" and line["regions"]:
            lost.append(_aborted(line, away))
    return lost


def _carried(name: str, line: Line, ends: Sequence[_End]) -> LostEpochs:
    near = min(
        (end for end in ends if end.region == name),
        key=lambda end: abs(end.at_s - line["at_s"]),
        default=None,
    )
    cause = "it did not restart" if near is None else f"its attempt ended by {near.why}"
    why = f"{name} was skipped ({line['skipped'][name]}): {cause}"
    return LostEpochs(checkpoint=line["checkpoint"], count=1, why=why)


def _aborted(line: Line, away: set[str]) -> LostEpochs:
    reason = " ".join(str(line["reason"]).split())
    found = _MISSING.search(reason)
    names = set(found["names"].split(",")) if found else set()
    killed, others = sorted(names & away), sorted(names - away)
    missing = [f"killed: {', '.join(killed)}"] if killed else []
    missing += [f"not killed: {', '.join(others)}"] if others else []
    details = f"; of those it lacked, {'; '.join(missing)}" if missing else ""
    return LostEpochs(
        checkpoint=line["checkpoint"],
        count=line["regions"],
        why=f"it was aborted{details}: {_short(reason or 'no reason given')}",
    )


def _ends(events: Sequence[Line]) -> Iterator[_End]:
    for event in events:
        found = _RESTARTED.search(event["message"])
        if found:
            yield _End(found["region"], event["at_s"], _short(found["why"]))


def _short(text: str) -> str:
    """The first line with text."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line), "no text")[:_LONGEST_WHY]


def _is_later(death: Death, line: Line) -> bool:
    """Whether a region died after its part of a checkpoint: the next one skips it."""
    decided_s = float(line["at_s"])
    return decided_s - (line["decided_s"] or 0.0) < death.at_s <= decided_s


def back_after_s(lines: Sequence[Line], death: Death) -> float | None:
    """Seconds from a death to the marker of the first later checkpoint with its region."""
    for line in lines:
        if line["state"] != "marked" or line["marked_s"] is None:
            continue
        is_behind = line["at_s"] - line["marked_s"] > death.at_s
        if is_behind and death.region in line["attempts"] and death.region not in line["skipped"]:
            return float(line["at_s"] - death.at_s)
    return None


def begun_after_s(events: Sequence[Line], death: Death) -> float | None:
    """Seconds from a death to the region's next attempt, after the old one is settled."""
    begun = (end.at_s for end in _ends(events) if end.region == death.region)
    return next((at_s - death.at_s for at_s in begun if at_s > death.at_s), None)


def extra_attempts(lines: Sequence[Line], deaths: Sequence[Death]) -> int:
    """Restarts of regions that no death explains."""
    newest: dict[str, int] = {}
    for line in lines:
        newest |= line["attempts"]
    dead = {name: sum(death.region == name for death in deaths) for name in newest}
    return sum(max(0, attempts - 1 - dead[name]) for name, attempts in newest.items())


def unasked_ends(events: Sequence[Line], deaths: Sequence[Death]) -> list[str]:
    """The job's causes for the ends of attempts that were not killed.

    A death explains the first restart of its region after it.
    """
    unused = sorted(deaths, key=lambda death: death.at_s)
    found = []
    for end in _ends(events):
        cause = next(
            (one for one in unused if one.region == end.region and one.at_s < end.at_s), None
        )
        if cause is None:
            found.append(f"{end.region} ended by itself: {end.why}")
        else:
            unused.remove(cause)
    return found
