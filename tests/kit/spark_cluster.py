"""A standalone Spark cluster as plain processes: a master, and workers that may die or hang."""

import contextlib
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import psutil
import pyspark

from sluice.runtime.embedded.java import find_java
from sluice.runtime.embedded.ports import HOST, free_ports
from sluice.runtime.embedded.process import ServerProcess, ServerSpec
from tests.kit.spark_fixture import quick_python

_HOME = Path(pyspark.__file__).parent
_MASTER = "org.apache.spark.deploy.master.Master"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_WORKER = "org.apache.spark.deploy.worker.Worker"


class SparkCluster:
    """One master and two workers of one core each, on free ports; ended with this process.

    Args:
        directory: for logs and the executors' own directories.
        hosts: of the workers; addresses of this machine.
        python_path: of the workers; None: they have this checkout.
    """

    def __init__(
        self,
        directory: Path,
        *,
        hosts: Sequence[str] = (HOST, HOST),
        python_path: str | None = None,
    ) -> None:
        self._directory = directory
        self._python_path = quick_python() if python_path is None else python_path
        port, web, *ports = free_ports(2 + 2 * len(hosts))
        self.url = f"spark://{HOST}:{port}"
        self._master = self._server(
            "master", "I have been elected leader", _MASTER, *_places(HOST, port, web)
        )
        self._workers = [
            self._server(
                f"worker-{number}",
                "Successfully registered with master",
                _WORKER,
                *_places(host, *ports[2 * number : 2 * number + 2]),
                *("--cores", "1", "--memory", "1g"),
                *("--work-dir", str(directory / f"work-{number}"), self.url),
            )
            for number, host in enumerate(hosts)
        ]

    def __enter__(self) -> Self:
        try:
            for server in (self._master, *self._workers):
                server.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the cluster."""
        for number, server in enumerate(self._workers):
            if server.is_running():
                self.kill_worker(number)
        self._master.stop()

    def kill_worker(self, number: int) -> None:
        """``kill -9`` of a worker, its executors and their Python workers: the host is gone."""
        for process in self._processes(number):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._workers[number].kill()

    def executor(self, number: int) -> psutil.Process | None:
        """The JVM of a worker's newest executor; None when there is none at the moment."""
        found = [process for process in self._processes(number) if _is_executor(process)]
        return found[-1] if found else None

    def freeze(self, number: int) -> list[psutil.Process]:
        """Stop a worker and all below it as a host that hangs; returns what `thaw` lets continue."""
        frozen = list(self._processes(number))
        for process in frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        return frozen

    def thaw(self, frozen: list[psutil.Process]) -> None:
        """Let frozen processes continue where they were."""
        for process in frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    def has_tasks(self, number: int) -> bool:
        """Whether Python workers run below this worker."""
        return any("python" in process.name() for process in self._processes(number))

    def executor_logs(self) -> str:
        """What all executors so far, and their Python workers, have said."""
        found = sorted(self._directory.glob("work-*/app-*/*/stderr"))
        return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in found)

    def _processes(self, number: int) -> Iterator[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker = psutil.Process(self._workers[number].pid)
            yield from (worker, *worker.children(recursive=True))

    def _server(self, role: str, ready_text: str, main: str, *arguments: str) -> ServerProcess:
        environment = (
            *("/usr/bin/env", f"SPARK_HOME={_HOME}", f"SPARK_LOCAL_IP={HOST}"),
            f"PYTHONPATH={self._python_path}",
            # Else executors are looked for in the folders of Spark's own build.
            f"SPARK_SCALA_VERSION={_scala_version()}",
        )
        # The other way to hand in applications has a port that is always the same.
        java = (str(find_java().executable), "-Xmx256m", "-Dspark.master.rest.enabled=false")
        return ServerProcess(
            ServerSpec(
                name=f"Spark {role}",
                command=(*environment, *java, "-cp", f"{_HOME}/jars/*", main, *arguments),
                log_path=self._directory / f"{role}.log",
                ready_text=ready_text,
            )
        )


def _is_executor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        alive = process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return alive and any(_EXECUTOR in word for word in process.cmdline())
    return False


def _scala_version() -> str:
    (core,) = _HOME.glob("jars/spark-core_*.jar")
    return core.name.partition("_")[2].partition("-")[0]


def _places(host: str, port: int, web: int) -> tuple[str, ...]:
    return ("--host", host, "--port", str(port), "--webui-port", str(web))
