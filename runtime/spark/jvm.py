"""A JVM with Hadoop's client for command lines, without a SparkSession: PySpark's jars are enough.

PySpark itself is not imported; only its jar directory is looked up.
"""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError

from runtime.embedded.ivy import pyspark_jars
from runtime.embedded.java import find_java
from runtime.errors import MissingRequirementError

__all__ = ["hadoop_jvm"]

_OPTIONS = [
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dlog4j2.level=ERROR",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
]


def _class_path() -> str:
    """PySpark's jars, behind the site files of ``HADOOP_CONF_DIR`` where it is set."""
    configured = os.environ.get("HADOOP_CONF_DIR")
    return os.pathsep.join([*([configured] if configured else []), f"{pyspark_jars()}/*"])


@contextlib.contextmanager
def hadoop_jvm() -> Iterator[Any]:
    """py4j's view of a fresh JVM that ends with the block, or with this process."""
    jars = sorted(pyspark_jars().glob("py4j*.jar"))
    if not jars:
        raise MissingRequirementError(
            "PySpark's jars lack py4j", {"path": pyspark_jars()}, "Install pyspark again."
        )
    java = find_java()
    try:
        port, token, process = launch_gateway(
            jarpath=str(jars[0]),
            classpath=_class_path(),
            javaopts=[*_OPTIONS, f"-Djava.io.tmpdir={tempfile.gettempdir()}"],
            java_path=str(java.executable),
            die_on_exit=True,
            enable_auth=True,
            redirect_stderr=subprocess.DEVNULL,
            return_proc=True,
        )
    except (Py4JError, OSError, ValueError) as error:
        raise MissingRequirementError(
            "a JVM for Hadoop's client did not start",
            {"java": java.executable, "error": error},
            "Check that this Java works.",
        ) from error
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True)
    )
    try:
        yield gateway.jvm
    finally:
        # Not `close`: objects that are collected later would connect to the port once more, and it
        # may be somebody else's by then.
        gateway.shutdown()
        process.stdin.close()  # the JVM ends when its standard input does
        process.wait(timeout=120)
