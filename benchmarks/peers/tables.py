"""Tables of ours and the peers, as Markdown. Pure.

The tables name missing rows, and rows with fewer turns than planned.
"""

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.peers.results import Result, Setting
from benchmarks.peers.roster import CONTENDERS
from benchmarks.peers.summary import (
    PLANNED_TURNS,
    Ratio,
    Row,
    Spread,
    ratio,
    rows_by_setting,
)

__all__ = [
    "MEASURE",
    "main_setting",
    "markdown",
    "measured_on",
    "shown_ratio",
    "slowest_pace",
]

MEASURE = "flink-sql"
"""The contender that the tables compare all figures with."""

_WEAK = "-weak"
_QUIET_LOAD = 1.0
_MIB = 2**20


def markdown(results: Sequence[Result]) -> str:
    """The machine, a table for each setting, and ours with both guarantees."""
    parts = [measured_on(results)]
    make = {
        "throughput": _throughput,
        "counts": _throughput,
        "latency": _latency,
        "steady": _steady,
    }
    settings = rows_by_setting(results)
    for setting, rows in sorted(settings.items(), key=lambda item: _place(item[0])):
        parts.append("\n".join(make[setting.kind](setting, rows)))
    guarantees = list(_guarantees(settings))
    if guarantees:
        parts.append("\n".join(guarantees))
    return "\n\n".join(parts) + "\n"


def main_setting(settings: Mapping[Setting, Sequence[Row]]) -> Setting:
    """The setting of 100 bytes and commits every second in which most contenders have all planned
    turns; of several, the one with most records."""
    races = [setting for setting in settings if setting.kind == "throughput"]
    return max(
        races,
        key=lambda setting: (
            setting.value_bytes == 100,
            setting.interval_s == 1.0,
            sum(len(row.runs) >= PLANNED_TURNS for row in settings[setting]),
            setting.records,
        ),
    )


def slowest_pace(settings: Mapping[Setting, Sequence[Row]]) -> Setting | None:
    """Latency with the longest interval; None: not measured."""
    paced = [setting for setting in settings if setting.kind == "latency"]
    return max(paced, key=lambda setting: setting.interval_s) if paced else None


def measured_on(results: Sequence[Result]) -> str:
    """Machines, dates, and whether other work ran on them."""
    days = sorted({result.at.partition(" ")[0] for result in results})
    sittings = len({result.sitting for result in results})
    load = max(result.load_before for result in results)
    names = ("processor", "cores", "memory", "system", "python", "java", "confluent-kafka")
    on = ", ".join(f"{name} {found}" for name in names if (found := _values_of(results, name)))
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    lines = [f"Measured {when} on: {on}; {sittings} broker{'s' if sittings > 1 else ''} in turn."]
    if any(result.setting.is_quick for result in results):
        lines.append("**Quick runs: do not rely on these figures.**")
    # A run raises the load average of the next one; far more than the cores is other work.
    first = [result.load_before for result in results if result.turn == 0][:1]
    if first and first[0] > _QUIET_LOAD:
        lines.append(
            f"**The machine was busy with other work: load {first[0]:.1f} before the first run, "
            f"at most {load:.1f}.**"
        )
    return "\n".join(lines)


def _values_of(results: Sequence[Result], name: str) -> str:
    """The machines' values of this name, each once."""
    found = dict.fromkeys(one.machine[name] for one in results if name in one.machine)
    return " or ".join(found)


def _place(setting: Setting) -> tuple[float, ...]:
    """Races before latencies, small ones before large ones, long intervals before short ones."""
    kinds = ("throughput", "counts", "latency", "steady")
    interval_s = -setting.interval_s
    return kinds.index(setting.kind), interval_s, setting.value_bytes, setting.records


# --- tables ---------------------------------------------------------------------------------------


def _throughput(setting: Setting, rows: Sequence[Row]) -> Iterator[str]:
    yield _race_title(setting)
    yield ""
    yield (
        "| | guarantee | records/s, whole run | second half | over Flink SQL, whole and second half"
        " | CPU-s per million records | of Flink SQL's | with start | peak memory | turns "
        "| a `read_committed` reader finds |"
    )
    yield "| --- " * 11 + "|"
    measure = _measure(rows)
    for row in sorted(rows, key=_by_rate):
        if not row.runs:
            yield _absent(row, columns=11)
            continue
        yield _line(
            row,
            _rates(row),
            [
                _over(row, measure),
                _shown(row.spread("cpu_s", lambda s: s / setting.records * 1e6), ".1f"),
                "" if measure is None else f"{ratio(row, measure, 'cpu_s').of_medians:.2f} x",
                _shown(row.spread("cpu_with_start_s", lambda s: s / setting.records * 1e6), ".1f"),
                f"{row.spread('peak_bytes').median / _MIB:,.0f} MiB",
                str(len(row.runs)),
                row.checked() + _also_failed(row),
            ],
        )
    yield from _missing(rows)


