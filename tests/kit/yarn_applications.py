"""Applications on the embedded YARN: a fixture for its servers, states and processes."""

import contextlib
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.embedded.yarn.embedded_yarn import EmbeddedYarn
from tests.kit.waiting import wait_for

__all__ = ["NODES", "Application", "newest_application", "yarn", "yarn_answer"]

NODES = 2
_ANSWER_S = 60.0
_MASTER, _LAUNCHER = "ApplicationMaster", "ExecutorLauncher"  # cluster and client mode
_EXECUTOR = "YarnCoarseGrainedExecutorBackend"


@pytest.fixture(scope="session")
def yarn(hdfs: EmbeddedHdfs) -> Iterator[EmbeddedYarn]:
    """The session's YARN, two nodes, on the session's HDFS; a test that kills a node starts it
    again."""
    settings = {"yarn.nm.liveness-monitor.expiry-interval-ms": "20000"}
    with EmbeddedYarn(nodes=NODES, default_fs=hdfs.uri, settings=settings) as servers:
        yield servers


def yarn_answer(servers: EmbeddedYarn, path: str) -> dict[str, Any]:
    """An answer of the ResourceManager's REST interface."""
    connection = http.client.HTTPConnection(urlsplit(servers.web_uri).netloc, timeout=_ANSWER_S)
    try:
        connection.request("GET", f"/ws/v1/cluster/{path}")
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


def newest_application(servers: EmbeddedYarn) -> "Application":
    """The one that was submitted last."""
    found = yarn_answer(servers, "apps")["apps"]["app"]
    newest = max(found, key=lambda application: application["startedTime"])
    return Application(servers, newest["id"])


@dataclass(frozen=True, slots=True)
class Application:
    """An application, and those of its processes that a test kills.

    Attributes:
        servers: that run it.
        application_id: YARN's.
    """

    servers: EmbeddedYarn
    application_id: str

    def report(self) -> dict[str, Any]:
        """What the ResourceManager says of it."""
        return dict(yarn_answer(self.servers, f"apps/{self.application_id}")["app"])

    def attempts(self) -> int:
        """How often YARN has started its master so far."""
        found = yarn_answer(self.servers, f"apps/{self.application_id}/appattempts")
        return len(found["appAttempts"]["appAttempt"])

    def master_output(self) -> str:
        """What all attempts of the driver have written."""
        names = ("stdout", "stderr")
        logs = self.servers.conf_dir.parent.glob(f"node-*/logs/{self.application_id}/*_000001/*")
        return "\n".join(
            log.read_text("utf-8", errors="replace") for log in sorted(logs) if log.name in names
        )

    def await_end(self) -> str:
        """Its final status, after every process of it has ended."""
        wait_for(lambda: self.report()["finalStatus"] != "UNDEFINED", what="the end of the job")
        wait_for(lambda: not self._processes(), what="the end of its containers")
        return str(self.report()["finalStatus"])

    def master(self) -> psutil.Process:
        """The JVM of its master."""
        return self._jvm(_MASTER)

    def launcher(self) -> psutil.Process:
        """The JVM of its master in client mode: it requests containers for the driver."""
        return self._jvm(_LAUNCHER)

    def busy_executor(self) -> psutil.Process:
        """The JVM of an executor with a Python worker."""
        return self._jvm(_EXECUTOR, below="pyspark.daemon")

    def node_of(self, process: psutil.Process) -> int:
        """The number of the node that a process runs on."""
        return next(
            number for number in range(1, NODES + 1) if process in self.servers.containers(number)
        )

    def _jvm(self, role: str, *, below: str = "") -> psutil.Process:
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = [
                process
                for process in self._processes()
                if process.name().startswith("java")
                and _says(process, role)
                and (not below or any(_says(child, below) for child in _children(process)))
            ]
            return bool(found)

        wait_for(is_there, what=f"a process {role}")
        return found[0]

    def _processes(self) -> list[psutil.Process]:
        return [
            process
            for number in range(1, NODES + 1)
            for process in self.servers.containers(number)
            if _works_for(process, self.application_id)
        ]


def _says(process: psutil.Process, word: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(word in part for part in process.cmdline())
    return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return list(process.children(recursive=True))
    return []


def _works_for(process: psutil.Process, application_id: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return application_id in process.cwd()
    return False
