"""A small file of HDFS, read over WebHDFS by a process without a JVM."""

import http.client

import urllib3

from sluice.runtime.errors import StorageUnreachableError
from sluice.runtime.storage.web_hdfs import WebHdfsAddress, web_hdfs_question

__all__ = ["read_over_web"]

_TIMEOUT_S = 2.0
_REDIRECTS = 2  # the NameNode names the DataNode that has the bytes


def read_over_web(
    address: WebHdfsAddress, path: str, *, timeout_s: float = _TIMEOUT_S
) -> bytes | None:
    """Its bytes; None: there is no such file. Each NameNode is asked once.

    Args:
        path: absolute, in the file system.
        timeout_s: of a connection, and of an answer.
    Raises:
        StorageUnreachableError: none has answered with either.
    """
    question = web_hdfs_question(path, "OPEN", user=address.user)
    once = urllib3.Retry(connect=0, read=0, status=0, other=0, redirect=_REDIRECTS)
    reasons = []
    with urllib3.PoolManager(retries=once, timeout=timeout_s) as pool:
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
