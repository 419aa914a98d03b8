"""Runs work in a thread of its own while a context is open."""

import abc
import threading
from typing import Self

__all__ = ["SideThread"]

_STOP_S = 15.0


class SideThread(abc.ABC):
    """A context manager: a daemon thread works from its beginning to its end.

    Args:
        name: of the thread.
        stop_s: how long the end waits for the thread; 0: not at all.
    """

    def __init__(self, name: str, *, stop_s: float = _STOP_S) -> None:
        self._stop_s = stop_s
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it. Repeatable."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(self._stop_s)

    def _require_sound(self) -> None:
        """Raise the error that ended the work early, if there is one."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._work()
        except Exception as err:  # noqa: BLE001 - raised in the thread that asks
            self._error = self._error or err  # the first error may be the reason

    @abc.abstractmethod
    def _work(self) -> None:
        """Until ``_stopping`` is set. In the thread."""
