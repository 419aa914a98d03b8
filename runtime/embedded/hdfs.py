"""A real HDFS (one NameNode, one DataNode) as plain JVM processes: for tests and first steps."""

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from xml.sax.saxutils import escape

from runtime.embedded.ivy import (
    Artifact,
    Bundle,
    Report,
    fetch,
    pinned_checksums,
    pyspark_jars,
    report_to_stderr,
)
from runtime.embedded.java import find_java
from runtime.embedded.ports import HOST, free_ports
from runtime.embedded.process import ServerProcess, ServerSpec
from runtime.errors import MissingRequirementError

__all__ = ["HDFS_VERSION", "EmbeddedHdfs", "hdfs_jars"]

HDFS_VERSION = "3.5.0"
_NAME = f"HDFS {HDFS_VERSION}"
_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_SHIPPED = ("hadoop-client-api", "hadoop-client-runtime", "jcl-over-slf4j", "slf4j-api")
_LOGGING_JARS = ("log4j-api", "log4j-core", "log4j-slf4j2-impl")
_JVM_OPTIONS: Sequence[str] = (
    *("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


def hdfs_jars(*, report: Report = report_to_stderr) -> Path:
    """Directory with the servers' jar, fetched at the first call of a user.

    It holds the real NameNode and DataNode; the rest of the class path is what PySpark ships.
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
    return fetch(bundle, report=report)


class EmbeddedHdfs:
    """A NameNode and a DataNode on 127.0.0.1; used by one thread.

    They die with the process that started them, however that one ends. `stop` and `start` keep
    ports and data, `close` deletes both. As a context manager it starts and closes.
    """

    def __init__(self, *, settings: Mapping[str, str] | None = None) -> None:
        self._settings = dict(settings or {})
        self._scratch: Path | None = None
        self._port: int | None = None
        self.name_node: ServerProcess | None = None
        self.data_node: ServerProcess | None = None

    @property
    def uri(self) -> str:
        """``hdfs://host:port``, to be followed by an absolute path."""
        return f"hdfs://{HOST}:{self._port}"

    def start(self) -> Self:
        """Start both and wait until files can be written; at once when they run.

        Raises:
            MissingRequirementError: no Java, no jars, or no start in time.
        """
        if self.name_node is None or self.data_node is None:
            self.name_node, self.data_node = self._prepare()
        for server in (self.name_node, self.data_node):
            if not server.is_running():
                server.start()
        return self

    def stop(self) -> None:
        """End both in good order; data and ports are kept."""
        for server in (self.data_node, self.name_node):
            if server is not None:
                server.stop()

    def close(self) -> None:
        """Stop, and delete the data."""
        self.stop()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch = self.name_node = self.data_node = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _prepare(self) -> tuple[ServerProcess, ServerProcess]:
        (self._port,) = free_ports(1)
        self._scratch = directory = Path(tempfile.mkdtemp(prefix="sluice-hdfs-"))
        _write_configuration(directory, self._site(directory))
        jvm = (str(find_java().executable), *_JVM_OPTIONS, "-cp", _class_path(directory))
        _format(jvm, directory)
        name_node = _server("NameNode", jvm, _NAME_NODE, "NameNode RPC up at", directory)
        data_node = _server("DataNode", jvm, _DATA_NODE, "Successfully sent block", directory)
        return name_node, data_node

    def _site(self, directory: Path) -> dict[str, str]:
        return {
            "fs.defaultFS": self.uri,
            "hadoop.tmp.dir": str(directory / "data"),
            "dfs.replication": "1",
            "dfs.permissions.enabled": "true",
            "dfs.namenode.http-address": f"{HOST}:0",
            "dfs.namenode.safemode.extension": "0",
            "dfs.datanode.hostname": HOST,
            "dfs.datanode.address": f"{HOST}:0",
            "dfs.datanode.http.address": f"{HOST}:0",
            "dfs.datanode.ipc.address": f"{HOST}:0",
            **self._settings,
        }


def _class_path(directory: Path) -> str:
    ours = [directory / "conf", *hdfs_jars().glob("*.jar")]
    shipped = [
        jar for stem in (*_SHIPPED, *_LOGGING_JARS) for jar in pyspark_jars().glob(f"{stem}-[0-9]*")
    ]
    return ":".join(map(str, [*ours, *shipped]))


def _write_configuration(directory: Path, site: Mapping[str, str]) -> None:
    conf = directory / "conf"
    conf.mkdir()
    properties = "".join(
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in site.items()
    )
    # hdfs-default.xml wins over core-site.xml, so the same settings stand in both files.
    for name in ("core-site.xml", "hdfs-site.xml"):
        text = f"<configuration>\n{properties}</configuration>\n"
        (conf / name).write_text(text, encoding="utf-8")
    (conf / "log4j2.properties").write_text(_LOGGING, encoding="ascii")


def _format(jvm: Sequence[str], directory: Path) -> None:
    answer = subprocess.run(
        [*jvm, _NAME_NODE, "-format", "-nonInteractive", "-force"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    if answer.returncode:
        raise MissingRequirementError(
            f"{_NAME} could not format its data directory",
            {"directory": directory, "answer": (answer.stdout + answer.stderr)[-2000:]},
            "The directory must be writable.",
        )


def _server(
    role: str, jvm: Sequence[str], main_class: str, ready_text: str, directory: Path
) -> ServerProcess:
    return ServerProcess(
        ServerSpec(
            name=f"{_NAME} {role}",
            command=(*jvm, main_class),
            log_path=directory / f"{role.lower()}.log",
            ready_text=ready_text,
            scratch_dir=directory,
        )
    )