def _latency(setting: Setting, rows: Sequence[Row]) -> Iterator[str]:
    yield (
        f"From made to seen by a `read_committed` reader, {setting.records:,} records/s of "
        f"{setting.value_bytes} bytes, commits every {setting.interval_s:g} s. "
        "Median (least to most)."
    )
    yield ""
    yield "| | guarantee | p50, s | p99, s | max, s | cores in use | turns | |"
    yield "| --- " * 8 + "|"
    for row in sorted(rows, key=_by_latency):
        if not row.runs:
            yield _absent(row, columns=8)
            continue
        cells = [_shown(row.spread(one), ".3f") for one in ("p50_s", "p99_s", "max_s")]
        cells += [f"{row.spread('cores').median:.2f}", str(len(row.runs))]
        yield _line(row, cells, [row.seen() + _also_failed(row)])
    yield from _missing(rows)


def _steady(setting: Setting, rows: Sequence[Row]) -> Iterator[str]:
    yield (
        f"The same, minute by minute: {setting.records:,} records/s, commits every "
        f"{setting.interval_s:g} s."
    )
    for row in rows:
        yield ""
        yield f"{_name(row)}, {row.guarantee}:"
        if not row.runs:
            yield f"did not run: {_cell(row.failure)}"
            continue
        yield ""
        yield "| minute | p50, s | p99, s | max, s | records |"
        yield "| --- " * 5 + "|"
        runs = [run.figures["minutes"] for run in row.runs]
        for number, minutes in enumerate(zip(*runs, strict=False), start=1):
            counted = sum(int(minute["counted"]) for minute in minutes)
            if not all(minute["counted"] for minute in minutes):
                yield f"| {number} | nothing seen in a run | | | {counted:,} |"
                continue
            shown = (
                _shown(Spread.of([minute[one] for minute in minutes]), ".3f")
                for one in ("p50_s", "p99_s", "max_s")
            )
            yield f"| {number} | {' | '.join(shown)} | {counted:,} |"
        yield ""
        yield f"{row.seen().capitalize()}; turns: {len(row.runs)}{_also_failed(row)}."


def _guarantees(settings: Mapping[Setting, Sequence[Row]]) -> Iterator[str]:
    """Ours exactly once over ours at least once, for settings with runs of both."""
    lines = []
    for setting, rows in sorted(settings.items(), key=lambda item: _place(item[0])):
        by_name = {row.contender: row for row in rows if row.runs}
        pairs = [(name, f"{name}{_WEAK}") for name in by_name if f"{name}{_WEAK}" in by_name]
        for strong, weak in pairs if setting.kind == "throughput" else ():
            found = ratio(by_name[strong], by_name[weak], "rate")
            half = ratio(by_name[strong], by_name[weak], "second_half_rate")
            cpu = ratio(by_name[strong], by_name[weak], "cpu_s")
            lines.append(
                f"| {_name(by_name[strong])} | {setting.records:,} of {setting.value_bytes} B "
                f"| {setting.interval_s:g} | {shown_ratio(found)} | {shown_ratio(half)} "
                f"| {shown_ratio(cpu)} |"
            )
    if lines:
        yield "Exactly once over at least once, ours: medians, and turn by turn."
        yield ""
        yield "| | records | commits every, s | records/s, whole run | second half | CPU-s |"
        yield "| --- " * 6 + "|"
        yield from lines


# --- cells ----------------------------------------------------------------------------------------


def shown_ratio(found: Ratio) -> str:
    """The ratio of medians, and the range of the ratios by turn."""
    text = f"{found.of_medians:.2f} x"
    if len(found.by_turn) > 1:
        text += f" ({min(found.by_turn):.2f} to {max(found.by_turn):.2f})"
    return text


def _race_title(setting: Setting) -> str:
    return (
        f"{setting.records:,} records of {setting.value_bytes} bytes, 4 partitions, "
        f"{'counted by 10,000 keys, ' if setting.kind == 'counts' else ''}"
        f"commits every {setting.interval_s:g} s. Median (least to most)."
    )


def _measure(rows: Sequence[Row]) -> Row | None:
    return next(
        (row for row in rows if row.contender in (MEASURE, "flink-count") and row.runs), None
    )


def _over(row: Row, measure: Row | None) -> str:
    if measure is None:
        return "not measured"
    whole, half = (ratio(row, measure, one).of_medians for one in ("rate", "second_half_rate"))
    return f"{whole:.2f} x, {half:.2f} x"


def _rates(row: Row) -> list[str]:
    return [_shown(row.spread(one), ",.0f") for one in ("rate", "second_half_rate")]


def _line(row: Row, first: Sequence[str], rest: Sequence[str]) -> str:
    return f"| {_name(row)} | {row.guarantee} | {' | '.join([*first, *rest])} |"


def _absent(row: Row, *, columns: int) -> str:
    empty = " |" * (columns - 3)
    return f"| {_name(row)} | {row.guarantee} | did not run: {_cell(row.failure)} |{empty}"


def _missing(rows: Sequence[Row]) -> Iterator[str]:
    """Contenders without runs, and those with fewer turns than planned."""
    there = {row.contender for row in rows}
    absent = [f"`{one.name}`" for one in CONTENDERS if one.name not in there]
    few = [f"{row.label} ({len(row.runs)})" for row in rows if 0 < len(row.runs) < PLANNED_TURNS]
    notes = [f"Not measured here: {', '.join(absent)}."] if absent else []
    notes += [f"Fewer than {PLANNED_TURNS} turns: {'; '.join(few)}."] if few else []
    if notes:
        yield ""
        yield " ".join(notes)


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
