"""Arguments and output that all commands share: tables, facts, JSON and errors."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from sluice.runtime.errors import StreamError

__all__ = [
    "AsJson",
    "CheckpointPath",
    "LastSavepoint",
    "OptionalSavepoint",
    "ProgressLine",
    "describe_error",
    "open_console",
    "print_facts",
    "print_json",
    "print_table",
]

_PIPE_COLUMNS = 200  # a row of a table fits in one line of a pipe

CheckpointPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="Checkpoint directory: a path or URI. Also the checkpointLocation of a drop-in query.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
LastSavepoint = Annotated[
    str | None,
    typer.Option(
        "--savepoint",
        metavar="[URI]",
        help="Write a savepoint before the end, below this directory. Without URI: below "
        "savepoints in the checkpoint directory. Give it after the job.",
    ),
]
"""An option of commands with the class `OptionalSavepoint`."""


class OptionalSavepoint(TyperCommand):
    """``--savepoint`` without a value is an empty text: below the checkpoint directory."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - not public
        """See `click.Command.parse_args`."""
        followers = [*args[1:], "--"]
        found = []
        for arg, follower in zip(args, followers, strict=True):
            found += [arg, ""] if arg == "--savepoint" and follower.startswith("-") else [arg]
        return super().parse_args(ctx, found)


def open_console() -> Console:
    """Standard output, as wide as the terminal; a pipe gets lines that hold a whole row."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_COLUMNS)


def print_json(value: Mapping[str, object]) -> None:
    """Print one JSON document. Text is ASCII: the name of a file may be no valid Unicode."""
    typer.echo(json.dumps(value, indent=2))


def print_facts(facts: Mapping[str, object]) -> None:
    """Print a line for each fact that has a value."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value not in (None, "", [], {}):
            table.add_row(name, Text(_cell(value)))
    open_console().print(table)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    """Print rows under a head line, or that there are none. Values are no styles."""
    rows = list(rows)
    if not rows:
        typer.echo(f"{title}: none" if title else "none")
        return
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    open_console().print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_cell(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return str(value)


def describe_error(error: StreamError) -> Text:
    """What, where and remedy as one block for a terminal."""
    what, where, remedy = error.args
    text = Text()
    text.append("Error: ", style="bold red").append(f"{what}.", style="red")
    for name, value in where.items():
        text.append(f"\n  {name}: {value}", style="dim red")
    return text.append(f"\n{remedy}")


class ProgressLine:
    """One line of standard error that is written over; nothing if that is no terminal."""

    def __init__(self) -> None:
        self._stream = typer.get_text_stream("stderr")
        self._is_shown = False

    def show(self, text: str) -> None:
        if self._stream.isatty():
            self._stream.write(f"\r{text}\033[K")
            self._stream.flush()
            self._is_shown = True

    def close(self) -> None:
        if self._is_shown:
            self._stream.write("\n")
