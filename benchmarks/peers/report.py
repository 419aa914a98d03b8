"""``python -m benchmarks report``: a table and a chart of what `peers` has measured."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.peers.chart import draw
from benchmarks.peers.command import RESULTS
from benchmarks.peers.results import Result, Setting, read_results
from benchmarks.peers.summary import Row, Spread, rows_by_setting

__all__ = ["main", "markdown", "with_section"]

_ROOT = Path(__file__).resolve().parents[2]
_CHART = Path("docs") / "peers.svg"
_BEGIN, _END = "<!-- peers: begin -->", "<!-- peers: end -->"
_QUIET_LOAD = 1.0
_MIB = 2**20


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables; with ``--write`` put them, and the chart, into the documentation."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks report", description=__doc__)
    parser.add_argument("results", type=Path, nargs="*", help="JSON lines of `peers`")
    parser.add_argument(
        "--write", action="store_true", help="into README.md and docs; not of quick runs"
    )
    parser.add_argument("--chart", type=Path, help="an SVG file for the chart alone")
    args = parser.parse_args(arguments)
    results = read_results(args.results or [RESULTS])
    if not results:
        sys.exit("there are no results: run `python -m benchmarks peers` first")
    text = markdown(results)
    print(text)
    if args.chart:
        args.chart.write_text(_chart(results), "utf-8")
    if args.write:
        if any(result.setting.is_quick for result in results):
            sys.exit("quick runs are not for the documentation")
        (_ROOT / _CHART).write_text(_chart(results), "utf-8")
        _put(_ROOT / "docs" / "benchmarks.md", f"![records a second](peers.svg)\n\n{text}")
        _put(_ROOT / "README.md", f"![records a second]({_CHART})\n\n{_short(results)}")


def markdown(results: Sequence[Result]) -> str:
    """A table for each setting, and what it was measured on."""
    parts = [_measured_on(results)]
    for setting, rows in rows_by_setting(results).items():
        make = _throughput if setting.kind == "throughput" else _latency
        parts.append("\n".join(make(setting, rows)))
    return "\n\n".join(parts) + "\n"


def with_section(text: str, section: str) -> str:
    """``text`` with what stands between its two marks replaced.

    Raises:
        ValueError: it has no such marks.
    """
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the text has no {_BEGIN} and {_END}")
    return f"{before}{_BEGIN}\n{section.strip()}\n{_END}{after}"


def _put(path: Path, section: str) -> None:
    path.write_text(with_section(path.read_text("utf-8"), section), "utf-8")


def _short(results: Sequence[Result]) -> str:
    """The table that the chart shows."""
    settings = rows_by_setting(results)
    setting = _main_setting(settings)
    return "\n".join([_measured_on(results), "", *_throughput(setting, settings[setting])])


def _main_setting(settings: Mapping[Setting, Sequence[Row]]) -> Setting:
    """Most records of 100 bytes."""
    races = [setting for setting in settings if setting.kind == "throughput"]
    return max(races, key=lambda setting: (setting.value_bytes == 100, setting.records))


def _chart(results: Sequence[Result]) -> str:
    settings = rows_by_setting(results)
    paced = [setting for setting in settings if setting.kind == "latency"]
    slowest = max(paced, key=lambda setting: setting.interval_s) if paced else None
    setting = _main_setting(settings)
    return draw(setting, settings[setting], settings[slowest] if slowest else [])


def _measured_on(results: Sequence[Result]) -> str:
    """Machine, dates, and whether others used it."""
    machine = results[-1].machine
    days = sorted({result.at.partition(" ")[0] for result in results})
    sittings = len({result.sitting for result in results})
    load = max(result.load_before for result in results)
    names = ("processor", "cores", "memory", "system", "python", "java", "confluent-kafka")
    on = ", ".join(f"{name} {machine[name]}" for name in names if name in machine)
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    lines = [f"Measured {when} on: {on}; {sittings} broker{'s' if sittings > 1 else ''} in turn."]
    if any(result.setting.is_quick for result in results):
        lines.append("**Quick runs: a first look, not figures to go by.**")
    # A run leaves load behind for the next one; what is far above the cores is somebody else's.
    first = [result.load_before for result in results if result.turn == 0][:1]
    if first and first[0] > _QUIET_LOAD:
        lines.append(
            f"**The machine was busy with other work: load {first[0]:.1f} before the first run, "
            f"at most {load:.1f}.**"
        )
    return "\n".join(lines)


def _throughput(setting: Setting, rows: Sequence[Row]) -> Iterator[str]:
    millions = setting.records / 1e6
    yield (
        f"{setting.records:,} records of {setting.value_bytes} bytes, 4 partitions, "
        f"commits every {setting.interval_s:g} s. Median (least to most)."
    )
    yield ""
    yield (
        "| | guarantee | records/s, whole run | second half | CPU-s per million records "
        "| with start | peak memory | a `read_committed` reader finds |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in sorted(rows, key=_by_rate):
        name = _name(row)
        if not row.runs:
            yield f"| {name} | {row.guarantee} | did not run: {_cell(row.failure)} | | | | | |"
            continue
        cells = (
            _shown(row.spread("rate"), ",.0f"),
            _shown(row.spread("second_half_rate"), ",.0f"),
            _shown(row.spread("cpu_s", lambda s: s / millions), ".1f"),
            _shown(row.spread("cpu_with_start_s", lambda s: s / millions), ".1f"),
            f"{row.spread('peak_bytes').median / _MIB:,.0f} MiB",
            row.checked() + _also_failed(row),
        )
        yield f"| {name} | {row.guarantee} | {' | '.join(cells)} |"


def _latency(setting: Setting, rows: Sequence[Row]) -> Iterator[str]:
    yield (
        f"From made to seen by a `read_committed` reader, {setting.records:,} records/s of "
        f"{setting.value_bytes} bytes, commits every {setting.interval_s:g} s. "
        "Median (least to most)."
    )
    yield ""
    yield "| | guarantee | p50, s | p99, s | max, s | cores in use | |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for row in sorted(rows, key=_by_latency):
        name = _name(row)
        if not row.runs:
            yield f"| {name} | {row.guarantee} | did not run: {_cell(row.failure)} | | | | |"
            continue
        cells = [_shown(row.spread(one), ".3f") for one in ("p50_s", "p99_s", "max_s")]
        cells += [f"{row.spread('cores').median:.2f}", row.seen() + _also_failed(row)]
        yield f"| {name} | {row.guarantee} | {' | '.join(cells)} |"


def _name(row: Row) -> str:
    label = _cell(row.label)
    return f"**{label}**" if row.is_ours else label


def _by_rate(row: Row) -> float:
    return -row.spread("rate").median if row.runs else float("inf")


def _by_latency(row: Row) -> float:
    return row.spread("p50_s").median if row.runs else float("inf")


def _shown(spread: Spread, form: str) -> str:
    median = f"{spread.median:{form}}"
    if spread.least == spread.most:
        return median
    return f"{median} ({spread.least:{form}} to {spread.most:{form}})"


def _also_failed(row: Row) -> str:
    return f"; a run failed: {_cell(row.failure)}" if row.failure else ""


def _cell(text: str) -> str:
    return text.replace("|", "/")


if __name__ == "__main__":
    main()
