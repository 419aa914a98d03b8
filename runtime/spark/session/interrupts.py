"""Requests for the end of a job: a signal to the program that runs it, or a call of its handle."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Protocol

__all__ = [
    "EndRequests",
    "Interrupts",
    "StopRequest",
    "StopRequestedError",
    "ended_by_signals",
    "is_interactive",
    "waiting",
]

_Handler = Callable[[int, FrameType | None], object]
_BY_SIGNAL = 128  # a shell reports a program that a signal ended as 128 and its number


class EndRequests(Protocol):
    """The thread that runs a job checks it between its steps."""

    def held(self) -> contextlib.AbstractContextManager[None]:
        """In this block a request waits for `check`."""
        ...

    def check(self) -> None:
        """Raise if the end is requested."""
        ...


class StopRequestedError(BaseException):
    """The handle of the job has requested its end. No failure, so no `Exception`."""


class StopRequest:
    """The request of a handle, for a job in a thread of its own. Any thread."""

    def __init__(self) -> None:
        self._requested = threading.Event()

    @property
    def is_requested(self) -> bool:
        """Whether the end is requested."""
        return self._requested.is_set()

    def request(self) -> None:
        """Let the next `check` raise. Repeatable."""
        self._requested.set()

    def held(self) -> contextlib.AbstractContextManager[None]:
        """A request never interrupts a call."""
        return contextlib.nullcontext()

    def check(self) -> None:
        """Leave by `StopRequestedError`, if the end is requested."""
        if self.is_requested:
            raise StopRequestedError


class Interrupts:
    """The signal that has requested the end. Main thread.

    If an exception interrupts a call into Spark's JVM, the connection still has the call's answer.
    PySpark then takes it for the answer of the next call, and raises an error of its own. So while
    signals are held, the first one is only noted, and `check` raises it between calls.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._is_deferring = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """In this block the first signal waits for `check`; a second one ends it at once."""
        self._is_deferring = True
        try:
            yield
            self.check()
        finally:
            self._is_deferring = False

    def check(self) -> None:
        """Leave by `SystemExit`, with the shell's exit code, if there was a signal."""
        if self._signal is not None:
            raise SystemExit(_BY_SIGNAL + self._signal)

    def take(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        del frame
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
        is_first = self._signal is None
        self._signal = number
        if not (self._is_deferring and is_first):
            self.check()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[Interrupts]:
    """Ctrl-C and SIGTERM leave the block by `SystemExit`, 130 or 143, once it has cleaned up.

    A second SIGTERM ends the process at once. The program's own handlers stay in place. Outside the
    main thread Python cannot have a handler.
    """
    interrupts = Interrupts()
    try:
        with _handled(lambda _: interrupts.take):
            yield interrupts
    except KeyboardInterrupt:
        raise SystemExit(_BY_SIGNAL + signal.SIGINT) from None


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """While a thread waits for a job of another thread: Ctrl-C raises `KeyboardInterrupt`, without
    PySpark's cancellation of all jobs, and SIGTERM leaves by `SystemExit`, 143."""
    interrupts = Interrupts()
    with _handled(
        lambda number: signal.default_int_handler if number == signal.SIGINT else interrupts.take
    ):
        yield


def is_interactive() -> bool:
    """Whether a person types the program: in a notebook, IPython, or a shell of Python or Spark."""
    return hasattr(sys, "ps1")


@contextlib.contextmanager
def _handled(handler: Callable[[int], _Handler]) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _ours()}
    for number in before:
        signal.signal(number, handler(number))
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _ours() -> Iterator[signal.Signals]:
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        yield signal.SIGTERM
    interrupt = signal.getsignal(signal.SIGINT)
    # PySpark's own handler calls the JVM to cancel all jobs, also during another call.
    if interrupt is signal.default_int_handler or _is_sparks(interrupt):
        yield signal.SIGINT


def _is_sparks(handler: object) -> bool:
    return getattr(handler, "__module__", "") == "pyspark.core.context"
