"""Shared parts of the commands of embedded servers: foreground run, ``stop``, ``status``."""

import signal
import time
from types import FrameType
from typing import Protocol

import typer
from rich.console import Console

from sluice.runtime.embedded.background import forget, recall, stop

__all__ = ["add_server_commands", "serve"]

_POLL_S = 0.2


class _Server(Protocol):
    def is_running(self) -> bool: ...

    def close(self) -> None: ...


def serve(server: _Server, *, name: str, title: str) -> None:
    """Wait until Ctrl-C, SIGTERM or the server's end; called from the main thread.

    Args:
        server: runs, and is remembered (`sluice.runtime.embedded.background`).
        name: under which it is remembered.
        title: for people, with its version.
    """

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    Console(stderr=True).print(f"{title} runs; Ctrl-C stops it.")
    try:
        while server.is_running():
            time.sleep(_POLL_S)  # polls for the server's end; signals wake it
    finally:
        server.close()
        forget(name)


def add_server_commands(app: typer.Typer, name: str, title: str) -> None:
    """Add ``stop`` and ``status`` for a server that runs in the background.

    Args:
        name: under which the server was started.
        title: the kind of server, for people.
    """

    @app.command("stop", help=f"Stop the {title} that `start` started; its data is kept.")
    def _stop() -> None:
        server = stop(name)
        typer.echo(f"stopped {server.address}" if server else f"no {title} runs")

    @app.command("status", help=f"Show the address of the {title}; exit code 1 if none runs.")
    def _status() -> None:
        server = recall(name)
        if server is None:
            typer.echo(f"no {title} runs")
            raise typer.Exit(1)
        typer.echo(server.describe())
