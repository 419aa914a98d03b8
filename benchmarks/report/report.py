"""``python -m benchmarks report``: tables and a chart of all results.

It reads the results of `peers`, `steady`, `keyed`, `scaling` and `tuning`, and the log of the
parts. Without them, the tables say that they were not measured.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.keyed import keyed_tables
from benchmarks.keyed.keyed import RESULTS as KEYED
from benchmarks.measuring.figures import PARTS_RESULTS, read_figures
from benchmarks.peers.chart import draw
from benchmarks.peers.command import RESULTS
from benchmarks.peers.results import Result, read_results
from benchmarks.peers.summary import rows_by_setting
from benchmarks.peers.tables import main_setting, markdown, slowest_pace
from benchmarks.report import goals
from benchmarks.scaling.scaling import RESULTS as SCALING
from benchmarks.scaling.scaling import read_lines
from benchmarks.scaling.scaling_tables import tables as scaling_tables
from benchmarks.tuning.tuning import RESULTS as TUNING
from benchmarks.tuning.tuning_tables import tables as tuning_tables

__all__ = ["main", "with_section"]

_ROOT = Path(__file__).resolve().parents[2]
_PAGES = _ROOT / "docs" / "research"
_CHART = _PAGES / "peers.svg"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables; with ``--write`` put them, and the chart, into the documentation."""
    args = _parser().parse_args(arguments)
    results = read_results(args.results or [RESULTS])
    figures, lines = read_figures(args.parts), read_lines(args.scaling)
    if not (results or figures or lines):
        sys.exit("there are no results: run `python -m benchmarks peers` first")
    settings = read_lines(args.tuning)
    races = [result for result in results if result.setting.kind == "throughput"]
    if args.write and any(result.setting.is_quick for result in results):
        sys.exit("quick runs are not for the documentation")
    page = (_PAGES / "benchmarks.md").read_text("utf-8")
    _, former, _ = _around(page, "goals")
    keyed = read_results([args.keyed])
    judged = goals.judged([*results, *keyed], figures)
    goals_table = goals.table(judged, former=former)
    text = markdown(results) if results else ""
    print("\n".join(filter(None, [text, goals_table, scaling_tables(lines) if lines else ""])))
    if args.chart and races:
        args.chart.write_text(_chart(results), "utf-8")
    if args.write:
        _write_peers(results, text, has_race=bool(races))
        _put(_PAGES / "benchmarks.md", goals_table, "goals")
        _put(_PAGES / "benchmarks.md", keyed_tables.markdown(keyed, figures), "keyed")
        if lines:
            _put(_PAGES / "benchmarks.md", scaling_tables(lines), "scaling")
        if settings:
            _put(_PAGES / "tuning.md", tuning_tables(settings), "tuning")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks report", description=__doc__)
    parser.add_argument("results", type=Path, nargs="*", help="JSON lines of `peers` and `steady`")
    parser.add_argument("--keyed", type=Path, default=KEYED, help="JSON lines of `keyed`")
    parser.add_argument("--parts", type=Path, default=PARTS_RESULTS, help="JSON lines of the parts")
    parser.add_argument("--scaling", type=Path, default=SCALING, help="JSON lines of `scaling`")
    parser.add_argument("--tuning", type=Path, default=TUNING, help="JSON lines of `tuning`")
    parser.add_argument(
        "--write", action="store_true", help="into docs/research; not of quick runs"
    )
    parser.add_argument("--chart", type=Path, help="an SVG file for the chart alone")
    return parser


def with_section(text: str, section: str, name: str = "peers") -> str:
    """``text`` with a new part between the two marks of that name.

    Raises:
        ValueError: the text has no such marks.
    """
    before, _, after = _around(text, name)
    return f"{before}\n{section.strip()}\n{after}"


def _around(text: str, name: str) -> tuple[str, str, str]:
    """The text before, between and after the marks of a section; the outer parts have the marks."""
    begin_mark, end_mark = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, begin, rest = text.partition(begin_mark)
    section, end, after = rest.partition(end_mark)
    if not (begin and end):
        raise ValueError(f"the text has no {begin_mark} and {end_mark}")
    return before + begin, section, end + after


def _write_peers(results: Sequence[Result], text: str, *, has_race: bool) -> None:
    if not results:
        return
    chart = ""
    if has_race:
        _CHART.write_text(_chart(results), "utf-8")
        chart = f"![records a second]({_CHART.name})\n\n"
    _put(_PAGES / "benchmarks.md", f"{chart}{text}")


def _put(path: Path, section: str, name: str = "peers") -> None:
    path.write_text(with_section(path.read_text("utf-8"), section, name), "utf-8")


def _chart(results: Sequence[Result]) -> str:
    settings = rows_by_setting(results)
    setting, pace = main_setting(settings), slowest_pace(settings)
    return draw(setting, settings[setting], settings[pace] if pace else [])


if __name__ == "__main__":
    main()
