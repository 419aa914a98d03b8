"""Writes and reads files of HDFS over WebHDFS, from a process without a JVM.

A file is created in two steps: the NameNode names a DataNode, which takes the bytes and is an
HDFS client itself. Measured on Hadoop 3.5.0 (tests/integration/test_webhdfs.py):

- After the connection ends for any reason, the DataNode closes the file: a writer that dies leaves
  a shorter file that looks whole, and no lease. So the writer reports the length, the publisher
  compares it, and one attempt alone uses a name.
- A DataNode that dies leaves a file of length 0 with a lease; its owner may delete it all the same.
- A second CREATE of the name, with ``overwrite=false``, is refused and changes nothing.
"""

import contextlib
import http.client
import io
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

import urllib3

from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    StorageError,
    StreamError,
    UnreachableError,
)
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.storage.delegation_tokens import DelegationToken, expired_token, without_tokens
from sluice.runtime.storage.file_system import NAME_TOO_LONG
from sluice.runtime.storage.task_files import TaskFile
from sluice.runtime.storage.web_hdfs import WebHdfsAddress, tls_context, web_hdfs_target

__all__ = ["WebHdfsTaskFiles"]

_CONNECT_TIMEOUT_S = 5.0
_CALL_TIMEOUT_S = 10.0
_STREAM_TIMEOUT_S = 120.0  # a DataNode that rebuilds its pipeline does not answer for a while
_DEADLINE_S = 60.0
_CHECK_S = 15.0  # a start reports an unreachable server well within 30 s
_SETTLE_S = 10.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_CHUNK_BYTES = 1 << 20
_MOST_EXCLUDED = 3
_REDIRECTS = 2  # the NameNode names the DataNode that has the bytes
_END_OF_CHUNKS = b"0\r\n\r\n"
_DENIED = ("AccessControlException", "AuthorizationException", "SecurityException")
# A DataNode does not pass on the name of the NameNode's exception.
_TOO_LONG = "maximum path component name limit"
_NOT_NOW = ("StandbyException", "RetriableException", "SafeModeException")
_NOT_NOW_TEXTS = ("Name node is in safe mode", "is not supported in state standby")
_EXPIRED = "InvalidToken"
_EXPIRED_AT_NAME_NODE = "SecretManager$InvalidToken"  # inside of a SecurityException
_UNKNOWN_USER = "Security enabled but user not authenticated"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebHdfsTaskFiles:
    """`TaskFiles` over WebHDFS, by user name or delegation token.

    Attributes:
        address: of the NameNodes.
        deadline_s: time for which NameNodes may be away or standby before a call fails.
    """

    address: WebHdfsAddress
    deadline_s: float = _DEADLINE_S

    def require(self, directory: str) -> None:
        """See `TaskFiles.require`: all hosts see one tree."""

    def create(self, path: str) -> "_HdfsFile":
        """See `TaskFiles.create`; a DataNode that does not listen is excluded."""
        name_node = _NameNode(self.address, deadline_s=self.deadline_s)
        tried: list[str] = []
        excluded: list[str] = []
        while True:
            location = name_node.data_node_for(path, excluded)
            try:
                return _HdfsFile(name_node, path, _connected(location, self.address))
            except OSError as error:  # no byte of the file was sent
                tried.append(urlsplit(location).netloc)
                excluded += _address_of(location)
                if len(tried) > _MOST_EXCLUDED:
                    raise _unreachable(path, error, tried) from error

    def length_bytes(self, path: str) -> int | None:
        """See `TaskFiles.length_bytes`."""
        return _NameNode(self.address, deadline_s=self.deadline_s).length_bytes(path)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """See `TaskFiles.read`; after a DataNode that fails, the NameNode names one again."""
        if not length:
            return b""  # to WebHDFS, a length of 0 is wrong
        return _NameNode(self.address, deadline_s=self.deadline_s).read(path, offset, length)

    def check(self) -> None:
        """See `TaskFiles.check`: sends one request to a NameNode."""
        deadline_s = min(self.deadline_s, _CHECK_S)
        _NameNode(self.address, deadline_s=deadline_s).length_bytes("/")


