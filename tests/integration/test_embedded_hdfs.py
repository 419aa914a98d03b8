"""The embedded HDFS keeps its promises: whole or not at all, with its ports and files."""

from pathlib import Path

import pytest

from sluice.runtime.embedded.hdfs.embedded_hdfs import EmbeddedHdfs
from sluice.runtime.embedded.ports import free_ports, is_free
from sluice.runtime.errors import MissingRequirementError
from tests.kit.files.webhdfs import read_file, write_file

pytestmark = [pytest.mark.integration, pytest.mark.extended]


def test_killed_hdfs_comes_back_with_its_ports_and_files(tmp_path: Path) -> None:
    """`start` returns when files can be read and written again; `close` keeps a given directory."""
    with EmbeddedHdfs(data_dir=tmp_path / "hdfs") as servers:
        addresses = servers.uri, servers.web_uri
        write_file(servers.web_uri, "/first", b"kept")
        assert servers.name_node is not None
        assert servers.data_node is not None
        servers.name_node.kill()
        servers.data_node.kill()
        assert not servers.is_running()
        servers.start()
        assert (servers.uri, servers.web_uri) == addresses
        assert read_file(servers.web_uri, "/first") == b"kept"
        write_file(servers.web_uri, "/second", b"written")
    assert (tmp_path / "hdfs" / "data").exists()


def test_half_a_start_leaves_nothing() -> None:
    """A DataNode that cannot start reports why, and its NameNode is stopped."""
    port, web_port = free_ports(2)
    servers = EmbeddedHdfs(
        port=port, web_port=web_port, settings={"dfs.datanode.data.dir": "/dev/null/none"}
    )
    with pytest.raises(MissingRequirementError, match="DataNode did not start"):
        servers.start()
    assert not servers.is_running()
    assert is_free(port)
    servers.close()
