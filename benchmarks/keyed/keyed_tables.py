"""Tables of keyed state as Markdown: rows beside the peers, and growth. Pure."""

from collections.abc import Iterator, Sequence

from benchmarks.keyed.contenders import RACES
from benchmarks.measuring.figures import Measured
from benchmarks.peers.results import Result
from benchmarks.peers.summary import Row, Spread, ratio, rows_by_setting
from benchmarks.peers.tables import measured_on

__all__ = ["markdown"]

_MIB = 2**20
_GROWTH = "keyed-growth"
_COLUMNS = ("updates", "barrier, the slowest", "bytes written over changed")


def markdown(results: Sequence[Result], figures: Sequence[Measured]) -> str:
    """A table for each race that was run, and one for the growth of the cost.

    Args:
        results: of `python -m benchmarks keyed`.
        figures: of the parts; those of other parts are left out.
    """
    whole = [one for one in results if not one.setting.is_quick]
    parts = [measured_on(whole)] if whole else []
    for setting, rows in rows_by_setting(whole).items():
        title = next(one.title for one in RACES if one.name == setting.kind)
        parts.append(
            f"**{title[0].upper()}{title[1:]}**: {setting.records:,} records of "
            f"{setting.value_bytes} bytes, 4 partitions, commits every {setting.interval_s:g} s "
            f"(`python -m benchmarks keyed {setting.kind}`). Median (least to most)."
        )
        parts.append("\n".join(_race(setting.records, rows)))
    growth = [one for one in figures if one.part == _GROWTH]
    if growth:
        parts.append(
            f"**Growth** (`{growth[0].command}`): a task's state, its change files and their "
            "merges, without Kafka. Each table changes one number of 100,000 keys, values of 100 "
            "bytes, 4 splits and 100,000 updates between two barriers."
        )
        parts.append("\n".join(_growth(growth)))
    return "\n\n".join(parts) + "\n"


def _race(records: int, rows: Sequence[Row]) -> Iterator[str]:
    yield (
        "| | records/s, whole run | over Flink with this backend | CPU-s per million records "
        "| peak memory | turns | a `read_committed` reader finds |"
    )
    yield "| --- " * 7 + "|"
    for row in sorted(rows, key=lambda row: -row.spread("rate").median if row.runs else 0.0):
        label = f"**{row.label}**" if row.is_ours else row.label
        if not row.runs:
            yield f"| {label} | did not run: {row.failure.replace('|', '/')} | | | | | |"
            continue
        cells = [
            _shown(row.spread("rate"), ",.0f"),
            _over(row, rows),
            _shown(row.spread("cpu_s", lambda s: s / records * 1e6), ".1f"),
            f"{row.spread('peak_bytes').median / _MIB:,.0f} MiB",
            str(len(row.runs)),
            row.checked(),
        ]
        yield f"| {label} | {' | '.join(cells)} |"


def _over(row: Row, rows: Sequence[Row]) -> str:
    """The rate over that of Flink with the same backend."""
    backend = "rocksdb" if row.contender.endswith(("rocksdb", "streams")) else "hashmap"
    names = (f"flink-{backend}", f"pyflink-{backend}")
    peer = next((one for one in rows if one.contender in names and one.runs), None)
    if peer is None or peer is row:
        return ""
    return f"{ratio(row, peer, 'rate').of_medians:.2f} x"


def _growth(figures: Sequence[Measured]) -> Iterator[str]:
    yield "| backend, changed number | updates/s | slowest barrier, ms | written over changed |"
    yield "| --- " * 4 + "|"
    found: dict[str, dict[str, str]] = {}
    for one in figures:
        point, _, what = one.figure.what.partition(": ")
        text = f"{one.figure.median:,.0f}" if what == "updates" else f"{one.figure.median:,.3g}"
        found.setdefault(point, {})[what] = text
    for point, values in found.items():
        yield f"| {point} | {' | '.join(values.get(one, '') for one in _COLUMNS)} |"


def _shown(spread: Spread, form: str) -> str:
    median = f"{spread.median:{form}}"
    if spread.least == spread.most:
        return median
    return f"{median} ({spread.least:{form}} to {spread.most:{form}})"
