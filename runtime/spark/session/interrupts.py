"""Ends a foreground job by a signal: in good order, with the shell's exit code."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["Interrupts", "ended_by_signals"]

_BY_SIGNAL = 128  # a shell reports a program that a signal ended as 128 and its number


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
    before = {number: signal.getsignal(number) for number in _ours()}
    for number in before:
        signal.signal(number, interrupts.take)
    try:
        yield interrupts
    except KeyboardInterrupt:
        raise SystemExit(_BY_SIGNAL + signal.SIGINT) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
