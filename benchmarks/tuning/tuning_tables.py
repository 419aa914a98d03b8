"""Tables of the cost and gain of each setting. Pure.

The speed of a machine changes within minutes, so the tables compare each value with the default of
the same turn. The absolute figures show the total.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["DEFAULT", "tables"]

DEFAULT = "default"
"""The value of a run with our default."""

_COLUMNS = (
    ("cpu_s_per_million", "CPU-s per million", ".2f", 1.0),
    ("per_s", "records/s", ",.0f", 1.0),
    ("memory_bytes", "memory, MiB", ".0f", 2.0**-20),
    ("p50_ms", "p50, ms", ".0f", 1.0),
    ("p99_ms", "p99, ms", ".0f", 1.0),
)
_COMPARED = {"cpu_s_per_million": "CPU over default", "per_s": "rate over default"}

_Line = Mapping[str, Any]


def tables(lines: Sequence[_Line]) -> str:
    """Markdown: a table for each load with medians, and minimum and maximum in brackets.

    Args:
        lines: runs, as `benchmarks.tuning.tuning` writes them, in the order of the rows.
    """
    by_load: dict[str, list[_Line]] = {}
    for line in lines:
        by_load.setdefault(line["load"], []).append(line)
    return "\n\n".join("\n".join(_table(load, found)) for load, found in by_load.items())


def _table(load: str, lines: Sequence[_Line]) -> Iterator[str]:
    shown = [column for column in _COLUMNS if any(column[0] in line["figures"] for line in lines)]
    heads = [f"{load}: setting", "value", "runs"]
    for name, title, _, _ in shown:
        heads += [title, _COMPARED[name]] if name in _COMPARED else [title]
    yield f"| {' | '.join(heads)} |"
    yield "| --- " * len(heads) + "|"
    for setting in dict.fromkeys(line["setting"] for line in lines):
        mine = [line for line in lines if line["setting"] == setting]
        beside = {line["turn"]: line["figures"] for line in mine if line["value"] == DEFAULT}
        for value in dict.fromkeys(line["value"] for line in sorted(mine, key=_turn_and_place)):
            runs = [line for line in mine if line["value"] == value]
            cells = [f"`{setting}`", value, str(len(runs))]
            for name, _, form, by in shown:
                cells.append(_cell([line["figures"][name] * by for line in runs], form))
                compared = [_over_default(runs, beside, name) if value != DEFAULT else ""]
                cells += compared if name in _COMPARED else []
            yield f"| {' | '.join(cells)} |"


def _turn_and_place(line: _Line) -> tuple[int, bool]:
    """The values in the order of turn 0, the default first."""
    return line["turn"], line["value"] != DEFAULT


def _over_default(
    runs: Sequence[_Line], beside: Mapping[int, Mapping[str, float]], name: str
) -> str:
    pairs = [(run["figures"][name], beside.get(run["turn"])) for run in runs]
    ratios = [figure / default[name] for figure, default in pairs if default is not None]
    return f"{_cell(ratios, '.2f')} x" if ratios else ""


def _cell(found: Sequence[float], form: str) -> str:
    middle = format(statistics.median(found), form)
    if len(found) == 1:
        return middle
    return f"{middle} ({format(min(found), form)} to {format(max(found), form)})"
