"""Real threads of which one runs at a time: whoever has the baton; the base of virtual threads."""

import threading
from collections.abc import Callable
from typing import Any, Protocol

_BOUND_S = 600.0


class EndedError(BaseException):
    """Its process was killed, or the time that is looked at is over."""


class Stage(Protocol):
    """Who says whose turn it is.

    Attributes:
        is_over: nobody begins any more.
        failed: what a thread has raised first.
    """

    is_over: bool
    failed: BaseException | None

    def leave(self, actor: Any) -> None:
        """It has ended; another one continues."""
        ...


class Actor:
    """Has the interface of `threading.Thread`, as far as it is needed: start, join and is_alive.

    Attributes:
        go: released where it has its turn.
    """

    def __init__(self, stage: Stage, body: Callable[[], object]) -> None:
        self.go = threading.Semaphore(0)
        self._stage = stage
        self._body = body
        self._is_alive = False
        self._real = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        """It waits for its first turn."""
        self._is_alive = True
        self._real.start()

    def is_alive(self) -> bool:
        """Whether it has begun, and has not ended."""
        return self._is_alive

    def is_wanted(self) -> bool:
        """Whether it shall begin, when its first turn has come."""
        return not self._stage.is_over

    def _run(self) -> None:
        take(self.go)
        try:
            if self.is_wanted():
                self._body()
        except EndedError:
            pass
        except BaseException as err:  # noqa: BLE001 - reported where the run ends
            self._stage.failed = self._stage.failed or err
        finally:
            self._is_alive = False
            self._stage.leave(self)


def take(baton: threading.Semaphore) -> None:
    """Wait for it.

    Raises:
        AssertionError: no thread passes it on.
    """
    if not baton.acquire(timeout=_BOUND_S):
        raise AssertionError("a thread neither moved on nor ended")
