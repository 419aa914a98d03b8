"""How a job that runs in the foreground ends by a signal: in order, with the shell's exit code."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["ended_by_signals"]

_BY_SIGNAL = 128  # a shell reports a program that a signal ended as 128 and its number


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM leave the block by `SystemExit`, 130 or 143, once it has cleaned up.

    A second SIGTERM ends the process at once. SIGTERM is left alone where the program has a handler
    of its own, and outside the main thread, where Python cannot have one.
    """

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(_BY_SIGNAL + number)

    is_main = threading.current_thread() is threading.main_thread()
    is_free = is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_free:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(_BY_SIGNAL + signal.SIGINT) from None
    finally:
        if is_free:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
