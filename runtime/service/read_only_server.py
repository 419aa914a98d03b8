"""The read-only port: metrics and pages of a job, or of drop-in queries, without a token.

Any program that reaches the port may read there, and none can change anything: each route answers
``GET`` alone, and no request has a body.
"""

import ipaddress
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import ClassVar

import anyio.to_thread
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sluice.runtime.service.endpoints import Answer, metrics_endpoint
from sluice.runtime.service.http_thread import HttpThread, LimitedConnections
from sluice.runtime.service.listening.listener import Listener

__all__ = ["ReadOnlyServer"]

log = logging.getLogger(__name__)

_THREADS = 4
_MOST_PATH_BYTES = 2048
_NO_PATH = "no such path; this port has /, /metrics and /v1/jobs"
_PORT = re.compile(r"(?<=[^:]):\d*$")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class _FewConnections(LimitedConnections):
    most = 64
    request_s = 30.0
    limits_answer = True


class ReadOnlyServer(HttpThread):
    """Serves ``/metrics`` and further routes. Driver; start and stop by one thread.

    Args:
        registry: the metrics.
        host: address to listen on. On loopback only requests to a loopback name are answered: a
            web page whose name resolves to this machine cannot read them (DNS rebinding).
        port: 0 for a free one.
        routes: further routes. They answer ``GET``, and need no check of the client.

    Raises:
        MissingRequirementError: it cannot listen there.
    """

    _name: ClassVar[str] = "the read-only service"
    _started: ClassVar[str] = "read-only service started: address=%s"
    _warning: ClassVar[str] = (
        "read-only service listens beyond this machine, without token and TLS: address=%s. Each "
        "client on that network can read metrics and status: allow only those that may "
        "(docs/guide/security.md)."
    )
    _protocol: ClassVar[type[HttpToolsProtocol]] = _FewConnections

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        host: str,
        port: int,
        routes: Sequence[BaseRoute] = (),
    ) -> None:
        app = Starlette(
            routes=[Route("/metrics", metrics_endpoint(registry), methods=["GET"]), *routes],
            exception_handlers={HTTPException: _refused, Exception: _failed},
            lifespan=_few_threads,
        )
        listener = Listener.open(
            host,
            range(port, port + 1),
            name=self._name,
            remedy="Choose another metrics_port or metrics_host; port 0 is a free one.",
        )
        super().__init__(_Guard(app), listener)


class _Guard:
    """Refuses requests that are no plain reads, before a route sees them; adds security headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = _refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send_guarded)
        else:
            status, reason = refusal
            # The connection may carry a body that is not read.
            headers = {"Connection": "close"} | ({"Allow": "GET, HEAD"} if status == 405 else {})
            answer = Answer({"error": reason}, status_code=status, headers=headers)
            await answer(scope, receive, send_guarded)


def _refusal(scope: Scope) -> tuple[int, str] | None:
    """Status and reason for a request that is not answered."""
    headers = {name.lower(): value for name, value in scope["headers"]}
    if scope["method"] not in {"GET", "HEAD"}:
        return 405, "this port only answers GET; commands need the job's own service"
    if headers.get(b"content-length", b"0").strip(b"0") or b"transfer-encoding" in headers:
        return 413, "a request to this port has no body"
    if len(scope["raw_path"]) + len(scope["query_string"]) > _MOST_PATH_BYTES:
        return 414, "the path is too long"
    server = scope["server"]
    if server is not None and _is_loopback(server[0]) and not _is_local(headers.get(b"host", b"")):
        return 421, "this port listens on loopback: use localhost or an address as host"
    return None


def _is_local(host: bytes) -> bool:
    """Whether the header names this machine, or an address: no name server is involved."""
    name = _PORT.sub("", host.decode("latin-1").lower()).strip("[]")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in {"", "localhost"} or name.endswith(".localhost")
    return True


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


async def _refused(request: Request, err: Exception) -> Response:
    assert isinstance(err, HTTPException)
    del request
    reason = _NO_PATH if err.detail == HTTPStatus.NOT_FOUND.phrase else err.detail
    return Answer({"error": reason}, status_code=err.status_code)


async def _failed(request: Request, err: Exception) -> Response:
    """The server logs the error; its text may contain names that only the log should have."""
    del request, err
    return Answer({"error": "the driver's log names the error"}, status_code=500)


@asynccontextmanager
async def _few_threads(app: Starlette) -> AsyncIterator[None]:
    """Many requests at once must not use the driver's cores."""
    del app
    anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
    yield
