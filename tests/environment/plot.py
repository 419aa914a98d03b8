"""The plot of a soak, as a small SVG: one panel for each measure, a tick for each fault. Pure."""

from collections.abc import Iterator, Sequence
from html import escape

from tests.environment.soak import MEASURES, Sample

_WIDTH, _LEFT, _PANEL, _GAP, _TOP = 900, 70, 90, 34, 30
_LINE, _TICK, _TEXT = "#0b6e4f", "#d9a441", "#24292f"
_FONT = "font-family='sans-serif' font-size='12'"


def draw(samples: Sequence[Sample], title: str) -> str:
    """The SVG of at least one sample."""
    height = _TOP + (len(MEASURES) + 1) * (_PANEL + _GAP)
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height}'>",
        f"<rect width='{_WIDTH}' height='{height}' fill='white'/>",
        f"<text x='{_LEFT}' y='18' {_FONT} font-weight='bold'>{escape(title)}</text>",
    ]
    panels = {name: measure.title for name, measure in MEASURES.items()}
    panels["records"] = "records visible"
    for number, (name, label) in enumerate(panels.items()):
        lines += _panel(samples, name, label, top=_TOP + 20 + number * (_PANEL + _GAP))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(samples: Sequence[Sample], name: str, label: str, *, top: int) -> Iterator[str]:
    values = [float(getattr(sample, name)) for sample in samples]
    most = max(*values, 1.0)
    last_s = max(samples[-1].at_s, 1.0)
    bottom = top + _PANEL

    def across(at_s: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 20) * at_s / last_s

    yield f"<text x='{_LEFT}' y='{top - 5}' {_FONT} fill='{_TEXT}'>{escape(label)}</text>"
    yield f"<text x='{_LEFT - 8}' y='{top + 10}' text-anchor='end' {_FONT}>{most:,.0f}</text>"
    yield f"<text x='{_LEFT - 8}' y='{bottom}' text-anchor='end' {_FONT}>0</text>"
    minutes = f"{last_s / 60:.0f} min"
    yield f"<text x='{_WIDTH - 20}' y='{top - 5}' text-anchor='end' {_FONT}>{minutes}</text>"
    yield f"<path d='M{_LEFT} {top}V{bottom}H{_WIDTH - 20}' fill='none' stroke='#999'/>"
    faults = 0
    for sample in samples:
        if sample.faults > faults:
            faults = sample.faults
            at = across(sample.at_s)
            yield f"<path d='M{at:.1f} {bottom}v-8' stroke='{_TICK}'/>"
    points = " ".join(
        f"{across(sample.at_s):.1f},{bottom - _PANEL * value / most:.1f}"
        for sample, value in zip(samples, values, strict=True)
    )
    yield f"<polyline points='{points}' fill='none' stroke='{_LINE}' stroke-width='1.5'/>"
