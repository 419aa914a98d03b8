"""Summaries of the runs of one setting: medians, spread, ratios, and the readers' verdicts."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.results import Result, Setting

__all__ = ["PLANNED_TURNS", "Ratio", "Row", "Spread", "ratio", "rows_by_setting"]

PLANNED_TURNS = 3
"""Turns of each row in the documentation; a table notes rows with fewer."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and most of some runs."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, runs: Sequence[float]) -> "Spread":
        """The spread of at least one run."""
        return cls(statistics.median(runs), min(runs), max(runs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One contender in one setting.

    Attributes:
        runs: those with figures.
        failure: why there are none, or "".

    """

    contender: str
    label: str
    guarantee: str
    runs: Sequence[Result]
    failure: str

    @property
    def is_ours(self) -> bool:
        """Whether the contender is this project's."""
        return self.contender.startswith("sluice")

    def spread(self, figure: str, shown: Callable[[float], float] = float) -> Spread:
        """The spread of one figure over the runs."""
        return Spread.of([shown(float(run.figures[figure])) for run in self.runs])

    def by_turn(self, figure: str) -> Mapping[int, float]:
        """One figure by turn."""
        return {run.turn: float(run.figures[figure]) for run in self.runs}

    def checked(self) -> str:
        """The reader's verdict on all runs, in words."""
        totals: dict[str, int] = defaultdict(int)
        for run in self.runs:
            for fault in ("lost", "duplicated", "unexpected", "reordered"):
                totals[fault] += int(run.figures["verdict"][fault])
        found = [f"{count:,} {fault}" for fault, count in totals.items() if count]
        return ", ".join(found) or "every record once, in order"

    def seen(self) -> str:
        """The same of a latency run: records that were never seen, or seen twice."""
        missing = sum(int(run.figures["sent"]) - int(run.figures["seen"]) for run in self.runs)
        if not missing:
            return "all seen"
        return f"{missing:,} not seen in time" if missing > 0 else f"{-missing:,} seen twice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The ratio of one figure of two contenders in one setting.

    Attributes:
        of_medians: one median over the other; a goal judges it.
        by_turn: ratios of the turns that both ran, next to each other on one machine; may be empty.
        turns: how many runs each median has.
    """

    of_medians: float
    by_turn: Sequence[float]
    turns: tuple[int, int]


def ratio(one: Row, other: Row, figure: str, *, other_figure: str = "") -> Ratio:
    """The ratio of two rows with runs; ``other_figure``: of the other row, if different."""
    ones, others = one.by_turn(figure), other.by_turn(other_figure or figure)
    return Ratio(
        of_medians=statistics.median(ones.values()) / statistics.median(others.values()),
        by_turn=[ones[turn] / others[turn] for turn in sorted(ones.keys() & others.keys())],
        turns=(len(one.runs), len(other.runs)),
    )


def rows_by_setting(results: Sequence[Result]) -> Mapping[Setting, list[Row]]:
    """Rows of each setting, in the order of the results; a repeated run replaces the older one."""
    runs: dict[Setting, dict[str, dict[int, Result]]] = {}
    for result in results:
        by_name = runs.setdefault(result.setting, {})
        by_turn = by_name.setdefault(result.contender, {})
        if not result.failure or result.turn not in by_turn:
            by_turn[result.turn] = result
    return {
        setting: [_row(list(by_turn.values())) for by_turn in by_name.values()]
        for setting, by_name in runs.items()
    }


def _row(results: Sequence[Result]) -> Row:
    last = results[-1]
    failures = [one.failure.strip().splitlines()[0] for one in results if one.failure]
    return Row(
        contender=last.contender,
        label=last.label,
        guarantee=last.guarantee,
        runs=[one for one in results if not one.failure],
        failure=failures[-1] if failures else "",
    )
