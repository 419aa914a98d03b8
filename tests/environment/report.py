"""The tables of ``docs/research/reliability.md``, from journals. Pure except for file access."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from sluice.runtime.errors import ConfigError
from tests.environment.journal import Entry, FaultEntry, RoundEntry
from tests.environment.plan import KINDS


def table(entries: Iterable[Entry]) -> str:
    """Faults of clean rounds by kind, as Markdown, including kinds without a fault.

    The seconds are of faults without another active one.
    """
    clean = _clean(entries)
    faults: dict[str, list[FaultEntry]] = defaultdict(list)
    for entry in clean:
        if isinstance(entry, FaultEntry):
            faults[entry.kind].append(entry)
    lines = [
        "| fault | what it is | survived | with others | first sight, s "
        "| healed to checkpoint, s | healed to visible, s |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, kind in KINDS.items():
        mine = [fault for fault in faults[name] if fault.together == 1]
        spreads = [
            _spread([fault.outage_s for fault in mine]),
            _spread([fault.checkpoint_s for fault in mine]),
            _spread([fault.visible_s for fault in mine]),
        ]
        counts = f"{len(faults[name])} | {len(faults[name]) - len(mine)}"
        lines.append(f"| {name} | {kind.says} | {counts} | {' | '.join(spreads)} |")
    return "\n".join(lines)


def summary(entries: Iterable[Entry]) -> str:
    """Totals of clean and of failed rounds."""
    every = list(entries)
    rounds = [entry for entry in every if isinstance(entry, RoundEntry)]
    clean = _clean(every)
    faults = sum(isinstance(entry, FaultEntry) for entry in clean)
    good = [entry for entry in rounds if not entry.wrong]
    sent = sum(entry.records for entry in good)
    checked = sum(entry.records * entry.outputs for entry in good)
    hours = sum(entry.elapsed_s for entry in good) / 3600
    lines = [
        f"- rounds: {len(rounds)}, of which {len(good)} ended with a clean verdict "
        f"({', '.join(_pipelines(good)) or 'none'})",
        f"- faults survived: {faults}, in {hours:.1f} hours; {_when(good)}",
        f"- records sent: {sent}; records checked in topics and files: {checked}",
    ]
    lines += _verdicts(rounds)
    if repairs := sum(entry.repairs for entry in good):
        lines.append(
            "- decisions whose transactions the brokers had aborted by timeout, repaired: "
            f"{repairs}"
        )
    lines += [
        f"- round with seed {entry.seed} ({entry.pipeline}) ended after {entry.faults} of "
        f"{entry.planned} faults: {entry.wrong.splitlines()[0]}"
        for entry in rounds
        if entry.wrong
    ]
    return "\n".join(lines)


def put(page: Path, name: str, text: str) -> None:
    """Replace the text between ``<!-- name -->`` and ``<!-- /name -->`` of a page.

    Raises:
        ConfigError: the page lacks one of the two marks.
    """
    before, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not begin or not end:
        raise ConfigError(
            "a page has no place for a table", {"page": page, "place": name}, "Add its two marks."
        )
    page.write_text(f"{before}{begin}{text}\n{end}{after}", encoding="utf-8")


def _clean(entries: Iterable[Entry]) -> Sequence[Entry]:
    """Rounds with a clean verdict, and their faults; a journal has one round after the other.

    Faults of a killed round, which has no verdict, do not count: the next fault has number 0.
    """
    kept: list[Entry] = []
    pending: list[FaultEntry] = []
    for entry in entries:
        if isinstance(entry, FaultEntry):
            goes_on = pending and _round(pending[-1]) == _round(entry)
            if not goes_on or entry.number <= pending[-1].number:
                pending = []
            pending.append(entry)
            continue
        if not entry.wrong:
            kept += [fault for fault in pending if _round(fault) == _round(entry)]
            kept.append(entry)
        pending = []
    return kept


def _when(rounds: Sequence[RoundEntry]) -> str:
    """The number of faults, with their days and commits."""
    dated = [entry for entry in rounds if entry.on is not None]
    undated = sum(entry.faults for entry in rounds) - sum(entry.faults for entry in dated)
    days = sorted({entry.on or "" for entry in dated})
    commits = dict.fromkeys(entry.commit or "unknown" for entry in dated)
    parts = [f"{undated} of them before days and commits were kept"] if undated else []
    if dated:
        parts.append(
            f"{sum(entry.faults for entry in dated)} from {days[0]} to {days[-1]}, at the commits "
            f"{', '.join(commits)}"
        )
    return ", ".join(parts)


def _verdicts(rounds: Sequence[RoundEntry]) -> list[str]:
    """The checker's findings in every round that reached its end."""
    judged = [entry for entry in rounds if entry.is_judged]
    unclean = sum(bool(entry.wrong) for entry in judged)
    counts = ", ".join(
        f"{name} {sum(getattr(entry, name) for entry in rounds)}"
        for name in ("lost", "doubled", "reordered", "foreign", "torn")
    )
    return [f"- rounds judged: {len(judged)}, {unclean} of them not clean: {counts}"]


def _round(entry: Entry) -> tuple[int, str]:
    return entry.seed, entry.pipeline


def _pipelines(rounds: Iterable[RoundEntry]) -> list[str]:
    counts: dict[str, int] = defaultdict(int)
    for entry in rounds:
        counts[entry.pipeline] += entry.faults
    return [f"{name}: {count} faults" for name, count in sorted(counts.items())]


def _spread(seconds: Sequence[float]) -> str:
    """Median and maximum."""
    if not seconds:
        return "-"
    return f"{statistics.median(seconds):.1f} ({max(seconds):.1f})"
