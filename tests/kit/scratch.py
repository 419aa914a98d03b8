"""One directory for what the processes of a test run leave after, removed at its end.

Killed programs clean nothing up: native libraries, block files and servlet directories would fill
the machine's temporary directory, run by run.
"""

import os
import shutil
import tempfile

import pytest

_DIRECTORY = pytest.StashKey[str]()
_PYTEST_ROOT = "PYTEST_DEBUG_TEMPROOT"


def open_scratch(config: pytest.Config) -> None:
    """Let every process started from now on keep its temporary files in the run's directory.

    pytest's own directories stay where they are kept for a look after a failure.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # a worker has its controller's environment
    os.environ.setdefault(_PYTEST_ROOT, tempfile.gettempdir())
    made = tempfile.mkdtemp(prefix="sluice-tests-")
    config.stash[_DIRECTORY] = made
    tempfile.tempdir = None  # decided once, and we have just asked
    os.environ["TMPDIR"] = made
    os.environ["SPARK_LOCAL_DIRS"] = made
    # Java asks no variable; these options reach each JVM that a program starts for Spark.
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{options} -Djava.io.tmpdir={made}".strip()


def close_scratch(config: pytest.Config) -> None:
    """Remove it; processes that are just ending may still write there."""
    made = config.stash.get(_DIRECTORY, None)
    if made is not None:
        shutil.rmtree(made, ignore_errors=True)
