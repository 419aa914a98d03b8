"""A real HDFS (one NameNode, one DataNode) as plain JVM processes: for tests and first steps."""

import http.client
import json
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from sluice.runtime.embedded.embedded_server import CONSOLE_LOGGING, EmbeddedServer
from sluice.runtime.embedded.hdfs.hdfs_site import (
    HdfsPorts,
    is_formatted,
    render,
    site_properties,
)
from sluice.runtime.embedded.ivy import (
    Artifact,
    Bundle,
    fetch,
    pinned_checksums,
    pyspark_jars,
)
from sluice.runtime.embedded.java import find_java
from sluice.runtime.embedded.ports import HOST, free_ports, require_free
from sluice.runtime.embedded.process import Identity, ServerProcess, ServerSpec
from sluice.runtime.embedded.start_timeout import StartTimeout
from sluice.runtime.errors import MissingRequirementError

__all__ = [
    "HDFS_VERSION",
    "QUICK_START",
    "EmbeddedHdfs",
    "hdfs_class_path",
    "hdfs_jars",
    "takes_files",
]

HDFS_VERSION = "3.5.0"
_NAME = f"HDFS {HDFS_VERSION}"
_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_SHIPPED = ("hadoop-client-api", "hadoop-client-runtime", "jcl-over-slf4j", "slf4j-api")
_LOGGING_JARS = ("log4j-api", "log4j-core", "log4j-slf4j2-impl")
_OPENED = "--add-opens=java.base/java.lang=ALL-UNNAMED"
_POLL_S = 0.05
_ANSWER_S = 5.0
_STATE = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"

QUICK_START: Sequence[str] = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""JVM options for a short start and a small footprint; not for millions of files."""


def hdfs_jars() -> Path:
    """Directory with the servers' jar, downloaded at a user's first call.

    It holds the real NameNode and DataNode; PySpark ships the rest of the class path.
    """
    bundle = Bundle(
        name=f"hdfs-{HDFS_VERSION}",
        artifacts=(
            Artifact(
                organisation="org.apache.hadoop",
                name="hadoop-client-minicluster",
                version=HDFS_VERSION,
                transitive=False,
            ),
        ),
        checksums=pinned_checksums(f"hdfs-{HDFS_VERSION}"),
    )
    return fetch(bundle)


def hdfs_class_path() -> tuple[Path, ...]:
    """The class path of both servers: the downloaded jar, and PySpark's Hadoop and logging."""
    shipped = [
        jar for stem in (*_SHIPPED, *_LOGGING_JARS) for jar in pyspark_jars().glob(f"{stem}-[0-9]*")
    ]
    return (*hdfs_jars().glob("*.jar"), *shipped)


