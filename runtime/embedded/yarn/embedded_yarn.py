"""A real YARN (one ResourceManager, some NodeManagers) as plain JVM processes: for tests and first
steps."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import psutil

from sluice.runtime.embedded.embedded_server import CONSOLE_LOGGING, EmbeddedServer
from sluice.runtime.embedded.hdfs.embedded_hdfs import HDFS_VERSION, QUICK_START, hdfs_class_path
from sluice.runtime.embedded.hdfs.hdfs_site import render
from sluice.runtime.embedded.ivy import Artifact, Bundle, fetch, pinned_checksums, pyspark_jars
from sluice.runtime.embedded.java import Java, find_java
from sluice.runtime.embedded.ports import HOST, free_ports, require_free
from sluice.runtime.embedded.process import Identity, ServerProcess, ServerSpec
from sluice.runtime.embedded.yarn.yarn_site import (
    YarnPorts,
    client_script,
    client_site,
    node_site,
)
from sluice.runtime.errors import MissingRequirementError

__all__ = ["YARN_VERSION", "EmbeddedYarn", "yarn_class_path"]

YARN_VERSION = HDFS_VERSION
_NAME = f"YARN {YARN_VERSION}"
_SERVER = "org.apache.hadoop.yarn.server"
_RESOURCE_MANAGER = f"{_SERVER}.resourcemanager.ResourceManager"
_NODE_MANAGER = f"{_SERVER}.nodemanager.NodeManager"
_OPENED = "--add-opens=java.base/java.lang=ALL-UNNAMED"
_CRYPTOGRAPHY = ("bcprov-jdk18on", "bcpkix-jdk18on", "bcutil-jdk18on")


def yarn_class_path() -> tuple[Path, ...]:
    """The class path of all servers: that of HDFS, a logging bridge, and a library for the
    certificate that the ResourceManager makes at its start; downloaded at a user's first call."""
    bundle = Bundle(
        name=f"yarn-{YARN_VERSION}",
        artifacts=tuple(
            Artifact(organisation="org.bouncycastle", name=name, version="1.82", transitive=False)
            for name in _CRYPTOGRAPHY
        ),
        checksums=pinned_checksums(f"yarn-{YARN_VERSION}"),
    )
    bridge = pyspark_jars().glob("log4j-1.2-api-[0-9]*")
    return (*hdfs_class_path(), *bridge, *sorted(fetch(bundle).glob("*.jar")))


