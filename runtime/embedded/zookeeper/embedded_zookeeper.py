"""A real ZooKeeper (one node, or an ensemble) as plain JVM processes: for tests and first steps."""

import contextlib
import re
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sluice.runtime.embedded.embedded_server import CONSOLE_LOGGING, EmbeddedServer
from sluice.runtime.embedded.ivy import pyspark_jars
from sluice.runtime.embedded.java import find_java
from sluice.runtime.embedded.ports import HOST, free_ports, require_free
from sluice.runtime.embedded.process import Identity, ServerProcess, ServerSpec
from sluice.runtime.embedded.start_timeout import StartTimeout
from sluice.runtime.errors import MissingRequirementError

__all__ = ["EmbeddedZooKeeper", "zookeeper_class_path", "zookeeper_version"]

_NAME = "ZooKeeper"
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_SHIPPED = (
    *("zookeeper", "zookeeper-jute", "audience-annotations", "metrics-core", "snappy-java"),
    *("slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl", "commons-io", "commons-cli"),
    *("netty-handler", "netty-transport", "netty-common", "netty-buffer", "netty-codec"),
    *("netty-codec-base", "netty-resolver", "netty-transport-classes-epoll"),
    *("netty-transport-native-epoll", "netty-transport-native-unix-common"),
)
_OPTIONS = (
    *("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.4lw.commands.whitelist=srvr",
)
_TICK_MS = 500
"""The shortest session is two ticks, and sessions end at a tick."""
_POLL_S = 0.05
_ANSWER_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ports:
    client: int
    peers: int
    elections: int


def zookeeper_class_path() -> tuple[Path, ...]:
    """The class path of a server; PySpark ships all of it."""
    jars = [jar for stem in _SHIPPED for jar in pyspark_jars().glob(f"{stem}-[0-9]*.jar")]
    if not any(jar.name.startswith("zookeeper-") for jar in jars):
        raise MissingRequirementError(
            "the installed PySpark has no ZooKeeper",
            {"jars": pyspark_jars()},
            "Install PySpark 4.2 or newer with pip.",
        )
    return tuple(jars)


def zookeeper_version() -> str:
    """The version of the server that PySpark ships, e.g. ``3.9.5``."""
    found = (re.fullmatch(r"zookeeper-([0-9.]+)", jar.stem) for jar in zookeeper_class_path())
    return next(match[1] for match in found if match)


class EmbeddedZooKeeper(EmbeddedServer):
    """Nodes on 127.0.0.1; used by one thread.

    They die with the process that started them, however it ends, unless ``detached``. `stop` and
    `start` keep data and ports. As a context manager it starts and closes.

    Args:
        data_dir: of their data; None: a temporary directory.
        nodes: how many; 1: without a quorum.
        port: of the first node for clients; the next nodes take the next ones. None: any free
            ones, kept over restarts.
        detached: they keep running after this process ends.
    """

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        nodes: int = 1,
        port: int | None = None,
        detached: bool = False,
    ) -> None:
        super().__init__(_NAME, data_dir)
        self._count = nodes
        self._port = port
        self._detached = detached
        self._ports: Sequence[_Ports] = ()
        self.nodes: Sequence[ServerProcess] = ()

    @property
    def hosts(self) -> str:
        """``host:port`` of every node, separated by commas."""
        return ",".join(f"{HOST}:{ports.client}" for ports in self._ports)

    @property
    def log_path(self) -> Path:
        """The first node's log; the other logs are beside it."""
        return self._directory() / "node-1.log"

    @property
    def identities(self) -> tuple[Identity, ...]:
        """The processes, for another process that stops them."""
        return tuple(Identity.of(node.pid) for node in self.nodes)

    def is_running(self) -> bool:
        """Whether all nodes live."""
        return bool(self.nodes) and all(node.is_running() for node in self.nodes)

    def start(self) -> Self:
        """Start all nodes and wait until each serves clients; returns at once if they run.

        Raises:
            MissingRequirementError: no Java, an occupied port, or no start in time.
        """
        if not self.nodes:
            self.nodes = self._prepare()
        missing = [node for node in self.nodes if not node.is_running()]
        with ThreadPoolExecutor(len(missing) or 1) as pool:  # each waits for its JVM
            try:
                list(pool.map(ServerProcess.start, missing))
                self._await_serving()
            except BaseException:
                for node in missing:
                    node.kill()
                raise
        return self

    def stop(self) -> None:
        """End all nodes in good order; data and ports are kept."""
        for node in self.nodes:
            node.stop()

    def close(self) -> None:
        """Stop, and delete the data of a temporary directory."""
        super().close()
        self._ports, self.nodes = (), ()

    def leader(self) -> int:
        """Index of the node that leads the ensemble."""
        for index, ports in enumerate(self._ports):
            if "Mode: leader" in _srvr(ports.client) or self._count == 1:
                return index
        raise MissingRequirementError(
            "the ensemble has no leader now", {"hosts": self.hosts}, "Start more nodes."
        )

    def _prepare(self) -> list[ServerProcess]:
        ports = free_ports(3 * self._count)
        self._ports = [
            _Ports(
                client=ports[3 * i] if self._port is None else self._port + i,
                peers=ports[3 * i + 1],
                elections=ports[3 * i + 2],
            )
            for i in range(self._count)
        ]
        for each in self._ports:
            require_free(each.client, server=_NAME)
        java = str(find_java().executable)
        return [self._node(java, number) for number in range(1, self._count + 1)]

    def _node(self, java: str, number: int) -> ServerProcess:
        directory = self._directory() / f"node-{number}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "myid").write_text(f"{number}\n", encoding="ascii")
        (directory / "log4j2.properties").write_text(CONSOLE_LOGGING, encoding="ascii")
        conf = directory / "zoo.cfg"
        conf.write_text(self._settings(directory, number), encoding="utf-8")
        class_path = ":".join(map(str, [directory, *zookeeper_class_path()]))
        temporary = f"-Djava.io.tmpdir={self._temporary()}"
        return ServerProcess(
            ServerSpec(
                name=f"{_NAME} node {number}",
                command=(java, *_OPTIONS, temporary, "-cp", class_path, _MAIN, str(conf)),
                log_path=self._directory() / f"node-{number}.log",
                ready_text="binding to port",
                scratch_dir=self._scratch,
                detached=self._detached,
            )
        )

    def _settings(self, directory: Path, number: int) -> str:
        lines = [
            f"tickTime={_TICK_MS}",
            *("initLimit=60", "syncLimit=20", "maxClientCnxns=0"),
            f"dataDir={directory}",
            f"clientPort={self._ports[number - 1].client}",
            f"clientPortAddress={HOST}",
        ]
        if self._count > 1:
            lines += [
                f"server.{each}={HOST}:{ports.peers}:{ports.elections}"
                for each, ports in enumerate(self._ports, 1)
            ]
        return "".join(f"{line}\n" for line in lines)

    def _await_serving(self) -> None:
        """A node serves once a majority has elected its leader."""
        logs = [self._directory() / f"node-{number}.log" for number in range(1, self._count + 1)]
        start_timeout = StartTimeout(logs)
        while not all("Mode:" in _srvr(ports.client) for ports in self._ports):
            if start_timeout.end() or not self.is_running():
                raise MissingRequirementError(
                    "ZooKeeper started, but serves no clients",
                    {"log": self.log_path, "is_running": self.is_running()},
                    "Read the logs of all nodes.",
                )
            time.sleep(_POLL_S)  # no event reports the quorum


def _srvr(port: int) -> str:
    """A node's answer to ``srvr``; empty: none."""
    answer = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((HOST, port), timeout=_ANSWER_S) as connection,
    ):
        connection.sendall(b"srvr")
        while piece := connection.recv(4096):
            answer += piece
    return answer.decode(errors="replace")