class _HdfsFile(TaskFile):
    """`TaskFile`: one PUT to a DataNode, in chunks."""

    def __init__(
        self, name_node: "_NameNode", path: str, connection: http.client.HTTPConnection
    ) -> None:
        self._name_node = name_node
        self._path = path
        self._chunks = _Chunks(connection, path)

    @property
    def stream(self) -> BinaryIO:
        return cast(BinaryIO, self._chunks)

    def finish(self) -> int:
        """See `TaskFile.finish`: after a lost answer, the file's length decides."""
        try:
            self._chunks.finish()
        except _AnswerLostError as error:
            self._settle(error)
        return self._chunks.tell()

    def abandon(self) -> None:
        self._chunks.abandon()

    def _settle(self, error: Exception) -> None:
        """All bytes were sent. The file is whole once its length is theirs; it only grows."""
        expected, found = self._chunks.tell(), None
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            found = self._name_node.length_bytes(self._path)
            if found == expected:
                return
            time.sleep(_FIRST_PAUSE_S)  # the DataNode closes the file without an event for us
        raise StorageError(
            "a task's file is incomplete",
            {"path": self._path, "length_bytes": found, "expected": expected, "error": error},
            "Read the DataNodes' logs if it happens again; the batch is written again.",
        ) from error


class _AnswerLostError(Exception):
    """Every byte was sent, and no answer came."""


class _Chunks(io.RawIOBase):
    """Sends bytes as chunks of an HTTP request, buffered to a useful size."""

    def __init__(self, connection: http.client.HTTPConnection, path: str) -> None:
        super().__init__()
        self._connection = connection
        self._path = path
        self._buffered = bytearray()
        self._taken_bytes = 0

    def writable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Bytes taken so far."""
        return self._taken_bytes

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - any buffer
        """Take bytes; send them when a chunk is full."""
        view = memoryview(data).cast("B")
        self._taken_bytes += len(view)
        if len(self._buffered) + len(view) < _CHUNK_BYTES:
            self._buffered += view
            return len(view)
        self._send_buffered()
        if len(view) < _CHUNK_BYTES:
            self._buffered += view
        else:
            self._send(view)
        return len(view)

    def finish(self) -> None:
        """Send the rest and wait for the DataNode to close the file."""
        self._send_buffered()
        try:
            self._connection.send(_END_OF_CHUNKS)
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise _AnswerLostError(repr(error)) from error
        finally:
            self._connection.close()
        if answer.status != http.client.CREATED:
            raise _refused("close", self._path, answer.status, body)

    def abandon(self) -> None:
        """Drop the connection; the DataNode closes the file with the bytes it has."""
        self._buffered.clear()
        self._connection.close()

    def _send_buffered(self) -> None:
        if self._buffered:
            self._send(memoryview(bytes(self._buffered)))
            self._buffered.clear()

    def _send(self, data: memoryview) -> None:
        try:
            self._connection.send(b"%x\r\n" % len(data))
            self._connection.send(data)
            self._connection.send(b"\r\n")
        except OSError as error:
            raise self._explained(error) from error

    def _explained(self, error: OSError) -> StreamError:
        """The DataNode's own error, if its last answer is still readable."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer = self._connection.getresponse()
            body = answer.read()
            return _refused("write", self._path, answer.status, body)
        return StorageError(
            "a DataNode stopped taking a task's file",
            {"path": self._path, "error": error},
            "Check that the DataNodes run and have space; the batch is written again.",
        )


