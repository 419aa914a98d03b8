"""Figures, their table, and their log."""

import argparse
import json
import os
import statistics
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

__all__ = [
    "PARTS_RESULTS",
    "Figure",
    "Measured",
    "command_line",
    "log_figures",
    "read_figures",
    "table",
]

PARTS_RESULTS = Path(__file__).parents[1] / "parts_results.jsonl"
"""The committed log of the parts' figures; `report` makes lines of the goals from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table.

    Attributes:
        what: the name of the figure.
        runs: one number for each run.
        unit: shown after the numbers.
        goal: as text; "" without one.
        least, most: the goal as numbers, for the verdict.
        note: further facts.
        details: lines about single events; shown below the table.
    """

    what: str
    runs: Sequence[float]
    unit: str
    goal: str = ""
    least: float | None = None
    most: float | None = None
    note: str = ""
    details: Sequence[str] = ()

    @property
    def median(self) -> float:
        """The median of the runs."""
        return statistics.median(self.runs)

    @property
    def is_reached(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        if self.least is None and self.most is None:
            return None
        above = self.least is None or self.median >= self.least
        return above and (self.most is None or self.median <= self.most)

    def shown(self) -> str:
        """Median and unit."""
        return f"{_number(self.median)} {self.unit}"


def table(figures: Sequence[Figure], machine: Sequence[tuple[str, str]]) -> Sequence[Table]:
    """The figures, the machine, and the details."""
    shown = Table(title="medians", title_justify="left")
    for column in ("what", "median", "runs", "goal", "", "note"):
        shown.add_column(column, justify="right" if column == "median" else "left")
    for figure in figures:
        runs = " ".join(_number(run) for run in figure.runs)
        shown.add_row(figure.what, figure.shown(), runs, figure.goal, _mark(figure), figure.note)
    on = Table(title="measured on", title_justify="left", show_header=False)
    for name, value in machine:
        on.add_row(name, value)
    events = [(figure.what.strip(), detail) for figure in figures for detail in figure.details]
    if not events:
        return shown, on
    details = Table(title="details", title_justify="left", show_header=False)
    for what, detail in events:
        details.add_row(what, detail)
    return shown, on, details


def _mark(figure: Figure) -> str:
    if figure.is_reached is None:
        return ""
    return "[green]reached" if figure.is_reached else "[red]missed"


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


# --- the log --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A figure of an earlier run of a part.

    Attributes:
        run: id that all figures of one run share.
        part: its name on the command line.
        engine: of the job; "" if the part has only one.
        command: that measured it.
        at: when, in local time.
        load_before: runnable processes, mean of the last minute.
        machine: see `benchmarks.measuring.machine.describe`.
    """

    run: str
    part: str
    engine: str
    command: str
    at: str
    load_before: float
    figure: Figure
    machine: Mapping[str, str] = field(default_factory=dict)


def command_line(arguments: Sequence[str]) -> str:
    """The command that measures a figure again, without the path of the log.

    Args:
        arguments: after ``python -m benchmarks``.
    """
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--results")
    _, kept = where.parse_known_args(arguments)
    return " ".join(["python -m benchmarks", *kept])


def log_figures(path: Path, figures: Sequence[Figure], **where: Any) -> None:  # noqa: ANN401 - fields of `Measured`
    """Append each figure of a part's run as a line of JSON, and sync the file.

    Args:
        where: all fields of `Measured` except ``figure``, ``run`` and ``at``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    run, at = uuid.uuid4().hex[:8], time.strftime("%Y-%m-%d %H:%M")
    with path.open("a", encoding="utf-8") as file:
        for figure in figures:
            measured = Measured(run=run, at=at, figure=figure, **where)
            file.write(json.dumps(asdict(measured)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_figures(path: Path) -> list[Measured]:
    """The newest run of each part and engine; skips a line that a kill truncated."""
    text = path.read_text("utf-8") if path.exists() else ""
    newest: dict[tuple[str, str], list[Measured]] = {}
    for line in text[: text.rfind("\n") + 1].splitlines():
        fields: dict[str, Any] = json.loads(line)
        measured = Measured(**{**fields, "figure": Figure(**fields["figure"])})
        run = newest.setdefault((measured.part, measured.engine), [])
        if run and run[0].run != measured.run:
            run.clear()
        run.append(measured)
    return [measured for run in newest.values() for measured in run]
