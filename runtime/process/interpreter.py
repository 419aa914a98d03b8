"""What Spark's Python processes learn by their environment: the interpreter, and when to end."""

import os
import sys

__all__ = ["PLAN_ONCE", "import_path", "use_this_interpreter"]

PLAN_ONCE = "SLUICE_PLAN_ONCE"
"""Processes that plan a source end after their answer if this variable is set."""


def use_this_interpreter() -> None:
    """Name this interpreter to a JVM that is not yet started, unless the user has named one.

    The JVM reads ``PYSPARK_PYTHON`` from its environment when it loads data sources, and no setting
    of a session can change that later. The import of `connectors` or `job` does it, before the
    program makes its session.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def import_path() -> str:
    """``PYTHONPATH`` for a process that must import the modules that this process can import."""
    return os.pathsep.join(filter(None, sys.path))
