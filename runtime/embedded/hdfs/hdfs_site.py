"""Configuration of the NameNode and the DataNode: pure functions, values in, text out."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from sluice.runtime.embedded.ports import HOST

__all__ = ["HdfsPorts", "is_formatted", "render", "site_properties"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsPorts:
    """Ports of the NameNode; clients know its address, and ask it for the DataNode's.

    Attributes:
        rpc: of ``hdfs://``.
        web: of its web pages, its metrics and WebHDFS.
    """

    rpc: int
    web: int


def site_properties(
    *, ports: HdfsPorts, data_dir: Path, overrides: Mapping[str, str]
) -> dict[str, str]:
    """Properties of both servers; each uses its own; ``overrides`` win."""
    return {
        "fs.defaultFS": f"hdfs://{HOST}:{ports.rpc}",
        "hadoop.tmp.dir": str(data_dir),
        "dfs.replication": "1",
        "dfs.permissions.enabled": "true",
        "dfs.webhdfs.enabled": "true",
        "dfs.namenode.http-address": f"{HOST}:{ports.web}",
        "dfs.namenode.safemode.extension": "0",
        "dfs.datanode.hostname": HOST,
        "dfs.datanode.address": f"{HOST}:0",
        "dfs.datanode.http.address": f"{HOST}:0",
        "dfs.datanode.ipc.address": f"{HOST}:0",
        # A DataNode closes a file of WebHDFS as a client does, and waits 0.4 s for the block.
        "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "20",
        **overrides,
    }


def render(properties: Mapping[str, str]) -> str:
    """As a Hadoop site file."""
    lines = "".join(
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in properties.items()
    )
    return f"<configuration>\n{lines}</configuration>\n"


def is_formatted(data_dir: Path) -> bool:
    """Whether a NameNode can start there; the format renames its first image as its last step."""
    images = (data_dir / "dfs" / "name" / "current").glob("fsimage_*")
    return any(image.suffix != ".md5" for image in images)
