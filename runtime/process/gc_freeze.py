"""Takes the permanent objects of a worker process out of Python's search for cycles."""

import gc
import os

__all__ = ["freeze_lasting", "freeze_once"]

_frozen_in: int | None = None


def freeze_lasting() -> None:
    """Only objects that exist now: mostly modules.

    PySpark collects cycles after every task of a worker, through all objects. The modules of an
    Arrow task cost 25 to 50 ms of processor time, several times the work of a task with few
    records. Each collection also writes to every page that a worker shares with its daemon.
    """
    gc.collect()  # cycles inside frozen objects are never found
    gc.freeze()


def freeze_once() -> None:
    """Freezes once in each process: at the end of its first task, when all modules are imported."""
    global _frozen_in
    if _frozen_in != os.getpid():  # a fork may have frozen as many as its parent
        _frozen_in = os.getpid()
        freeze_lasting()
