"""WebHDFS as a small HTTP server on loopback: NameNode and DataNode in one, with faults."""

import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.kit.waiting import join


class FakeWebHdfs:
    """Started as a context manager; the faults may be changed while it runs.

    Args:
        tls: of the server; None: it has none.

    Attributes:
        files: content by path.
        is_standby: answers as the NameNode that is not active.
        asks_for_kerberos: answers 401 to whom brings no ticket.
        token: the only delegation token that it takes; None: it needs none.
        in_safe_mode: the DataNode passes on that the NameNode takes no file at the moment.
        expires_meanwhile: the DataNode refuses the token that the NameNode took.
        loses_answers: takes a file and closes the connection without a word.
        drops_bytes: so many bytes at the end of a file do not arrive.
        longest_name: of a file, in letters; a longer one is refused once the bytes have come.
        dead_data_nodes: ``address:port``, named first, unless excluded; nothing listens there.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.scheme = "http" if tls is None else "https"
        self.token: str | None = None
        self.in_safe_mode = False
        self.expires_meanwhile = False
        self.files: dict[str, bytes] = {}
        self.users: set[str] = set()
        self.is_standby = False
        self.asks_for_kerberos = False
        self.loses_answers = False
        self.drops_bytes = 0
        self.longest_name = 255
        self.dead_data_nodes: list[str] = []
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": self})
        )
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )

    @property
    def address(self) -> str:
        """``host:port`` of both."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        join(self._thread)

    def data_node_for(self, excluded: list[str]) -> str:
        """The first one that is not excluded: by its address alone, as the port of what a
        NameNode calls ``address:port`` is the one of another service of the DataNode."""
        alive = (one for one in self.dead_data_nodes if one.partition(":")[0] not in excluded)
        return next(alive, self.address)


class _Handler(BaseHTTPRequestHandler):
    fake: FakeWebHdfs
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path.removeprefix("/webhdfs/v1"))
        if self.headers.get("Transfer-Encoding") == "chunked":
            self._take(path)
        elif not self._refuses(parse_qs(url.query)):
            query = parse_qs(url.query)
            excluded = query.get("excludedatanodes", [""])[0].split(",")
            location = f"{self.fake.scheme}://{self.fake.data_node_for(excluded)}{self.path}"
            self._answer(http.client.TEMPORARY_REDIRECT, None, Location=location)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path, query = unquote(url.path.removeprefix("/webhdfs/v1")), parse_qs(url.query)
        if self._refuses(query):
            return
        if path not in self.fake.files and path != "/":
            self._refuse(http.client.NOT_FOUND, "FileNotFoundException")
        elif query["op"] == ["GETFILESTATUS"]:
            status = {"FileStatus": {"length": len(self.fake.files.get(path, b""))}}
            self._answer(http.client.OK, status)
        elif "of-data-node" in query:
            start = int(query.get("offset", ["0"])[0])
            length = int(query.get("length", [str(1 << 40)])[0])
            self._answer_bytes(http.client.OK, self.fake.files[path][start : start + length])
        else:
            location = (
                f"{self.fake.scheme}://{self.fake.data_node_for([])}{self.path}&of-data-node=yes"
            )
            self._answer(http.client.TEMPORARY_REDIRECT, None, Location=location)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Nothing."""

    def _take(self, path: str) -> None:
        self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.close_connection = True
        content, is_whole = self._chunks()
        if self.fake.expires_meanwhile:
            self._refuse(http.client.FORBIDDEN, "InvalidToken", "Token has expired")
            return
        if self.fake.in_safe_mode:
            said = f"Cannot create file{path}. Name node is in safe mode."
            self._refuse(http.client.FORBIDDEN, "RemoteException", said)
            return
        if path in self.fake.files:
            self._refuse(http.client.FORBIDDEN, "FileAlreadyExistsException")
            return
        if max(map(len, path.split("/"))) > self.fake.longest_name:
            said = f"The maximum path component name limit of {path} is exceeded: limit=255"
            self._refuse(http.client.FORBIDDEN, "RemoteException", said)
            return
        self.fake.files[path] = content[: len(content) - self.fake.drops_bytes]
        if is_whole and not self.fake.loses_answers:
            self._answer(http.client.CREATED, None)

    def _chunks(self) -> tuple[bytes, bool]:
        content = bytearray()
        with suppress(ConnectionError):  # a client that gives up may reset it
            while line := self.rfile.readline():
                size = int(line, 16)
                content += self.rfile.read(size)
                self.rfile.readline()
                if size == 0:
                    return bytes(content), True
        return bytes(content), False

    def _refuses(self, query: Mapping[str, list[str]]) -> bool:
        """As Hadoop 3.5.0 words it."""
        fake, given = self.fake, query.get("delegation")
        fake.users |= set(query.get("user.name", ()))
        if fake.asks_for_kerberos:
            self._answer(http.client.UNAUTHORIZED, None)
        elif fake.is_standby:
            self._refuse(http.client.FORBIDDEN, "StandbyException")
        elif fake.token is not None and given is None:
            said = "Security enabled but user not authenticated by filter"
            self._refuse(http.client.FORBIDDEN, "SecurityException", said)
        elif fake.token is not None and given != [fake.token]:
            said = "org.apache.hadoop.security.token.SecretManager$InvalidToken: Token has expired"
            self._refuse(http.client.FORBIDDEN, "SecurityException", said)
        else:
            return False
        return True

    def _refuse(self, status: int, exception: str, said: str = "no") -> None:
        self._answer(status, {"RemoteException": {"exception": exception, "message": said}})

    def _answer(self, status: int, body: Any, **headers: str) -> None:
        self._answer_bytes(status, b"" if body is None else json.dumps(body).encode(), **headers)

    def _answer_bytes(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
