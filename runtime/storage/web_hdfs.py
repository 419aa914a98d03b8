"""Finds the WebHDFS address of an ``hdfs://`` URI in Hadoop's configuration, and reads small files
there.

Only the driver has a JVM with that configuration; tasks get the address, a small value.
"""

import http.client
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode, urlsplit

import urllib3

from sluice.runtime.errors import ConfigError, StorageUnreachableError

__all__ = ["WebHdfsAddress", "read_over_web", "web_hdfs_address", "web_hdfs_target"]

_HTTP_ADDRESS = "dfs.namenode.http-address"
_DEFAULT_PORT = 9870
_ANY_HOST = ("0.0.0.0", "::", "")
_PATH_SAFE = "/=-_.~"
_READ_TIMEOUT_S = 2.0
_REDIRECTS = 2  # the NameNode names the DataNode that has the bytes

Setting = Callable[[str], str | None]
"""Returns the value of a Hadoop setting; None if it is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebHdfsAddress:
    """The HTTP addresses of a file system's NameNodes, and the user of the files. Picklable.

    Attributes:
        name_nodes: ``host:port`` of each; clients try them until one is active.
        user: owner of the files; the user of the driver's JVM, which renames and deletes them.
    """

    name_nodes: tuple[str, ...]
    user: str


def web_hdfs_address(uri: str, setting: Setting, *, user: str) -> WebHdfsAddress:
    """The NameNodes of the file system that ``uri`` names.

    Args:
        uri: ``hdfs://host:port/…``, ``hdfs://nameservice/…`` or ``hdfs:///…``.
        setting: of Hadoop's configuration in the driver's JVM.
        user: of that JVM, which renames the files that tasks write.
    Raises:
        ConfigError: Kerberos or HTTPS only, or the address is not configured.
    """
    _refuse_secured(uri, setting)
    default = urlsplit(setting("fs.defaultFS") or "").netloc
    authority = urlsplit(uri).netloc or default
    host = urlsplit(f"//{authority}").hostname
    if not host:
        raise _unknown(uri, "fs.defaultFS")
    if authority in _listed(setting("dfs.nameservices")):
        return WebHdfsAddress(name_nodes=_of_service(uri, authority, setting), user=user)
    # The configured address may belong to another cluster than the URI.
    configured = urlsplit(f"//{setting(_HTTP_ADDRESS) or ''}")
    is_its_own = configured.hostname == host or authority == default
    if configured.hostname in _ANY_HOST or configured.hostname is None:
        address = f"{_bracketed(host)}:{configured.port or _DEFAULT_PORT}"
    elif is_its_own:
        address = configured.netloc
    else:
        address = f"{_bracketed(host)}:{_DEFAULT_PORT}"
    return WebHdfsAddress(name_nodes=(address,), user=user)


def web_hdfs_target(
    path: str, operation: str, *, user: str, parameters: Mapping[str, str] | None = None
) -> str:
    """The request target that follows ``http://host:port`` of a NameNode.

    Args:
        path: absolute, in the file system.
        operation: of WebHDFS, such as ``OPEN``.
    """
    query = urlencode({"op": operation, "user.name": user, **(parameters or {})})
    return f"/webhdfs/v1{quote(path, safe=_PATH_SAFE)}?{query}"


def read_over_web(address: WebHdfsAddress, path: str) -> bytes | None:
    """The bytes of a small file; None if there is none. Tries each NameNode once.

    Args:
        path: absolute, in the file system.
    Raises:
        StorageUnreachableError: no NameNode answered.
    """
    question = web_hdfs_target(path, "OPEN", user=address.user)
    once = urllib3.Retry(connect=0, read=0, status=0, other=0, redirect=_REDIRECTS)
    reasons = []
    with urllib3.PoolManager(retries=once, timeout=_READ_TIMEOUT_S) as pool:
        for name_node in address.name_nodes:
            try:
                answer = pool.request("GET", f"http://{name_node}{question}")
            except urllib3.exceptions.HTTPError as error:
                reasons.append(type(error).__name__)
                continue
            if answer.status == http.client.OK:
                return answer.data
            if answer.status == http.client.NOT_FOUND:
                return None
            reasons.append(f"HTTP {answer.status}")  # standby, or it refuses
    raise StorageUnreachableError(
        "a file cannot be read over WebHDFS",
        {"path": path, "tried": ",".join(address.name_nodes), "reasons": ",".join(reasons)},
        "Check that this machine reaches the NameNodes and DataNodes over HTTP.",
    )


def _of_service(uri: str, service: str, setting: Setting) -> tuple[str, ...]:
    """Each NameNode of a nameservice; a service of one NameNode has no ids."""
    ids = _listed(setting(f"dfs.ha.namenodes.{service}"))
    names = [f"{_HTTP_ADDRESS}.{service}.{one}" for one in ids] or [f"{_HTTP_ADDRESS}.{service}"]
    addresses = [(name, setting(name)) for name in names]
    for name, address in addresses:
        if not address:
            raise _unknown(uri, name)
    return tuple(address for _, address in addresses if address)


def _refuse_secured(uri: str, setting: Setting) -> None:
    refused = {
        "hadoop.security.authentication": "kerberos",
        "dfs.http.policy": "https_only",
    }
    for name, value in refused.items():
        if (setting(name) or "").strip().lower() == value:
            raise ConfigError(
                "tasks without a JVM cannot write to this HDFS",
                {"uri": uri, "setting": name, "value": value},
                "Write through a Job, whose files Spark's JVM writes.",
            )


def _unknown(uri: str, setting: str) -> ConfigError:
    return ConfigError(
        "Hadoop's configuration does not say where WebHDFS answers",
        {"uri": uri, "setting": setting},
        f"Set spark.hadoop.{setting}, or HADOOP_CONF_DIR to a directory with hdfs-site.xml.",
    )


def _listed(value: str | None) -> list[str]:
    return [each.strip() for each in (value or "").split(",") if each.strip()]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
