"""Spark's Python processes run the interpreter of the user's program, not the first ``python3``."""

import os
import sys

__all__ = ["use_this_interpreter"]


def use_this_interpreter() -> None:
    """Name this interpreter to a JVM that is not yet started, unless the user has named one.

    The JVM reads ``PYSPARK_PYTHON`` from its environment when it loads data sources, and no setting
    of a session can change that later. The import of `connectors` or `job` does it, before the
    program makes its session.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
