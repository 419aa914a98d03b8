"""A JVM with Hadoop's client for command lines, without a SparkSession: PySpark's jars are enough.

It does not import PySpark; it only finds PySpark's jar directory.
"""

import contextlib
import logging
import os
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

from py4j.java_gateway import GatewayClient, GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import ERROR, REFERENCE_TYPE, Py4JError, get_return_value

from sluice.runtime.embedded.ivy import pyspark_jars
from sluice.runtime.embedded.java import find_java
from sluice.runtime.errors import MissingRequirementError
from sluice.runtime.process.closing import close_logged

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
    """The site files of ``HADOOP_CONF_DIR``, if it is set, and then PySpark's jars."""
    configured = os.environ.get("HADOOP_CONF_DIR")
    return os.pathsep.join([*([configured] if configured else []), f"{pyspark_jars()}/*"])


def _krb5() -> list[str]:
    """Java does not read ``KRB5_CONFIG``, as Kerberos' own programs do."""
    conf = os.environ.get("KRB5_CONFIG")
    return [f"-Djava.security.krb5.conf={conf}"] if conf else []


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
            javaopts=[*_OPTIONS, *_krb5(), f"-Djava.io.tmpdir={tempfile.gettempdir()}"],
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
    gateway = _Gateway(
        gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True)
    )
    try:
        yield gateway.jvm
    finally:
        # Not `close`: objects collected later would connect to the port again, which another
        # process may use by then.
        close_logged(gateway.shutdown, "gateway of a JVM")
        close_logged(process.stdin.close, "JVM")  # it ends when its standard input does
        _await_end(process)


class _Gateway(JavaGateway):  # type: ignore[misc]  # py4j has no types
    def _create_gateway_client(self) -> GatewayClient:
        return _Client(gateway_parameters=self.gateway_parameters)


class _Client(GatewayClient):  # type: ignore[misc]  # py4j has no types
    """Raises Java exceptions without PySpark.

    In a process with a SparkSession, PySpark looks up each exception of any gateway in the
    session's JVM, by a number that means another object there. So an absent file was sometimes
    reported as the error of an earlier failed job.
    """

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:  # noqa: ANN401 - py4j's own
        answer = super().send_command(command, retry, binary)
        if not binary and answer.startswith(ERROR + REFERENCE_TYPE):
            get_return_value(answer, self, "Hadoop", "client")
        return answer


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the JVM to end; kill it if it hangs, because it is no longer used."""
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        log.warning(
            "a JVM did not end by itself and is killed: pid=%d waited_s=%.0f", process.pid, _END_S
        )
        process.kill()
        process.wait()
