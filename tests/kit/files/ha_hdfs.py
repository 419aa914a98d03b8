"""A real HDFS with two NameNodes, of which a test makes one active, and a DataNode."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from sluice.runtime.embedded.embedded_server import CONSOLE_LOGGING
from sluice.runtime.embedded.hdfs.embedded_hdfs import QUICK_START, hdfs_class_path
from sluice.runtime.embedded.hdfs.hdfs_site import render
from sluice.runtime.embedded.java import find_java
from sluice.runtime.embedded.ports import HOST, free_ports
from sluice.runtime.embedded.process import ServerProcess, ServerSpec
from sluice.runtime.embedded.start_timeout import FORMAT_TIMEOUT_S

_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_ADMIN = "org.apache.hadoop.hdfs.tools.DFSHAAdmin"
_OPENED = "--add-opens=java.base/java.lang=ALL-UNNAMED"
_SERVICE = "ns"


class HaHdfs:
    """Started as a context manager; both NameNodes write one directory of edits, and nobody but a
    test decides which of them is active.

    Args:
        directory: empty, for data, configurations and logs.

    Attributes:
        uri: of the file system, by the name of the service.
        conf_dir: for `HADOOP_CONF_DIR` of clients.
        web_addresses: ``host:port`` of both NameNodes' web interfaces.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._jars = ":".join(map(str, hdfs_class_path()))
        self._java = str(find_java().executable)
        rpc_1, web_1, rpc_2, web_2 = free_ports(4)
        self.uri = f"hdfs://{_SERVICE}"
        self.web_addresses = (f"{HOST}:{web_1}", f"{HOST}:{web_2}")
        self._site = _site(directory, rpc=(rpc_1, rpc_2), web=(web_1, web_2))
        self.conf_dir = self._configure("client", {})
        self.name_nodes = {
            name: self._server(
                name,
                _NAME_NODE,
                "NameNode RPC up at",
                {"dfs.ha.namenode.id": name, "dfs.namenode.name.dir": f"{directory}/{name}"},
            )
            for name in ("nn1", "nn2")
        }
        self._data_node = self._server("dn", _DATA_NODE, "Successfully sent block", {})

    def __enter__(self) -> Self:
        (self._directory / "shared").mkdir()
        try:
            self._run("nn1", _NAME_NODE, "-format", "-nonInteractive", "-force")
            self.name_nodes["nn1"].start()
            self._run("nn2", _NAME_NODE, "-bootstrapStandby", "-nonInteractive", "-force")
            self.name_nodes["nn2"].start()
            self._data_node.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all three."""
        for server in (self._data_node, *self.name_nodes.values()):
            server.stop()

    def make_active(self, name: str) -> None:
        """As ``hdfs haadmin -transitionToActive``; the other one is standby, or gone."""
        self._run("client", _ADMIN, "-transitionToActive", "--forceactive", name)

    def make_standby(self, name: str) -> None:
        """As ``hdfs haadmin -transitionToStandby``."""
        self._run("client", _ADMIN, "-transitionToStandby", name)

    def _run(self, conf: str, program: str, *words: str) -> None:
        answer = subprocess.run(
            [*self._jvm(conf), program, *words],
            input="Y\n",
            capture_output=True,
            text=True,
            timeout=FORMAT_TIMEOUT_S,
            check=False,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr

    def _server(
        self, name: str, program: str, ready_text: str, settings: Mapping[str, str]
    ) -> ServerProcess:
        self._configure(name, settings)
        return ServerProcess(
            ServerSpec(
                name=name,
                command=(*self._jvm(name), program),
                log_path=self._directory / f"{name}.log",
                ready_text=ready_text,
            )
        )

    def _jvm(self, conf: str) -> tuple[str, ...]:
        temporary = f"-Djava.io.tmpdir={self._directory}"
        class_path = f"{self._directory / conf}-conf:{self._jars}"
        return (self._java, *QUICK_START, _OPENED, temporary, "-cp", class_path)

    def _configure(self, name: str, settings: Mapping[str, str]) -> Path:
        conf = self._directory / f"{name}-conf"
        conf.mkdir()
        for file in ("core-site.xml", "hdfs-site.xml"):
            (conf / file).write_text(render({**self._site, **settings}), encoding="utf-8")
        (conf / "log4j2.properties").write_text(CONSOLE_LOGGING, encoding="ascii")
        return conf


def _site(directory: Path, *, rpc: tuple[int, int], web: tuple[int, int]) -> dict[str, str]:
    found = {
        "fs.defaultFS": f"hdfs://{_SERVICE}",
        "dfs.nameservices": _SERVICE,
        f"dfs.ha.namenodes.{_SERVICE}": "nn1,nn2",
        f"dfs.client.failover.proxy.provider.{_SERVICE}": (
            "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        ),
        "dfs.namenode.shared.edits.dir": f"file://{directory}/shared",
        "dfs.ha.fencing.methods": "shell(/bin/true)",
        "dfs.ha.tail-edits.period": "1s",
        "dfs.namenode.safemode.extension": "0",
        "dfs.replication": "1",
        "dfs.datanode.hostname": HOST,
        "dfs.datanode.data.dir": f"{directory}/dn",
        **dict.fromkeys(
            ("dfs.datanode.address", "dfs.datanode.http.address", "dfs.datanode.ipc.address"),
            f"{HOST}:0",
        ),
    }
    for name, rpc_port, web_port in zip(("nn1", "nn2"), rpc, web, strict=True):
        found[f"dfs.namenode.rpc-address.{_SERVICE}.{name}"] = f"{HOST}:{rpc_port}"
        found[f"dfs.namenode.http-address.{_SERVICE}.{name}"] = f"{HOST}:{web_port}"
    return found
