"""Waiting for a condition with a bound, the only way in which tests wait."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 600.0
"""Bound of what a machine does as soon as it comes to it: what hangs exceeds it, what is slow does
not, however busy the machine is."""

T = TypeVar("T")


def wait_for(
    condition: Callable[[], T],
    *,
    timeout_s: float = PATIENCE_S,
    what: str = "",
    poll_s: float = 0.05,
) -> T:
    """What ``condition`` returns once that is true.

    Fails with an `AssertionError` that names ``what`` when it never is. A condition that may
    raise while it is not yet true must catch that itself.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            name = what or getattr(condition, "__name__", repr(condition))
            raise AssertionError(f"not within {timeout_s} s: {name}; last seen: {value!r}")
        time.sleep(poll_s)  # the one place where tests wait: for a condition, with a bound


def join(*threads: threading.Thread, timeout_s: float = PATIENCE_S) -> None:
    """Wait for the ends of ``threads``; fails with the name of one that continues.

    ``Thread.join`` returns where time is up as it does after an end, so that a test which asks
    nothing else passes over what hangs.
    """
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive(), f"not within {timeout_s} s: the end of {thread.name}"