class _NameNode:
    """The active NameNode's HTTP interface; calls are retried until it answers or the deadline
    passes."""

    def __init__(self, address: WebHdfsAddress, *, deadline_s: float) -> None:
        self._address = address
        self._deadline_s = deadline_s
        self._active = 0
        self._pool = urllib3.PoolManager(
            num_pools=1,
            retries=False,
            timeout=urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=_CALL_TIMEOUT_S),
            **address.pool_options(),
        )

    def data_node_for(self, path: str, excluded: list[str]) -> str:
        """The address that takes the bytes of a new file."""
        parameters = {"overwrite": "false"}
        if excluded:
            parameters["excludedatanodes"] = ",".join(excluded)
        answer = self._call("PUT", path, "CREATE", parameters)
        location = answer.headers.get("Location")
        if answer.status != http.client.TEMPORARY_REDIRECT or not location:
            raise _refused("create", path, answer.status, answer.data)
        return location

    def length_bytes(self, path: str) -> int | None:
        """The length of a file; None if there is no file."""
        answer = self._call("GET", path, "GETFILESTATUS", {})
        if answer.status == http.client.NOT_FOUND:
            return None
        if answer.status != http.client.OK:
            raise _refused("look up", path, answer.status, answer.data)
        try:
            found: Any = parsed_json(answer.data)
            return int(found["FileStatus"]["length"])
        except (ValueError, LookupError, TypeError):
            raise _refused("look up", path, answer.status, answer.data) from None

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Bytes of a file, from a DataNode."""
        parameters = {"offset": str(offset), "length": str(length)}
        answer = self._call("GET", path, "OPEN", parameters, follows=_REDIRECTS)
        if answer.status != http.client.OK:
            raise _refused("read", path, answer.status, answer.data)
        return answer.data

    def _call(
        self,
        method: str,
        path: str,
        operation: str,
        parameters: Mapping[str, str],
        *,
        follows: int = 0,
    ) -> urllib3.BaseHTTPResponse:
        tokens = self._address.tokens
        token = None if tokens is None else tokens.current()
        retries = urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=follows)
        deadline, pause = time.monotonic() + self._deadline_s, _FIRST_PAUSE_S
        while True:
            problem: object
            url = self._url(path, operation, parameters, token)
            try:
                answer = self._pool.request(method, url, redirect=follows > 0, retries=retries)
                problem = _exception_name(answer.data) if answer.status >= 400 else None
                if tokens is not None and token is not None and _is_expired(answer.data):
                    token = tokens.after(token)
                    continue
                if problem not in _NOT_NOW:
                    return answer
            except urllib3.exceptions.HTTPError as error:
                problem = without_tokens(error)
            self._active = (self._active + 1) % len(self._address.name_nodes)
            if time.monotonic() + pause > deadline:
                raise _unreachable(path, problem, self._address.name_nodes)
            time.sleep(pause)  # no event reports that a NameNode became active
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _url(
        self,
        path: str,
        operation: str,
        parameters: Mapping[str, str],
        token: DelegationToken | None,
    ) -> str:
        address = self._address
        identity = address.identity(token)
        target = web_hdfs_target(path, operation, identity=identity, parameters=parameters)
        return f"{address.scheme}://{address.name_nodes[self._active]}{target}"


def _address_of(location: str) -> list[str]:
    """The IPv4 address by which a NameNode excludes a DataNode; empty if the host has none. A
    NameNode takes no host name, no IPv6 address, and no HTTP port: it compares the port of block
    transfers."""
    try:
        return [socket.gethostbyname(urlsplit(location).hostname or "")]
    except OSError:
        return []


def _connected(location: str, address: WebHdfsAddress) -> http.client.HTTPConnection:
    """A connection to a DataNode with the request's head sent."""
    url = urlsplit(location)
    host, timeout_s = url.hostname or "", _CONNECT_TIMEOUT_S
    connection = http.client.HTTPConnection(host, url.port, timeout=timeout_s)
    if url.scheme == "https":
        tls = tls_context(address.authorities)
        connection = http.client.HTTPSConnection(host, url.port, timeout=timeout_s, context=tls)
    connection.connect()
    connection.sock.settimeout(_STREAM_TIMEOUT_S)
    connection.putrequest("PUT", f"{url.path}?{url.query}", skip_accept_encoding=True)
    connection.putheader("Content-Type", "application/octet-stream")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    return connection


def _refused(action: str, path: str, status: int, body: bytes) -> StreamError:
    name, where = _exception_name(body), {"path": path, "status": status, "error": _message(body)}
    if _is_expired(body):
        return expired_token(_message(body))
    if status == http.client.UNAUTHORIZED or _UNKNOWN_USER in _message(body):
        return AuthenticationError(
            "this HDFS requires Kerberos, and the driver's configuration does not",
            where,
            "Set HADOOP_CONF_DIR to the cluster's configuration, with "
            "hadoop.security.authentication=kerberos, and spark.kerberos.keytab, or run kinit.",
        )
    if name in _DENIED:
        return AuthenticationError(
            f"may not {action} a task's file",
            where,
            "Give this user the right to write beside the target.",
        )
    if _TOO_LONG in _message(body):
        return ConfigError(f"cannot {action} a task's file", where, NAME_TOO_LONG)
    if name in _NOT_NOW or any(text in _message(body) for text in _NOT_NOW_TEXTS):
        return _unreachable(path, _message(body), f"{action}, HTTP {status}")
    return StorageError(
        f"could not {action} a task's file",
        where,
        "Check that HDFS is healthy and has space; the batch is written again.",
    )


def _unreachable(path: str, problem: object, tried: object) -> UnreachableError:
    return UnreachableError(
        "HDFS did not answer over WebHDFS in time",
        {"path": path, "tried": tried, "error": problem},
        "Check dfs.namenode.http-address, that the NameNode is out of safe mode, and that this "
        "machine reaches the DataNodes' HTTP ports.",
    )


def _is_expired(body: bytes) -> bool:
    """Whether a NameNode or a DataNode refused a delegation token."""
    return _exception_name(body) == _EXPIRED or _EXPIRED_AT_NAME_NODE in _message(body)


def _exception_name(body: bytes) -> str:
    return str(_remote_exception(body).get("exception", ""))


def _message(body: bytes) -> str:
    text = str(_remote_exception(body).get("message", "")) or body[:200].decode(errors="replace")
    return (text.splitlines() or [""])[0]


def _remote_exception(body: bytes) -> Mapping[str, object]:
    try:
        found: Any = parsed_json(body)
        error = found["RemoteException"]
    except (ValueError, LookupError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}
