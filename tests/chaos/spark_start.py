"""Starts Spark in half the time: the chaos bed starts it a hundred times.

The JVM keeps an archive of Spark's loaded classes (class data sharing), made once per machine, Java
and PySpark; measured: 10.3 s of CPU time from the start to the second micro-batch without it, 5.1 s
with it. Java falls back to ordinary loading where the archive does not fit.
"""

import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pyspark

from runtime.embedded.cache import cache_dir, exclusive
from runtime.embedded.java import find_java
from runtime.embedded.program import Program, ProgramSpec

__all__ = ["spark_environment"]

_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=off"
_MAKE_S = 240.0

# What a pipeline of the bed loads: a session, a Python worker, a streaming query, state.
_WARM_UP = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()
seen = []
def batch(frame, number):
    seen.append(frame.count())
rows = spark.readStream.format("rate").load()
plain = rows.writeStream.foreachBatch(batch).start()
while len(seen) < 2:
    plain.awaitTermination(0.1)
plain.stop()
seen.clear()
provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
spark.conf.set("spark.sql.shuffle.partitions", 2)
counts = rows.groupBy("value").count().writeStream.outputMode("update")
state = counts.foreachBatch(batch).start()
while len(seen) < 2:
    state.awaitTermination(0.1)
state.stop()
spark.stop()
"""


@functools.cache
def spark_environment() -> Mapping[str, str]:
    """Environment of a program that starts Spark: small, quiet, from the archive."""
    return _environment(f"-XX:SharedArchiveFile={_archive()}")


def _environment(sharing: str) -> dict[str, str]:
    # By arguments and not by spark-defaults.conf: sharing refuses a class path with a directory
    # that is not empty, and Spark's launcher puts its configuration directory there.
    empty = cache_dir() / "empty"
    empty.mkdir(parents=True, exist_ok=True)
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    arguments = [f"--conf {name}={value}" for name, value in settings.items()]
    arguments += ["--driver-memory 512m", f"--driver-java-options '{_JVM} {sharing}'"]
    return {
        "PYSPARK_SUBMIT_ARGS": " ".join([*arguments, "pyspark-shell"]),
        "SPARK_CONF_DIR": str(empty),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _archive() -> Path:
    """The archive that fits this machine, made when there is none."""
    path = cache_dir() / f"spark-classes-{_fingerprint()}.jsa"
    with exclusive(path.with_suffix(".lock"), timeout_s=2 * _MAKE_S):
        if not path.exists():
            _make(path)
    return path


def _fingerprint() -> str:
    # The JVM compares paths and times of the jars, so they are what the name depends on.
    jars = Path(pyspark.__file__).parent / "jars"
    newest = max(jar.stat().st_mtime_ns for jar in jars.glob("*.jar"))
    parts = (pyspark.__version__, jars, newest, find_java().executable, os.uname().machine)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _make(path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        made = Path(directory) / "classes.jsa"
        spec = ProgramSpec(
            command=(sys.executable, "-c", _WARM_UP),
            log_path=Path(directory) / "log",
            environment={
                **_environment(f"-XX:ArchiveClassesAtExit={made}"),
                "PYSPARK_PYTHON": sys.executable,
            },
            working_dir=Path(directory),
        )
        with Program(spec) as program:
            exit_code = program.await_exit(timeout_s=_MAKE_S)
            assert exit_code == 0, program.log_tail()
            # The JVM writes the archive after the driver's end.
            assert program.await_gone(timeout_s=_MAKE_S), "the JVM did not end"
        made.rename(path)
