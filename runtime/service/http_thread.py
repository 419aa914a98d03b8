"""A thread of the driver's process that answers HTTP: uvicorn on a socket that accepts at once."""

import asyncio
import contextlib
import logging
import threading
import time
from typing import ClassVar, Self

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sluice.runtime.errors import MissingRequirementError, WaitedTooLongError
from sluice.runtime.service.listening.listener import Listener

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
        listener: where; `stop` closes it.
    """

    _name: ClassVar[str] = "the coordinator's service"
    _started: ClassVar[str] = "service started: address=%s"
    _warning: ClassVar[str] = (
        "service listens beyond this machine, without TLS: address=%s. Its token can be read on "
        "that network: set service_tls, or allow only the executors on it "
        "(docs/guide/security.md)."
    )
    _protocol: ClassVar[type[HttpToolsProtocol]] = BoundedHead

    def __init__(self, app: ASGIApp, listener: Listener) -> None:
        self._listener = listener
        config = uvicorn.Config(
            app,
            interface="asgi3",
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
        )
        config.load()
        config.ssl = listener.context
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="sluice-service", daemon=True)
        self._address = listener.address  # also after its end

    @property
    def address(self) -> str:
        """``http://host:port``, or ``https``."""
        return self._address

    @property
    def ca(self) -> str:
        """The authorities that clients trust; see `ServedTls`."""
        return self._listener.ca

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
        if self._listener.context is None and not self._listener.is_local:
            log.warning(self._warning, self.address)

    def stop(self) -> None:
        """Stop answering. A repeated call is safe."""
        with self._listener:
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
        self._server.run(sockets=[self._listener.socket])