class EmbeddedHdfs(EmbeddedServer):
    """A NameNode and a DataNode on 127.0.0.1; used by one thread.

    They die with the process that started them, however it ends, unless ``detached``. `stop` and
    `start` keep data and the NameNode's ports; `close` also deletes data in a temporary directory.
    As a context manager it starts and closes.

    Args:
        data_dir: of their data; None: a temporary directory.
        port: of the NameNode; None: any free one, kept over restarts.
        web_port: of its web pages and WebHDFS; None: any free one, kept over restarts.
        settings: Hadoop properties that override the defaults.
        detached: they keep running after this process ends.
    """

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        port: int | None = None,
        web_port: int | None = None,
        settings: Mapping[str, str] | None = None,
        detached: bool = False,
    ) -> None:
        super().__init__(_NAME, data_dir)
        self._port = port
        self._web_port = web_port
        self._settings = dict(settings or {})
        self._detached = detached
        self._ports: HdfsPorts | None = None
        self.name_node: ServerProcess | None = None
        self.data_node: ServerProcess | None = None

    @property
    def uri(self) -> str:
        """``hdfs://host:port``; append an absolute path."""
        return f"hdfs://{HOST}:{self._known_ports().rpc}"

    @property
    def web_uri(self) -> str:
        """``http(s)://host:port`` of the web pages; WebHDFS is below ``/webhdfs/v1``."""
        scheme = "http" if self._web_tls() is None else "https"
        return f"{scheme}://{HOST}:{self._known_ports().web}"

    @property
    def identities(self) -> tuple[Identity, ...]:
        """DataNode and NameNode, in the order in which another process must stop them."""
        servers = (self.data_node, self.name_node)
        return tuple(Identity.of(server.pid) for server in servers if server is not None)

    @property
    def log_path(self) -> Path:
        """The NameNode's log, over all its runs; the DataNode's log is in the same directory."""
        return self._log_path("NameNode")

    def is_running(self) -> bool:
        """Whether both live."""
        servers = (self.name_node, self.data_node)
        return all(server is not None and server.is_running() for server in servers)

    def start(self) -> Self:
        """Start both and wait until files can be written; returns at once if they run.

        Raises:
            MissingRequirementError: no Java, no jars, an occupied port, or no start in time.
        """
        if self.is_running():
            return self
        if self.name_node is None or self.data_node is None:
            self.name_node, self.data_node = self._prepare()
        started: list[ServerProcess] = []
        try:
            for server in (self.name_node, self.data_node):
                if not server.is_running():
                    self._start(server)
                    started.insert(0, server)
            self._await_writable()
        except BaseException:
            for server in started:
                server.stop()
            raise
        return self

    def stop(self) -> None:
        """End both in good order; data and the NameNode's ports are kept."""
        for server in (self.data_node, self.name_node):
            if server is not None:
                server.stop()

    def close(self) -> None:
        """Stop, and delete the data of a temporary directory."""
        super().close()
        self._ports = self.name_node = self.data_node = None

    def _known_ports(self) -> HdfsPorts:
        if self._ports is None:
            raise MissingRequirementError(
                "the embedded HDFS has no ports before its first start", {}, "Start it."
            )
        return self._ports

    def _prepare(self) -> tuple[ServerProcess, ServerProcess]:
        """Choose ports, write the configuration, format a new data directory."""
        rpc, web = free_ports(2)
        ports = HdfsPorts(rpc=self._port or rpc, web=self._web_port or web)
        _require_free(ports)  # before the format, which takes seconds
        java, jars, directory = find_java(), hdfs_class_path(), self._directory()
        data_dir = directory / "data"
        conf = _write_configuration(directory, self._site(ports, data_dir))
        class_path = ":".join(map(str, [conf, *jars]))
        temporary = f"-Djava.io.tmpdir={self._temporary()}"
        options = (*QUICK_START, _OPENED, temporary, *self._java_options())
        jvm = (str(java.executable), *options, "-cp", class_path)
        if not is_formatted(data_dir):
            self._format([*jvm, _NAME_NODE, "-format", "-nonInteractive", "-force"])
        self._ports = ports
        return (
            self._server("NameNode", (*jvm, _NAME_NODE), "NameNode RPC up at"),
            self._server("DataNode", (*jvm, _DATA_NODE), "Successfully sent block"),
        )

    def _site(self, ports: HdfsPorts, data_dir: Path) -> dict[str, str]:
        """Hadoop's settings of both servers."""
        return site_properties(ports=ports, data_dir=data_dir, overrides=self._settings)

    def _java_options(self) -> tuple[str, ...]:
        """Further options of both JVMs."""
        return ()

    def _web_tls(self) -> ssl.SSLContext | None:
        """How to reach the web pages over TLS; None: they have none."""
        return None

    def _server(self, role: str, command: tuple[str, ...], ready_text: str) -> ServerProcess:
        return ServerProcess(
            ServerSpec(
                name=f"{_NAME} {role}",
                command=command,
                log_path=self._log_path(role),
                ready_text=ready_text,
                scratch_dir=self._scratch,
                detached=self._detached,
            )
        )

    def _log_path(self, role: str) -> Path:
        return self._directory() / f"{role.lower()}.log"

    def _start(self, server: ServerProcess) -> None:
        if server is self.name_node:
            _require_free(self._known_ports())
        server.start()

    def _await_writable(self) -> None:
        """A restarted NameNode waits for its DataNode's report of all blocks."""
        start_timeout = StartTimeout([self.log_path, self._log_path("DataNode")])
        while not takes_files(HOST, self._known_ports().web, tls=self._web_tls()):
            if start_timeout.end() or not self.is_running():
                raise MissingRequirementError(
                    f"{_NAME} started, but accepts no files",
                    {"name_node_log": self.log_path, "is_running": self.is_running()},
                    "Read the logs; lost blocks keep the NameNode in safe mode.",
                )
            time.sleep(_POLL_S)  # no event reports the end of safe mode


def _require_free(ports: HdfsPorts) -> None:
    require_free(ports.rpc, server=f"{_NAME}'s NameNode")
    require_free(ports.web, server=f"{_NAME}'s web interface")


def _write_configuration(directory: Path, site: Mapping[str, str]) -> Path:
    conf = directory / "conf"
    conf.mkdir(exist_ok=True)
    # hdfs-default.xml overrides core-site.xml, so both files have the same settings.
    for name in ("core-site.xml", "hdfs-site.xml"):
        (conf / name).write_text(render(site), encoding="utf-8")
    (conf / "log4j2.properties").write_text(CONSOLE_LOGGING, encoding="ascii")
    return conf


def takes_files(host: str, web_port: int, *, tls: ssl.SSLContext | None = None) -> bool:
    """Whether safe mode is over and a DataNode has reported its disk.

    A restarted NameNode answers long before: it waits for the report of its blocks.
    """
    # Not urllib: a proxy in the environment does not apply to this machine.
    connection = (
        http.client.HTTPConnection(host, web_port, timeout=_ANSWER_S)
        if tls is None
        else http.client.HTTPSConnection(host, web_port, timeout=_ANSWER_S, context=tls)
    )
    try:
        connection.request("GET", _STATE)
        (state,) = json.loads(connection.getresponse().read())["beans"]
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return False
    finally:
        connection.close()
    operational = state["FSState"] == "Operational"
    return bool(operational and state["NumLiveDataNodes"] > 0 and state["CapacityTotal"] > 0)