class EmbeddedYarn(EmbeddedServer):
    """A ResourceManager on 127.0.0.1 and NodeManagers on 127.0.0.1, 127.0.0.2 and so on; used by
    one thread.

    Containers run as this user, without limits on their processors. Servers and containers die with
    the process that started them, however it ends, unless ``detached``. `stop` ends all
    applications. As a context manager it starts and closes.

    Args:
        data_dir: of configuration, logs and containers; None: a temporary directory.
        nodes: how many NodeManagers.
        port: of the ResourceManager for clients; None: any free one, kept over restarts.
        web_port: of its web pages and REST interface; None: any free one, kept over restarts.
        default_fs: file system of paths without a scheme; applications upload their files to it.
        settings: YARN properties that override the defaults.
        detached: they keep running after this process ends.
    """

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        nodes: int = 1,
        port: int | None = None,
        web_port: int | None = None,
        default_fs: str = "file:///",
        settings: Mapping[str, str] | None = None,
        detached: bool = False,
    ) -> None:
        super().__init__(_NAME, data_dir)
        self._count = nodes
        self._port = port
        self._web_port = web_port
        self._default_fs = default_fs
        self._settings = dict(settings or {})
        self._detached = detached
        self._ports: YarnPorts | None = None
        self.resource_manager: ServerProcess | None = None
        self.nodes: Sequence[ServerProcess] = ()

    @property
    def address(self) -> str:
        """``host:port`` of the ResourceManager."""
        return f"{HOST}:{self._known_ports().rpc}"

    @property
    def web_uri(self) -> str:
        """``http://host:port`` of the web pages; the REST interface is below ``/ws/v1``."""
        return f"http://{HOST}:{self._known_ports().web}"

    @property
    def conf_dir(self) -> Path:
        """For ``HADOOP_CONF_DIR`` of clients."""
        return self._directory() / "conf"

    @property
    def bin_dir(self) -> Path:
        """For ``PATH`` of clients: a program ``yarn``."""
        return self._directory() / "bin"

    @property
    def log_path(self) -> Path:
        """The ResourceManager's log; the logs of NodeManagers are in the same directory."""
        return self._log_path("resource-manager")

    @property
    def identities(self) -> tuple[Identity, ...]:
        """NodeManagers and ResourceManager, in the order in which another process must stop them:
        a NodeManager ends its containers first."""
        return tuple(Identity.of(server.pid) for server in self._servers() if server.is_running())

    def is_running(self) -> bool:
        """Whether all servers live."""
        servers = self._servers()
        return bool(servers) and all(server.is_running() for server in servers)

    def start(self) -> Self:
        """Start all servers and wait until every node has registered; returns at once if they run.

        Raises:
            MissingRequirementError: no Java, no jars, an occupied port, or no start in time.
        """
        if self.resource_manager is None:
            self._prepare()
        missing = [server for server in self._servers() if not server.is_running()]
        with ThreadPoolExecutor(len(missing) or 1) as pool:  # each waits for its JVM
            try:
                list(pool.map(ServerProcess.start, missing))
            except BaseException:
                for server in missing:
                    server.kill()  # ends the other waits, too
                raise
        return self

    def stop(self) -> None:
        """End all containers and all servers in good order; ports are kept, applications are
        forgotten."""
        for server in self._servers():
            server.stop()
        for number in range(1, len(self.nodes) + 1):
            self._kill_containers(number)

    def close(self) -> None:
        """Stop, and delete a temporary directory."""
        super().close()
        self._ports = self.resource_manager = None
        self.nodes = ()

    def containers(self, number: int) -> list[psutil.Process]:
        """Every process that runs in a container of a node: it works in the node's directory."""
        return [
            process
            for process in psutil.process_iter()
            if _works_below(process, self._node_dir(number) / "local")
        ]

    def kill_node(self, number: int) -> None:
        """``kill -9`` of a NodeManager and its containers, as if its host were lost."""
        self.nodes[number - 1].kill()
        self._kill_containers(number)

    def _kill_containers(self, number: int) -> None:
        while processes := self.containers(number):  # a process may fork meanwhile
            for process in processes:
                process.kill()
            psutil.wait_procs(processes)

    def _servers(self) -> list[ServerProcess]:
        manager = self.resource_manager
        return [*self.nodes, *(() if manager is None else (manager,))]

    def _known_ports(self) -> YarnPorts:
        if self._ports is None:
            raise MissingRequirementError(
                "the embedded YARN has no ports before its first start", {}, "Start it."
            )
        return self._ports

    def _node_dir(self, number: int) -> Path:
        return self._directory() / f"node-{number}"

    def _log_path(self, role: str) -> Path:
        return self._directory() / f"{role}.log"

    def _prepare(self) -> None:
        """Choose ports and write the configuration."""
        rpc, web, scheduler, tracker, admin = free_ports(5)
        ports = YarnPorts(
            rpc=self._port or rpc,
            web=self._web_port or web,
            scheduler=scheduler,
            tracker=tracker,
            admin=admin,
        )
        require_free(ports.rpc, server=f"{_NAME}'s ResourceManager")
        require_free(ports.web, server=f"{_NAME}'s web interface")
        java, jars = find_java(), yarn_class_path()
        site = client_site(ports=ports, overrides=self._settings)
        core = {**self._core_site(), "hadoop.tmp.dir": f"{self._directory()}/hadoop"}
        _write(self.conf_dir, {"core-site.xml": render(core), "yarn-site.xml": render(site)})
        script = client_script(
            java=java.executable, class_path=_joined(self.conf_dir, *hdfs_class_path())
        )
        _write(self.bin_dir, {"yarn": script})
        (self.bin_dir / "yarn").chmod(0o755)
        self._ports = ports
        self.resource_manager = self._server(
            *("resource-manager", _RESOURCE_MANAGER, "Transitioned to active state"),
            files={},
            java=java,
            jars=jars,
        )
        self.nodes = [
            self._server(
                *(f"node-{number}", _NODE_MANAGER, "Registered with ResourceManager as"),
                files={
                    "yarn-site.xml": render(
                        node_site(site, number=number, directory=self._node_dir(number))
                    )
                },
                java=java,
                jars=jars,
            )
            for number in range(1, self._count + 1)
        ]

    def _core_site(self) -> dict[str, str]:
        """The settings of the file system, for servers and clients."""
        return {"fs.defaultFS": self._default_fs}

    def _java_options(self) -> tuple[str, ...]:
        """More options of the servers' JVMs."""
        return ()

    def _server(
        self,
        role: str,
        main: str,
        ready_text: str,
        *,
        files: Mapping[str, str],
        java: Java,
        jars: Sequence[Path],
    ) -> ServerProcess:
        own = self._directory() / role
        _write(own / "conf", {"log4j2.properties": CONSOLE_LOGGING, **files})
        temporary = f"-Djava.io.tmpdir={self._temporary()}"
        options = (*QUICK_START, _OPENED, temporary, *self._java_options())
        class_path = _joined(own / "conf", self.conf_dir, *jars)
        return ServerProcess(
            ServerSpec(
                name=f"{_NAME} {role}",
                command=(
                    # Containers get this variable from their NodeManager.
                    *("/usr/bin/env", f"JAVA_HOME={java.executable.parents[1]}"),
                    *(str(java.executable), *options, "-cp", class_path, main),
                ),
                log_path=self._log_path(role),
                ready_text=ready_text,
                work_dir=own / "local",
                scratch_dir=self._scratch,
                detached=self._detached,
            )
        )


def _write(directory: Path, files: Mapping[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")


def _joined(*class_path: Path) -> str:
    return ":".join(map(str, class_path))


def _works_below(process: psutil.Process, directory: Path) -> bool:
    try:
        return Path(process.cwd()).is_relative_to(directory)
    except (psutil.Error, OSError):  # it has ended
        return False
