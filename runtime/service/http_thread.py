"""A thread of the driver's process that answers HTTP: uvicorn on a socket that accepts at once."""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import threading
import time
from pathlib import Path
from typing import ClassVar, Self

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sluice.runtime.errors import MissingRequirementError, WaitedTooLongError

__all__ = ["BoundedHead", "HttpThread", "LimitedConnections"]

log = logging.getLogger(__name__)

_START_S = 60.0
_STOP_S = 5.0
_POLL_S = 0.005
_MOST_HEAD_BYTES = 64 << 10


class BoundedHead(HttpToolsProtocol):
    """Closes the connection of a client that sends an endless head: the parser would keep all of
    it, even before the token is checked."""

    _head_bytes = 0  # after a request's end, or after a part of its body

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of this request is too long.")

    def on_body(self, body: bytes) -> None:
        """See `httptools.HttpRequestParser`."""
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """See `httptools.HttpRequestParser`."""
        self._head_bytes = 0
        super().on_message_complete()


class LimitedConnections(BoundedHead):
    """A bounded number of connections, and a bounded time for each request: clients without a
    token must not use up the file descriptors of the process.

    Attributes:
        most: connections.
        request_s: until a request has arrived, or (`limits_answer`) is answered. uvicorn limits the
            idle time after it.
    """

    most: ClassVar[int]
    request_s: ClassVar[float]
    limits_answer: ClassVar[bool]
    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._limit_time()

    def on_message_begin(self) -> None:
        """See `httptools.HttpRequestParser`."""
        self._limit_time()
        super().on_message_begin()

    def on_message_complete(self) -> None:
        """See `httptools.HttpRequestParser`."""
        if not self.limits_answer:
            self._end_limit()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """See `HttpToolsProtocol`."""
        self._end_limit()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._end_limit()
        super().connection_lost(exc)

    def _limit_time(self) -> None:
        self._end_limit()
        self._limit = self.loop.call_later(self.request_s, self.transport.abort)

    def _end_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()


class HttpThread:
    """Serves one application. Start and stop by one thread.

    Args:
        app: the application that answers.
        host: address to listen on.
        port: 0 for a free one.
        tls: files with the certificate chain and the key, in PEM; None: plain HTTP.

    Raises:
        MissingRequirementError: it cannot listen there.
    """

    _name: ClassVar[str] = "the coordinator's service"
    _started: ClassVar[str] = "service started: address=%s"
    _warning: ClassVar[str] = (
        "service listens beyond this machine, without TLS: address=%s. Its token can be read on "
        "that network: allow only the executors on it (docs/guide/security.md)."
    )
    _remedy: ClassVar[str] = "Choose a host of this machine and a free port, or port 0."
    _protocol: ClassVar[type[HttpToolsProtocol]] = BoundedHead

    def __init__(
        self, app: ASGIApp, *, host: str, port: int, tls: tuple[Path, Path] | None = None
    ) -> None:
        self._host = host
        self._tls = tls
        certificate, key = tls or (None, None)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=self._protocol,
                ws="none",
                proxy_headers=False,
                server_header=False,
                date_header=False,
                log_config=None,
                log_level="warning",
                access_log=False,
                timeout_keep_alive=60,
                timeout_graceful_shutdown=1,
                ssl_certfile=certificate,
                ssl_keyfile=key,
            )
        )
        self._thread = threading.Thread(target=self._serve, name="sluice-service", daemon=True)
        self._socket = self._listen(port)  # after this line nothing can fail and leave it open
        self._port: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """``http://host:port``, or ``https``."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self._port}"

    def start(self) -> None:
        """Returns as soon as the server answers requests.

        Raises:
            MissingRequirementError, WaitedTooLongError: it did not start; it is stopped.
        """
        if self._thread.is_alive():
            return
        with contextlib.ExitStack() as stack:
            stack.callback(self.stop)
            self._thread.start()
            self._await_start()
            stack.pop_all()
        log.info(self._started, self.address)
        is_local = ipaddress.ip_address(self._socket.getsockname()[0]).is_loopback
        if self._tls is None and not is_local:
            log.warning(self._warning, self.address)

    def stop(self) -> None:
        """Stop answering. A repeated call is safe."""
        with contextlib.closing(self._socket):
            self._server.should_exit = True
            if self._thread.is_alive():
                self._thread.join(_STOP_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _await_start(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while not self._server.started:
            if not self._thread.is_alive():
                raise MissingRequirementError(
                    f"{self._name} did not start",
                    {"address": self.address},
                    "Read the messages of uvicorn in the log.",
                )
            if time.monotonic() > deadline_s:
                raise WaitedTooLongError(
                    f"{self._name} does not answer yet",
                    {"address": self.address, "waited_s": _START_S},
                    "Start again when the machine is less busy.",
                )
            time.sleep(_POLL_S)  # uvicorn sets a flag when it listens, not an event

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    def _listen(self, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # Named as TCP; otherwise asyncio keeps Nagle's algorithm on: 40 ms for each answer.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self._host, port))
            listening.listen(512)
        except OSError as err:
            listening.close()
            raise MissingRequirementError(
                f"{self._name} cannot listen on this address",
                {"host": self._host, "port": port, "reason": err.strerror or str(err)},
                self._remedy,
            ) from err
        return listening
