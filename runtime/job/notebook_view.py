"""How a notebook or a terminal shows a run: a table, and a line that is rewritten. Without a
dependency on IPython: only its kernels load it."""

import contextlib
import html
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["live_line", "table"]

_Line = tuple[Callable[[str], None], Callable[[], None]]  # draws a text; ends the line


def table(facts: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> str:
    """HTML of named values, without those that are None, and below them of rows; pure."""
    lines = [
        f"<tr><th>{_cell(name)}</th><td>{_cell(value)}</td></tr>"
        for name, value in facts.items()
        if value is not None
    ]
    shown = f"<table>{''.join(lines)}</table>"
    if not rows:
        return shown
    head = "".join(f"<th>{_cell(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    return f"{shown}<table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else html.escape(str(value))


@contextlib.contextmanager
def live_line(line: Callable[[], str]) -> Iterator[Callable[[], None]]:
    """Show the line in the calling thread's cell or on a terminal; elsewhere nothing.

    The block gets a function that shows the line of now in the same place; its end shows the last.
    """
    draw, end = _in_cell() or _on_terminal() or (lambda _: None, lambda: None)
    draw(line())
    try:
        yield lambda: draw(line())
    finally:
        draw(line())
        end()


def _in_cell() -> _Line | None:
    ipython: Any = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return None  # IPython on a terminal would print each line again
    shown = importlib.import_module("IPython.display").DisplayHandle()
    shown.display({"text/plain": ""}, raw=True)
    return lambda text: shown.update({"text/plain": text}, raw=True), lambda: None


def _on_terminal() -> _Line | None:
    out = sys.stderr
    if not out.isatty():
        return None

    def write(text: str) -> None:
        out.write(text)
        out.flush()

    return lambda text: write(f"\r\x1b[K{text}"), lambda: write("\n")
