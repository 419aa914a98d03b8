"""Finds the WebHDFS address of an ``hdfs://`` URI in Hadoop's configuration, and reads small files
there.

Only the driver has a JVM with that configuration; tasks get the address, a small value.
"""

import functools
import http.client
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import urllib3

from sluice.runtime.errors import ConfigError, StorageUnreachableError
from sluice.runtime.storage.delegation_tokens import DelegationToken, TokenSource

__all__ = ["WebHdfsAddress", "read_over_web", "tls_context", "web_hdfs_address", "web_hdfs_target"]

_ADDRESSES = {
    "http": ("dfs.namenode.http-address", 9870),
    "https": ("dfs.namenode.https-address", 9871),
}
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
        scheme: ``http``, or ``https`` if the servers have nothing else.
        authorities: PEM text of the authorities to trust; None: the system's.
        tokens: of the user, if HDFS requires Kerberos.
    """

    name_nodes: tuple[str, ...]
    user: str
    scheme: str = "http"
    authorities: str | None = None
    tokens: TokenSource | None = None

    def identity(self, token: DelegationToken | None) -> Mapping[str, str]:
        """The parameters of a request that say who sends it."""
        return {"user.name": self.user} if token is None else {"delegation": token.text}

    def pool_options(self) -> Mapping[str, Any]:
        """Of urllib3, to trust the servers."""
        if self.scheme == "http":
            return {}
        return {"ssl_context": tls_context(self.authorities)}


@functools.lru_cache(maxsize=4)
def tls_context(authorities: str | None) -> ssl.SSLContext:
    """Trusts servers by these authorities, and checks their names."""
    return ssl.create_default_context(cadata=authorities)


def web_hdfs_address(uri: str, setting: Setting, *, user: str) -> WebHdfsAddress:
    """The NameNodes of the file system that ``uri`` names.

    Args:
        uri: ``hdfs://host:port/…``, ``hdfs://nameservice/…`` or ``hdfs:///…``.
        setting: of Hadoop's configuration in the driver's JVM.
        user: of that JVM, which renames the files that tasks write.
    Raises:
        ConfigError: the address is not configured.
    """
    scheme = "https" if _is(setting("dfs.http.policy"), "https_only") else "http"
    address_setting, default_port = _ADDRESSES[scheme]
    default = urlsplit(setting("fs.defaultFS") or "").netloc
    authority = urlsplit(uri).netloc or default
    host = urlsplit(f"//{authority}").hostname
    if not host:
        raise _unknown(uri, "fs.defaultFS")
    if authority in _listed(setting("dfs.nameservices")):
        found = _of_service(uri, authority, setting, address_setting)
        return WebHdfsAddress(name_nodes=found, user=user, scheme=scheme)
    # The configured address may belong to another cluster than the URI.
    configured = urlsplit(f"//{setting(address_setting) or ''}")
    is_its_own = configured.hostname == host or authority == default
    if configured.hostname in _ANY_HOST or configured.hostname is None:
        address = f"{_bracketed(host)}:{configured.port or default_port}"
    elif is_its_own:
        address = configured.netloc
    else:
        address = f"{_bracketed(host)}:{default_port}"
    return WebHdfsAddress(name_nodes=(address,), user=user, scheme=scheme)


def web_hdfs_target(
    path: str,
    operation: str,
    *,
    identity: Mapping[str, str],
    parameters: Mapping[str, str] | None = None,
) -> str:
    """The request target that follows ``http://host:port`` of a NameNode.

    Args:
        path: absolute, in the file system.
        operation: of WebHDFS, such as ``OPEN``.
        identity: as `WebHdfsAddress.identity`.
    """
    query = urlencode({"op": operation, **identity, **(parameters or {})})
    return f"/webhdfs/v1{quote(path, safe=_PATH_SAFE)}?{query}"


def read_over_web(address: WebHdfsAddress, path: str) -> bytes | None:
    """The bytes of a small file; None if there is none. Tries each NameNode once.

    Args:
        path: absolute, in the file system.
    Raises:
        StorageUnreachableError: no NameNode answered.
    """
    token = None if address.tokens is None else address.tokens.current()
    question = web_hdfs_target(path, "OPEN", identity=address.identity(token))
    once = urllib3.Retry(connect=0, read=0, status=0, other=0, redirect=_REDIRECTS)
    reasons = []
    with urllib3.PoolManager(
        retries=once, timeout=_READ_TIMEOUT_S, **address.pool_options()
    ) as pool:
        for name_node in address.name_nodes:
            try:
                answer = pool.request("GET", f"{address.scheme}://{name_node}{question}")
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


def _of_service(uri: str, service: str, setting: Setting, address: str) -> tuple[str, ...]:
    """Each NameNode of a nameservice; a service of one NameNode has no ids."""
    ids = _listed(setting(f"dfs.ha.namenodes.{service}"))
    names = [f"{address}.{service}.{one}" for one in ids] or [f"{address}.{service}"]
    found = [(name, setting(name)) for name in names]
    for name, value in found:
        if not value:
            raise _unknown(uri, name)
    return tuple(value for _, value in found if value)


def _is(value: str | None, expected: str) -> bool:
    return (value or "").strip().lower() == expected


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
