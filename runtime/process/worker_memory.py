"""Keeps the memory of a Python worker small: shared with its daemon, and returned after a task."""

import ctypes
import functools
import gc
import os
import sys
from collections.abc import Callable

__all__ = ["freeze_lasting", "tidy_after_task"]

_frozen_in: int | None = None


def freeze_lasting() -> None:
    """Take the objects that exist now, mostly modules, out of Python's search for cycles.

    PySpark collects cycles after every task of a worker, through all objects. The modules of an
    Arrow task cost 25 to 50 ms of processor time, several times the work of a task with few
    records. Each collection also writes to every page that a worker shares with its daemon.
    """
    gc.collect()  # cycles inside frozen objects are never found
    gc.freeze()


def tidy_after_task() -> None:
    """Freeze the modules after the first task of this process, and return free memory.

    The buffers of Kafka's clients and of Arrow are free after a task, and stay with the process:
    40 MB in each of a query's workers, which read and write in turn.
    """
    global _frozen_in
    if _frozen_in != os.getpid():  # a fork may have frozen as many as its parent
        _frozen_in = os.getpid()
        freeze_lasting()
    if arrow := sys.modules.get("pyarrow"):
        arrow.default_memory_pool().release_unused()
    _trim_heap()(0)


@functools.cache
def _trim_heap() -> Callable[[int], object]:
    """The C library's ``malloc_trim``: 1 ms of free buffers, 3 us without any."""
    trim: Callable[[int], object] = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
    return trim
