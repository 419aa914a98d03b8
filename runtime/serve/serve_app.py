"""The service over HTTP: access, limits, and errors as answers; on Starlette."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    FencedError,
    StreamError,
    UnreachableError,
    WrongServiceError,
)
from sluice.runtime.job_registry.registration import JOB_UID
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.json_values import FieldError, from_json
from sluice.runtime.serve.openapi import Call, docs_page, openapi_document
from sluice.runtime.serve.served_jobs import NoSuchThingError
from sluice.runtime.service.endpoints import Answer, Endpoint
from sluice.runtime.service.error_json import error_to_json
from sluice.runtime.service.page.page_routes import PAGE_HEADERS, page_routes

__all__ = ["MOST_BODY_BYTES", "serve_app"]

MOST_BODY_BYTES = 1 << 20
_BODY_S = 30.0
_THREADS = 128
_MOST_NUMBER = 10_000
_PUBLIC = frozenset({"/", "/docs", "/healthz", "/openapi.json"})
_PUBLIC_FILES = "/page/"
_STATUS: tuple[tuple[type[StreamError], int], ...] = (
    (NoSuchThingError, 404),
    (AuthenticationError, 403),
    (FencedError, 409),
    (UnreachableError, 503),
)


def serve_app(calls: Sequence[Call], token: str) -> ASGIApp:
    """The whole application."""
    document = openapi_document(calls)
    page = docs_page(document)

    async def health(request: Request) -> Response:
        del request
        return Answer({"status": "ok"})

    async def openapi(request: Request) -> Response:
        del request
        return Answer(document)

    async def docs(request: Request) -> Response:
        del request
        return Response(page, media_type="text/html; charset=utf-8")

    return _Guard(
        Starlette(
            routes=[
                *page_routes(),
                Route("/healthz", health, methods=["GET"]),
                Route("/openapi.json", openapi, methods=["GET"]),
                Route("/docs", docs, methods=["GET"]),
                *(Route(call.path, _endpoint(call), methods=[call.method]) for call in calls),
            ],
            exception_handlers=_ERROR_ANSWERS,
            lifespan=_threads,
        ),
        token,
    )


class _Guard:
    """Refuses a request without the token, or with a large body, before it reads the body."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in PAGE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        app = self._app if refusal is None else refusal
        await app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        path = scope["path"]
        is_public = path in _PUBLIC or path.startswith(_PUBLIC_FILES)
        given = headers.get(b"authorization", b"")
        if not is_public and not hmac.compare_digest(given, self._expected):
            # As of a coordinator: a job may have had this address.
            kind = WrongServiceError if given else AuthenticationError
            error: StreamError = kind(
                f"the service refused a request {'with a wrong' if given else 'without its'} token",
                {"path": path},
                "Use the token of the service's token file.",
            )
            return _refused(error, 401, {"WWW-Authenticate": "Bearer"})
        length = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers or not length.isdigit() or len(length) > 7:
            return _refused(_too_large(path), 413)
        return _refused(_too_large(path), 413) if int(length) > MOST_BODY_BYTES else None


def _too_large(path: str) -> ConfigError:
    return ConfigError(
        "the body of a request is too large, or has no length",
        {"path": path, "most_bytes": MOST_BODY_BYTES},
        "Send a smaller request, with a Content-Length.",
    )


def _refused(error: StreamError, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """The connection may carry a body that is not read."""
    return _error_answer(error, status, {"Connection": "close", **(headers or {})})


def _endpoint(call: Call) -> Endpoint:
    """A thread of the pool answers, and may block."""

    async def endpoint(request: Request) -> Response:
        arguments: list[Any] = [_checked(*each) for each in request.path_params.items()]
        if call.body is not None:
            arguments.append(await _body(call.body, request))
        arguments += [_number(request, name) for name in call.query or ()]
        found = await run_in_threadpool(call.run, *arguments)
        return PlainTextResponse(found) if isinstance(found, bytes) else Answer(found)

    return endpoint


def _checked(name: str, value: str) -> str:
    """An id or a host of a path. A path never reaches a file system unchecked."""
    if not JOB_UID.fullmatch(value.replace(".", "-").replace(":", "-")):
        raise NoSuchThingError(
            "no such thing has this name", {name: value}, "Check the path of the request."
        )
    return value


async def _body(kind: type, request: Request) -> Any:  # noqa: ANN401 - of this kind
    try:
        async with asyncio.timeout(_BODY_S):
            data = await request.body()
        return from_json(kind, parsed_json(data or b"{}"))
    except (ClientDisconnect, TimeoutError):
        raise HTTPException(400, "the body did not arrive") from None
    except FieldError:
        raise
    except ValueError:
        raise FieldError("body") from None


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= _MOST_NUMBER):
        raise FieldError(name)
    return int(text)


async def _own_answer(request: Request, err: Exception) -> Response:
    del request
    assert isinstance(err, StreamError)
    return _error_answer(err, next((code for kind, code in _STATUS if isinstance(err, kind)), 400))


async def _refused_answer(request: Request, err: Exception) -> Response:
    """An unknown path or method, or an unreadable body."""
    assert isinstance(err, HTTPException)
    error = ConfigError(
        "the service does not know this request",
        {"method": request.method, "path": request.scope["path"], "reason": err.detail},
        "Read /docs of the service.",
    )
    return _error_answer(error, err.status_code)


async def _invalid_answer(request: Request, err: Exception) -> Response:
    error = ConfigError(
        "a request has missing, unknown or wrong fields",
        {"path": request.scope["path"], "fields": err},
        "Read /docs of the service.",
    )
    return _error_answer(error, 422)


async def _unexpected_answer(request: Request, err: Exception) -> Response:
    """After it the server logs the trace."""
    error = StreamError(
        "the service failed unexpectedly",
        {"path": request.scope["path"], "error": type(err).__name__},
        "Read the log of the service.",
    )
    return _error_answer(error, 500)


def _error_answer(
    error: StreamError, status: int, headers: Mapping[str, str] | None = None
) -> Response:
    return Answer({"error": error_to_json(error)}, status_code=status, headers=headers)


_ERROR_ANSWERS: Mapping[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    StreamError: _own_answer,
    HTTPException: _refused_answer,
    FieldError: _invalid_answer,
    Exception: _unexpected_answer,
}


@asynccontextmanager
async def _threads(app: Starlette) -> AsyncIterator[None]:
    """More than the default of 40: jobs that hang each keep a few busy."""
    del app
    anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
    yield
