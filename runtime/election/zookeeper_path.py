"""The place of a job's nodes in ZooKeeper: ``zookeeper://host1:2181,host2:2181/path``. Pure."""

import re
from dataclasses import dataclass
from typing import Self

__all__ = ["ZooKeeperPath"]

_URI = re.compile(r"zookeeper://(?P<hosts>[^/\s]+)(?P<path>(?:/[A-Za-z0-9._-]+)*)/?")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d+))?")
_PORT = 2181


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperPath:
    """Servers and a path below which the nodes are.

    Attributes:
        hosts: ``host:port`` of each server, separated by commas.
        path: absolute; without a slash at the end; empty: the root.
    """

    hosts: str
    path: str

    @classmethod
    def parse(cls, uri: str) -> Self | None:
        """From its URI; None: it is none."""
        match = _URI.fullmatch(uri)
        hosts = [] if match is None else [_host(each) for each in match["hosts"].split(",")]
        if match is None or not all(hosts):
            return None
        return cls(hosts=",".join(hosts), path=match["path"])

    def below(self, name: str) -> "ZooKeeperPath":
        """The same servers, one level deeper."""
        return ZooKeeperPath(hosts=self.hosts, path=f"{self.path}/{name}")


def _host(text: str) -> str:
    """With its port; empty: it is no address."""
    match = _HOST.fullmatch(text)
    if match is None or int(match["port"] or _PORT) >= 1 << 16:
        return ""
    return text if match["port"] else f"{text}:{_PORT}"
