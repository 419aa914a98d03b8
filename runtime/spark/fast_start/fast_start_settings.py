"""Settings for a faster start of a local Spark session, and so a faster recovery of a job."""

import os
import re
import sys
from pathlib import Path

from sluice.runtime.embedded.shared_classes import reading_options
from sluice.runtime.process.interpreter import use_this_interpreter
from sluice.runtime.spark.fast_start.class_archive import find_archive

__all__ = ["fast_start"]

_DAEMON = "sluice.runtime.spark.fast_start.python_daemon"

use_this_interpreter()


def fast_start(master: str) -> dict[str, bool | float | int | str | None]:
    """Settings for ``SparkSession.builder.config(map=fast_start(master))``.

    They name the class archive that ``sluice spark prepare`` made, if it is there and fits, and a
    daemon for Spark's Python workers that starts them faster. Your own options in
    ``spark.driver.extraJavaOptions`` stay: Spark appends them to these.

    Args:
        master: Spark's master. Only ``local`` and ``local[…]`` get settings; on a cluster the
            executors' hosts would need the archive and this package.
    Returns:
        The settings; empty if none helps. Never raises.
    """
    if not re.fullmatch(r"local(\[.*\])?", master):
        return {}
    return {**_java_settings(find_archive()), **_python_settings()}


def _java_settings(archive: Path | None) -> dict[str, str]:
    if archive is None or re.search(r"[\s'\"\\]", str(archive)):
        return {}  # Spark splits the options at blanks and quotes
    # Not extraJavaOptions, which are the user's; Spark joins the two.
    return {"spark.driver.defaultJavaOptions": " ".join(reading_options(archive))}


def _python_settings() -> dict[str, str]:
    # Another interpreter, named by the user, may not have this package.
    if os.environ.get("PYSPARK_PYTHON") != sys.executable:
        return {}
    return {"spark.python.daemon.module": _DAEMON}
