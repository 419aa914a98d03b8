"""The commands ``stop`` and ``status`` of an embedded server that runs in the background."""

import typer

from sluice.runtime.embedded.background import recall, stop

__all__ = ["print_status", "stop_server"]


def stop_server(name: str, title: str) -> None:
    """Stop the server that was started under this name, and print its address.

    Args:
        name: under which the server was started.
        title: the kind of server, for people.
    """
    server = stop(name)
    typer.echo(f"stopped {server.address}" if server else f"no {title} runs")


def print_status(name: str, title: str) -> None:
    """Print where the server listens; the arguments are those of `stop_server`.

    Raises:
        typer.Exit: with code 1: no server runs.
    """
    server = recall(name)
    if server is None:
        typer.echo(f"no {title} runs")
        raise typer.Exit(1)
    typer.echo(server.describe())
