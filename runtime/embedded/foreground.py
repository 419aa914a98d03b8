"""A server that a command keeps in front: it ends with the command, and the command with it."""

import signal
import time
from types import FrameType
from typing import Protocol

from rich.console import Console

from sluice.runtime.embedded.background import forget

__all__ = ["Server", "serve"]

_POLL_S = 0.2


class Server(Protocol):
    """What can be kept in front."""

    def is_running(self) -> bool:
        """Whether all of it lives."""
        ...

    def close(self) -> None:
        """End what still lives."""
        ...


def serve(server: Server, *, name: str, title: str) -> None:
    """Stay in front until Ctrl-C, SIGTERM or the server's end; called from the main thread.

    Args:
        server: runs, and was remembered (`sluice.runtime.embedded.background`).
        name: under which it was remembered.
        title: for people, with its version.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    Console(stderr=True).print(f"{title} runs; Ctrl-C stops it.")
    try:
        while server.is_running():
            time.sleep(_POLL_S)  # nothing to do but to notice the server's end; signals wake it
    finally:
        server.close()
        forget(name)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
