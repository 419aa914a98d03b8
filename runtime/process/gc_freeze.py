"""What a worker process keeps for its whole life, taken out of Python's search for cycles."""

import gc
import os

__all__ = ["freeze_lasting", "freeze_once"]

_frozen_in: int | None = None


def freeze_lasting() -> None:
    """Whatever there is now stays: modules, mostly.

    PySpark looks for cycles behind every task of a worker, through all objects that there are: 25
    to 50 ms of processor time for the modules of an Arrow task, several times what a task of a few
    records takes itself. And each look writes to every page that a worker shares with its daemon.
    """
    gc.collect()  # cycles that are frozen are never found
    gc.freeze()


def freeze_once() -> None:
    """The same in each process once: at the end of its first task, when all is imported."""
    global _frozen_in
    if _frozen_in != os.getpid():  # a fork may have frozen as much as its parent had
        _frozen_in = os.getpid()
        freeze_lasting()
