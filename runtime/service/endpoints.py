"""Turns an HTTP request into a call, and its result or error into an answer: on Starlette."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    FencedError,
    StreamError,
    UnreachableError,
    WrongServiceError,
)
from sluice.runtime.model.json_text import parsed_json
from sluice.runtime.model.json_values import FieldError, from_json
from sluice.runtime.service.error_json import error_to_json
from sluice.runtime.service.service_messages import Message

__all__ = ["ERROR_ANSWERS", "Answer", "Endpoint", "answering", "body_of", "metrics_endpoint"]

Endpoint = Callable[[Request], Awaitable[Response]]

_Message = TypeVar("_Message", bound=Message)

_STATUS = (
    (AuthenticationError, 401),
    (WrongServiceError, 401),
    (FencedError, 409),
    (UnreachableError, 503),
)


class Answer(JSONResponse):
    """Also accepts text that is not valid UTF-8."""

    def render(self, content: object) -> bytes:
        """See `starlette.responses.JSONResponse`."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def answering(kind: type[_Message], answer: Callable[[_Message], dict[str, Any]]) -> Endpoint:
    """Takes messages of this kind as bodies; a thread of the pool answers them and may block."""

    async def endpoint(request: Request) -> Response:
        return Answer(await run_in_threadpool(answer, await body_of(kind, request)))

    return endpoint


def metrics_endpoint(registry: CollectorRegistry) -> Endpoint:
    """Shows a registry as Prometheus text."""

    async def endpoint(request: Request) -> Response:
        del request
        shown = await run_in_threadpool(generate_latest, registry)
        return Response(shown, media_type=CONTENT_TYPE_LATEST)

    return endpoint


async def body_of(kind: type[_Message], request: Request) -> _Message:
    """The message in a request's body. `ERROR_ANSWERS` answers its errors."""
    try:
        # Only finite numbers, so that they can be compared and sent back.
        found = parsed_json(await request.body())
    except ClientDisconnect:
        # No client receives this answer; without it the server would log a long trace.
        raise HTTPException(400, "the body ends before its length") from None
    except ValueError:
        raise FieldError("body") from None
    return from_json(kind, found)


async def _own_answer(request: Request, err: Exception) -> Response:
    """The whole error, so that the client raises the same one."""
    del request
    assert isinstance(err, StreamError)
    status = next((code for kind, code in _STATUS if isinstance(err, kind)), 400)
    return _error_answer(err, status)


async def _refused_answer(request: Request, err: Exception) -> Response:
    """An unknown path, or an unreadable body."""
    assert isinstance(err, HTTPException)
    error = ConfigError(
        "the coordinator does not know this message",
        {"method": request.method, "path": request.scope["path"], "reason": err.detail},
        "Run the same version of Sluice in the sender and the coordinator.",
    )
    return _error_answer(error, err.status_code)


async def _invalid_answer(request: Request, err: Exception) -> Response:
    error = ConfigError(
        "a message has missing, unknown or wrong fields",
        {"path": request.scope["path"], "fields": err},
        "Run the same version of Sluice in the sender and the coordinator.",
    )
    return _error_answer(error, 422)


async def _unexpected_answer(request: Request, err: Exception) -> Response:
    """After it the server logs the trace."""
    error = StreamError(
        "the coordinator failed unexpectedly",
        {"path": request.scope["path"], "error": f"{type(err).__name__}: {err}"},
        "Read the log of the driver process.",
    )
    return _error_answer(error, 500)


def _error_answer(error: StreamError, status: int) -> Response:
    return Answer({"error": error_to_json(error)}, status_code=status)


ERROR_ANSWERS: Mapping[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    StreamError: _own_answer,
    HTTPException: _refused_answer,
    FieldError: _invalid_answer,
    Exception: _unexpected_answer,
}
"""HTTP status by the class of the error. These never wait for a thread: all threads may be waiting
for commits."""
