"""A reader of a benchmark, in a thread of its own."""

import abc
import threading
from types import TracebackType
from typing import Self

__all__ = ["ReadingThread"]

_STOP_S = 15.0


class ReadingThread(abc.ABC):
    """Reads as long as it is entered. What ends it early is raised by `_require_sound`.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        try:
            self._read()
        except Exception as err:  # noqa: BLE001 - raised in the thread that asks
            self._error = err

    def _require_sound(self) -> None:
        if self._error is not None:
            raise self._error

    @abc.abstractmethod
    def _read(self) -> None:
        """Until ``_stopping`` is set."""
