"""Starts Spark in half the time: the chaos bed starts it a hundred times.

With the class archive that users have too, with flags that are only for programs that live for
seconds, and with Python processes that compile nothing (`tests/quick_python`). Measured: 20 s
of processor time of the JVM from the start to the second micro-batch with neither archive nor
flags, 12 s with these flags, 6 s with both.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping

from sluice.runtime.errors import ConfigError, MissingRequirementError
from sluice.runtime.spark.fast_start.class_archive import prepare_archive
from tests.kit.spark_fixture import PATIENT, quick_python

_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=off"


@functools.cache
def spark_environment() -> Mapping[str, str]:
    """Environment of a program that starts Spark: small, quiet, from the archive."""
    options = " ".join([_JVM, *_sharing()])
    settings = {**PATIENT, "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    arguments = [f"--conf {name}={value}" for name, value in settings.items()]
    arguments += ["--driver-memory 512m", f"--driver-java-options '{options}'"]
    return {
        "PYTHONPATH": quick_python(),
        "PYSPARK_SUBMIT_ARGS": " ".join([*arguments, "pyspark-shell"]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _sharing() -> Iterator[str]:
    # Without it the bed is only slower.
    with contextlib.suppress(ConfigError, MissingRequirementError):
        yield f"-XX:SharedArchiveFile={prepare_archive().path}"
