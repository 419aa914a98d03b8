"""Tables of the scaling benchmark: the cost of a unit of work as one dimension grows. Pure."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.scaling.scaling_points import ENGINES, Point

__all__ = ["tables"]

_MIB = 2**20
_PLANNED = 3
_COLUMNS = (
    "records",
    "records/s",
    "CPU-s per million records",
    "CPU-s per GB",
    "cost of a unit over the first row's",
    "over the row before",
    "broker's CPU-s per million records",
    "epochs",
    "median, s",
    "longest, s",
    "peak memory",
    "missing",
    "runs",
    "load before",
)
_UNITS = {"sizes": "byte"}  # all else: a record


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Runs of one point."""

    point: Point
    runs: Sequence[Mapping[str, Any]]

    def median(self, name: str) -> float | None:
        """The median of one figure; None: an earlier version did not measure it."""
        found = [float(run["figures"][name]) for run in self.runs if name in run["figures"]]
        return statistics.median(found) if found else None

    @property
    def per_record_us(self) -> float:
        return self.median("cpu_us") or 0.0

    @property
    def per_gb_s(self) -> float:
        """CPU-seconds of a gigabyte of values."""
        return self.per_record_us / self.point.value_bytes * 1e3

    @property
    def per_unit(self) -> float:
        """The cost that must not grow on this axis: of a record, or of a byte."""
        return self.per_gb_s if _UNITS.get(self.point.axis) == "byte" else self.per_record_us


def tables(lines: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: the machine, then a table of medians for each axis and engine."""
    if not lines:
        return "Not measured on a quiet machine yet.\n"
    by_table: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for line in lines:
        place = (line["point"]["axis"], line["point"].get("engine") or ENGINES[0])
        by_table.setdefault(place, {}).setdefault(json.dumps(line["point"]), []).append(line)
    parts = [_measured_on(lines)]
    for (axis, engine), runs in by_table.items():
        rows = [_Row(point=Point(**found[0]["point"]), runs=found) for found in runs.values()]
        rows.sort(key=lambda row: row.point.grown)
        parts.append("\n".join(_table(axis, engine, rows)))
    return "\n\n".join(parts) + "\n"


def _measured_on(lines: Sequence[Mapping[str, Any]]) -> str:
    machine = lines[-1].get("machine", {})
    names = ("processor", "cores", "memory", "system", "python", "java", "pyspark")
    on = ", ".join(f"{name} {machine[name]}" for name in names if name in machine)
    days = sorted({line["at"].partition(" ")[0] for line in lines if "at" in line})
    when = f" {days[0]}" if len(days) == 1 else f" {days[0]} to {days[-1]}" if days else ""
    return f"Measured{when} on: {on or 'a machine that was not noted'}."


def _table(axis: str, engine: str, rows: Sequence[_Row]) -> Iterator[str]:
    unit = _UNITS.get(axis, "record")
    yield f"{axis}, {engine}; a unit of work is a {unit}."
    yield ""
    yield f"| {axis} | {' | '.join(_COLUMNS)} |"
    yield "| --- " * (len(_COLUMNS) + 1) + "|"
    for before, row in zip([rows[0], *rows], rows, strict=False):
        yield f"| {row.point.grown:,g} | {' | '.join(_cells(row, rows[0], before))} |"
    few = [f"{row.point.grown:,g} ({len(row.runs)})" for row in rows if len(row.runs) < _PLANNED]
    if few:
        yield ""
        yield f"Fewer than {_PLANNED} runs: {', '.join(few)}."


def _cells(row: _Row, first: _Row, before: _Row) -> Iterator[str]:
    yield f"{row.point.records:,}"
    yield _shown(row.median("rate"), ",.0f")
    yield _shown(row.per_record_us, ".2f")
    yield "" if row.point.keys else _shown(row.per_gb_s, ".1f")  # values of keyed records are tiny
    yield _over(row, first)
    yield _over(row, before)
    yield _shown(row.median("broker_us"), ".2f")
    yield _shown(row.median("epochs"), ".0f")
    yield _shown(row.median("epoch_s"), ".2f")
    yield _shown(row.median("longest_s"), ".2f")
    yield _shown(row.median("peak_bytes"), ",.0f", _MIB) + " MiB"
    yield f"{sum(abs(run['figures']['missing']) for run in row.runs):,}"
    yield str(len(row.runs))
    yield f"{max(run['load_before'] for run in row.runs):.1f}"


def _over(row: _Row, other: _Row) -> str:
    if not other.per_unit:
        return ""
    return f"{row.per_unit / other.per_unit:.2f} x"


def _shown(value: float | None, form: str, divisor: float = 1.0) -> str:
    return "" if value is None else f"{value / divisor:{form}}"
