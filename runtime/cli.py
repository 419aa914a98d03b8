"""The command ``sluice``: a frame for command groups that register themselves.

Each entry point of the group ``sluice.commands`` is a Typer application (a group of commands) or
a function (one command). Connectors add theirs that way; `runtime` never imports them.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import typer
from rich.console import Console

from sluice.runtime.cli_output import describe_error
from sluice.runtime.errors import MissingRequirementError, StreamError
from sluice.runtime.extras import extras_named

__all__ = ["ENTRY_POINT_GROUP", "build_app", "main"]

ENTRY_POINT_GROUP = "sluice.commands"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0, 1 after a `StreamError`, 2 for wrong usage, 130 on Ctrl-C."""
    try:
        build_app(entry_points(group=ENTRY_POINT_GROUP))(args=arguments, prog_name="sluice")
    except StreamError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(describe_error(error))
        sys.exit(1)
    except KeyboardInterrupt:  # outside any command, e.g. while modules are loaded
        sys.exit(130)


def build_app(commands: Iterable[EntryPoint]) -> typer.Typer:
    """The application with every registered group of commands."""
    app = typer.Typer(
        name="sluice",
        help="Exactly-once Kafka connectors for Spark.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)  # keeps `sluice NAME` a sub-command even when there is only one
    for command in sorted(commands, key=lambda entry: entry.name):
        loaded = _load(command)
        if isinstance(loaded, typer.Typer):
            for each in loaded.registered_commands:  # typer keeps the line ends of a docstring
                each.help = _unwrapped(each.help or inspect.getdoc(each.callback) or "")
            app.add_typer(loaded, name=command.name)
        else:
            app.command(command.name)(loaded)
    return app


def _unwrapped(text: str) -> str:
    """The text with a line for each paragraph."""
    return "\n\n".join(" ".join(each.split()) for each in text.split("\n\n"))


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"sluice {metadata.version('sluice-spark')}")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Exactly-once Kafka connectors for Spark."""
    del version


def _load(command: EntryPoint) -> typer.Typer | Callable[..., None]:
    """The command of an entry point. If it cannot be loaded, the other commands still work."""
    try:
        with extras_named():
            loaded: typer.Typer | Callable[..., None] = command.load()
    except MissingRequirementError as error:
        return _broken(error)
    except (ImportError, AttributeError) as error:
        return _broken(
            MissingRequirementError(
                f"the command {command.name!r} cannot be loaded",
                {"entry_point": command.value, "reason": str(error)},
                "Install the package of this command again, in a version that fits.",
            )
        )
    return loaded


def _broken(why: StreamError) -> Callable[[], None]:
    def fail() -> None:
        raise why

    fail.__doc__ = "(cannot be loaded)"
    return fail
