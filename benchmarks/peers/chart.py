"""The chart, as a small SVG: bars side by side, ours in another colour, the spread as a line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.peers.results import Setting
from benchmarks.peers.summary import Row, Spread

__all__ = ["draw"]

_WIDTH, _LABELS, _PANEL, _GAP = 1120, 330, 240, 20
_ROW, _BAR, _TOP = 26, 16, 64
_VALUE_WIDTH = 70
_OURS, _PEERS, _WEAK = "#0b6e4f", "#7a8ba0", "#c2cad4"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    title: str
    spreads: Sequence[Spread | None]
    form: str

    def scale(self) -> float:
        """Pixels for each unit."""
        most = max((spread.most for spread in self.spreads if spread), default=0.0)
        return (_PANEL - _VALUE_WIDTH) / most if most else 0.0


def draw(setting: Setting, rows: Sequence[Row], paced: Sequence[Row]) -> str:
    """Rate, CPU and, if ``paced`` has it, latency of every contender, the fastest first.

    A contender that did not run has its name and no bars.
    """
    ordered = sorted(rows, key=lambda row: -row.spread("rate").median if row.runs else 0.0)
    waits = {row.contender: row for row in paced if row.runs}
    millions = setting.records / 1e6
    panels = [
        _Panel(
            title="records/s, whole run",
            spreads=[row.spread("rate") if row.runs else None for row in ordered],
            form=",.0f",
        ),
        _Panel(
            title="CPU-seconds per million records",
            spreads=[
                row.spread("cpu_s", lambda s: s / millions) if row.runs else None for row in ordered
            ],
            form=".1f",
        ),
        _Panel(
            title="latency p99, s, at a steady pace",
            spreads=[
                waits[row.contender].spread("p99_s") if row.contender in waits else None
                for row in ordered
            ],
            form=".2f",
        ),
    ]
    height = _TOP + _ROW * len(ordered) + 34
    return "\n".join([*_frame(setting, height), *_body(ordered, panels, height), "</svg>", ""])


def _frame(setting: Setting, height: int) -> Iterator[str]:
    title = (
        f"{setting.records:,} records of {setting.value_bytes} bytes, "
        f"commits every {setting.interval_s:g} s"
    )
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12">'
    )
    yield f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>'
    yield f'<text x="12" y="24" font-size="15" font-weight="bold">{escape(title)}</text>'


def _body(rows: Sequence[Row], panels: Sequence[_Panel], height: int) -> Iterator[str]:
    for number, row in enumerate(rows):
        y = _TOP + number * _ROW + _BAR - 4
        weight = "bold" if row.is_ours else "normal"
        label = escape(row.label.replace("`", "") + ("" if row.runs else " (did not run)"))
        yield f'<text x="12" y="{y}" font-weight="{weight}" font-size="11">{label}</text>'
    for place, panel in enumerate(panels):
        x = _LABELS + place * (_PANEL + _GAP)
        yield f'<text x="{x}" y="50" font-weight="bold">{escape(panel.title)}</text>'
        for number, (row, spread) in enumerate(zip(rows, panel.spreads, strict=True)):
            if spread is not None:
                yield from _bar(x, _TOP + number * _ROW, spread, panel, _colour(row))
    yield from _legend(height - 14)


def _bar(x: int, y: int, spread: Spread, panel: _Panel, colour: str) -> Iterator[str]:
    scale = panel.scale()
    width, least, most = (scale * v for v in (spread.median, spread.least, spread.most))
    yield f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
    middle = y + _BAR / 2
    yield (
        f'<line x1="{x + least:.1f}" y1="{middle}" x2="{x + most:.1f}" y2="{middle}" '
        'stroke="#222222" stroke-width="1.5"/>'
    )
    text = f"{spread.median:{panel.form}}"
    yield f'<text x="{x + most + 5:.1f}" y="{y + _BAR - 4}" font-size="11">{text}</text>'


def _colour(row: Row) -> str:
    if row.is_ours:
        return _OURS
    return _PEERS if row.guarantee == "exactly once" else _WEAK


def _legend(y: int) -> Iterator[str]:
    entries = (("Sluice", _OURS), ("exactly once", _PEERS), ("at least once", _WEAK))
    for number, (text, colour) in enumerate(entries):
        x = 12 + number * 130
        yield f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{x + 16}" y="{y}" font-size="11">{text}</text>'
