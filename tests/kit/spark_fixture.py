"""A Spark session for tests: one for each test process, small, without a web page."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sluice.runtime.process.interpreter import use_this_interpreter
from sluice.runtime.spark.fast_start.fast_start_settings import fast_start
from sluice.runtime.spark.session.spark_session import prepare

PATIENT = {"spark.python.authenticate.socketTimeout": "600s"}
"""Spark's own bounds that only measure the machine: 15 s from a process to its first word."""

_MASTER = "local[2,4]"
_SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # for short queries and few records

# A local Spark that has lost a shuffle, as in `test_shuffle_retries`, cannot register its blocks
# again: each heartbeat fails from then on, and the 60th would end the JVM.
_LASTING = {"spark.executor.heartbeat.maxFailures": str(2**31 - 1)}

_jvms: list[subprocess.Popen[bytes]] = []  # that of the session, while it is needed


def quick_python() -> str:
    """``PYTHONPATH`` for programs that use Spark: the checkout, and `tests/quick_python`."""
    tests = Path(__file__).parents[1]
    return f"{tests.parent}{os.pathsep}{tests / 'quick_python'}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two cores of this machine, its scratch files in a directory of the test run."""
    use_this_interpreter()
    scratch: Path = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master(_MASTER)
        .appName("sluice-tests")
        .config(map=fast_start(_MASTER))
        .config("spark.driver.extraJavaOptions", _SMALL)
        .config(map=PATIENT | _LASTING)
        .config("spark.ui.enabled", "false")
        .config("spark.scheduler.mode", "FAIR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", quick_python())  # Spark's processes have it from the JVM
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    prepare(session)
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no public way
    _jvms.append(gateway.proc)
    yield session
    if _jvms:  # else it has been reported
        _jvms.clear()
        session.stop()


def expect_jvm() -> None:
    """After each test: one that ends the session's JVM, or sees it end, fails by that, and not the
    last one of the process."""
    codes = [jvm.poll() for jvm in _jvms]
    if any(code is not None for code in codes):
        _jvms.clear()
        pytest.fail(f"Spark's JVM has ended by itself, with exit code {codes[0]}")
