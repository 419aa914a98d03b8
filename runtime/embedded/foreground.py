"""Runs a server in the foreground of a command: each ends with the other."""

import signal
import time
from types import FrameType
from typing import Protocol

from rich.console import Console

from sluice.runtime.embedded.background import forget

__all__ = ["Server", "serve"]

_POLL_S = 0.2


class Server(Protocol):
    """A server that can run in the foreground."""

    def is_running(self) -> bool:
        """Whether all of its processes live."""
        ...

    def close(self) -> None:
        """End what still lives."""
        ...


def serve(server: Server, *, name: str, title: str) -> None:
    """Wait until Ctrl-C, SIGTERM or the server's end; called from the main thread.

    Args:
        server: runs, and is remembered (`sluice.runtime.embedded.background`).
        name: under which it is remembered.
        title: for people, with its version.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    Console(stderr=True).print(f"{title} runs; Ctrl-C stops it.")
    try:
        while server.is_running():
            time.sleep(_POLL_S)  # polls for the server's end; signals wake it
    finally:
        server.close()
        forget(name)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
