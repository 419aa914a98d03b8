"""Figures and their table."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

__all__ = ["Figure", "table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table.

    Attributes:
        what: what was measured.
        runs: one number for each run.
        unit: shown behind the numbers.
        goal: what it must reach, as text; "" when nothing is asked.
        least, most: the same as numbers, for the verdict.
        note: what else must be said.
    """

    what: str
    runs: Sequence[float]
    unit: str
    goal: str = ""
    least: float | None = None
    most: float | None = None
    note: str = ""

    @property
    def median(self) -> float:
        """Of the runs."""
        return statistics.median(self.runs)

    @property
    def is_reached(self) -> bool | None:
        """Whether the goal is; None without one."""
        if self.least is None and self.most is None:
            return None
        above = self.least is None or self.median >= self.least
        return above and (self.most is None or self.median <= self.most)


def table(figures: Sequence[Figure], machine: Sequence[tuple[str, str]]) -> tuple[Table, Table]:
    """The figures, and what they were measured on."""
    shown = Table(title="medians", title_justify="left")
    for column in ("what", "median", "runs", "goal", "", "note"):
        shown.add_column(column, justify="right" if column == "median" else "left")
    for figure in figures:
        runs = " ".join(_number(run) for run in figure.runs)
        median = f"{_number(figure.median)} {figure.unit}"
        shown.add_row(figure.what, median, runs, figure.goal, _mark(figure), figure.note)
    on = Table(title="measured on", title_justify="left", show_header=False)
    for name, value in machine:
        on.add_row(name, value)
    return shown, on


def _mark(figure: Figure) -> str:
    if figure.is_reached is None:
        return ""
    return "[green]reached" if figure.is_reached else "[red]missed"


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
