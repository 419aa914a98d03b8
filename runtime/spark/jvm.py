"""A JVM with Hadoop's client for command lines, without a SparkSession: PySpark's jars are enough.

PySpark itself is not imported; only its jar directory is looked up.
"""

import contextlib
import logging
import os
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError

from runtime.closing import close_logged
from runtime.embedded.ivy import pyspark_jars
from runtime.embedded.java import find_java
from runtime.errors import MissingRequirementError

__all__ = ["hadoop_jvm"]

log = logging.getLogger(__name__)

_END_S = 120.0

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
        close_logged(gateway.shutdown, "gateway of a JVM")
        close_logged(process.stdin.close, "JVM")  # it ends when its standard input does
        _await_end(process)


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """By itself; by force where it hangs, for nobody needs it any more."""
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        log.warning(
            "a JVM did not end by itself and is killed: pid=%d waited_s=%.0f", process.pid, _END_S
        )
        process.kill()
        process.wait()
