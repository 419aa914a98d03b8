"""The directory for temporary files of a process of Sluice."""

import os
import tempfile
from pathlib import Path

__all__ = ["temporary_dir"]

_CONTAINER = ("CONTAINER_ID", "LOCAL_DIRS")  # the variables of a YARN container


def temporary_dir() -> Path:
    """``TMPDIR``, if it is set; else in a YARN container its own directory, on a disk that YARN
    manages and cleans after any end; else Python's choice, such as ``/tmp``."""
    if "TMPDIR" not in os.environ and all(name in os.environ for name in _CONTAINER):
        return Path.cwd() / "tmp"
    return Path(tempfile.gettempdir())
