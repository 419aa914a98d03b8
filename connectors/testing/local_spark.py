"""A Spark session on this machine for the tests of a user."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.connectors.installation import install
from sluice.runtime.process.interpreter import import_path
from sluice.runtime.spark.fast_start.fast_start_settings import fast_start

__all__ = ["local_spark"]

_MASTER = "local[2]"
_SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # for short queries and few records


@contextlib.contextmanager
def local_spark(scratch: Path) -> Iterator[SparkSession]:
    """A session with Sluice's formats, stopped at the end; one that runs already is left running.

    Args:
        scratch: directory of its tables and temporary files.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        install(running)
        yield running
        return
    builder = (
        SparkSession.builder.master(_MASTER)
        .appName("sluice-testing")
        .config(map=fast_start(_MASTER))
        .config("spark.driver.extraJavaOptions", _SMALL)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    with pytest.MonkeyPatch.context() as patch:  # Spark's Python workers have it from the JVM
        patch.setenv("PYTHONPATH", import_path())  # functions of test modules run there
        session = builder.getOrCreate()
    try:
        installation = install(session)
        try:
            yield session
        finally:
            installation.close()
    finally:
        session.stop()
