"""What the commands of an embedded server that runs in the background say."""

import typer
from rich.console import Console

from sluice.runtime.embedded.background import recall, stop

__all__ = ["say_status", "stop_and_say"]


def stop_and_say(name: str, what: str, console: Console) -> None:
    """Stop the server of this name, if one runs.

    Args:
        name: under which it was started.
        what: it is, in words.
        console: to be told.
    """
    server = stop(name)
    console.print(f"stopped {server.address}" if server else f"no {what} runs")


def say_status(name: str, what: str, console: Console) -> None:
    """Where the server listens; the arguments are those of `stop_and_say`.

    Raises:
        typer.Exit: with code 1: none runs.
    """
    server = recall(name)
    if server is None:
        console.print(f"no {what} runs")
        raise typer.Exit(1)
    console.print(server.describe())
