"""A NameNode and a DataNode in containers, which may be stopped, killed and started again.

They are configured by the environment variables of the official image, so ``HDFS_IMAGE`` alone
chooses between ``local/hdfs:3.5.0`` (from ``docker/build.sh``) and ``apache/hadoop:3.5.0``.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from sluice.runtime.embedded.hdfs.embedded_hdfs import takes_files
from sluice.runtime.embedded.hdfs.hdfs_site import render
from sluice.runtime.embedded.ports import HOST, free_ports
from tests.kit.waiting import wait_for

IMAGES = ("local/hdfs:3.5.0", "apache/hadoop:3.5.0")
_NAME_NODE = "namenode"
_DATA_NODE = "datanode"
_RPC_PORT = 9000
_WEB_PORT = 9870
_START_TIMEOUT_S = 600.0
_STOP_TIMEOUT_S = 20

_BOTH = {
    "HADOOP_HEAPSIZE_MAX": "256",
    "CORE-SITE.XML_fs.defaultFS": f"hdfs://{_NAME_NODE}:{_RPC_PORT}",
    "CORE-SITE.XML_hadoop.tmp.dir": "/tmp/hdfs",
    "HDFS-SITE.XML_dfs.replication": "1",
    "HDFS-SITE.XML_dfs.permissions.enabled": "false",
}
_NAME_NODE_ENVIRONMENT = {
    "ENSURE_NAMENODE_DIR": "/tmp/hdfs/dfs/name",
    "HDFS-SITE.XML_dfs.namenode.rpc-bind-host": "0.0.0.0",
    "HDFS-SITE.XML_dfs.namenode.safemode.extension": "0",
    # The DataNode says it is at 127.0.0.1, which its address in the network is not.
    "HDFS-SITE.XML_dfs.namenode.datanode.registration.ip-hostname-check": "false",
}


def _data_node_environment(data_port: int, web_port: int) -> dict[str, str]:
    return {
        "HDFS-SITE.XML_dfs.datanode.hostname": HOST,
        "HDFS-SITE.XML_dfs.datanode.address": f"0.0.0.0:{data_port}",
        "HDFS-SITE.XML_dfs.datanode.http.address": f"0.0.0.0:{web_port}",
    }


class HdfsCluster:
    """One NameNode, one DataNode in a network; as a context manager it starts and is removed.

    Its ports on the host are fixed, so that they outlive restarts.
    """

    def __init__(self, image: str, network: Network) -> None:
        self._ports = dict(zip((_RPC_PORT, _WEB_PORT), free_ports(2), strict=True))
        self._name_node = _container(image, _NAME_NODE, _NAME_NODE_ENVIRONMENT, network)
        for inside, outside in self._ports.items():
            self._name_node.with_bind_ports(inside, outside)
        ports = free_ports(2)
        self._data_node = _container(image, _DATA_NODE, _data_node_environment(*ports), network)
        for port in ports:
            self._data_node.with_bind_ports(port, port)

    def __enter__(self) -> Self:
        try:
            self._name_node.start()
            self._data_node.start()
            self.await_files()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._name_node.stop)
            stack.callback(self._data_node.stop)

    @property
    def uri(self) -> str:
        """``hdfs://host:port`` from outside."""
        return f"hdfs://{HOST}:{self._ports[_RPC_PORT]}"

    @property
    def web_uri(self) -> str:
        """``http://host:port`` of the NameNode's pages and of WebHDFS, from outside."""
        return f"http://{HOST}:{self._ports[_WEB_PORT]}"

    def write_client_configuration(self, directory: Path) -> None:
        """What a client on the host needs (``HADOOP_CONF_DIR``): to dial the published port."""
        settings = {"dfs.client.use.datanode.hostname": "true"}
        (directory / "hdfs-site.xml").write_text(render(settings), encoding="utf-8")

    def stop_name_node(self) -> None:
        """End the NameNode in good order; its disk is kept."""
        _docker(self._name_node).stop(timeout=_STOP_TIMEOUT_S)

    def start_name_node(self) -> None:
        """Start a stopped NameNode on its disk and wait until it takes files."""
        _docker(self._name_node).start()
        self.await_files()

    def kill_data_node(self) -> None:
        """``kill -9`` of the DataNode; its disk is kept."""
        _docker(self._data_node).kill("KILL")

    def start_data_node(self) -> None:
        """Start a killed DataNode on its disk."""
        _docker(self._data_node).start()

    def reaches(self, host: str, port: int) -> bool:
        """Whether the DataNode can open a connection to another server of its network."""
        connect = f"exec 3<>/dev/tcp/{host}/{port}"
        return bool(_docker(self._data_node).exec_run(["bash", "-c", connect]).exit_code == 0)

    def await_files(self) -> None:
        """Wait until files can be written and, after a restart, all blocks are known."""
        try:
            wait_for(
                lambda: takes_files(HOST, self._ports[_WEB_PORT]),
                timeout_s=_START_TIMEOUT_S,
                what="HDFS takes files",
            )
        except AssertionError as error:
            for container in (self._name_node, self._data_node):
                error.add_note(_docker(container).logs(tail=20).decode(errors="replace"))
            raise


def _container(
    image: str, role: str, environment: Mapping[str, str], network: Network
) -> DockerContainer:
    made = DockerContainer(image, mem_limit="700m").with_command(["hdfs", role])
    made.with_network(network).with_network_aliases(role)
    return made.with_envs(**_BOTH, **environment)


def _docker(container: DockerContainer) -> Any:
    return container.get_wrapped_container()
