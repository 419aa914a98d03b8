"""Routes of the page and of the JSON that it reads, for each service that shows jobs."""

from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, Protocol

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sluice.runtime.service.endpoints import Answer, Endpoint

__all__ = ["PAGE_HEADERS", "JobPages", "api_routes", "page_routes"]

PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of each file of the page: it runs only its own scripts, and sends requests only to the
address that it came from."""

_TYPES = {
    ".svg": "image/svg+xml",
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
}
_MOST_ENTRIES = 10_000


class JobPages(Protocol):
    """Jobs that a service shows. Called in the service's threads; each call answers soon."""

    def jobs(self) -> dict[str, Any]:
        """See `sluice.runtime.service.job_view.list_of`."""
        ...

    def job(self, job_uid: str) -> dict[str, Any] | None:
        """See `sluice.runtime.service.job_view.details_of`; None: there is no such job."""
        ...

    def history(self, job_uid: str, *, checkpoints: int | None = None) -> dict[str, Any] | None:
        """See `sluice.runtime.service.job_view.history_of`; None: there is no such job."""
        ...


def page_routes() -> list[Route]:
    """The page at ``/`` and its files at ``/page/…``. They hold no data, so they need no token."""
    files = {
        found.name: (found.read_bytes(), _TYPES[suffix])
        for found in resources.files(__package__).iterdir()
        if (suffix := "." + found.name.rpartition(".")[2]) in _TYPES
    }

    async def file(request: Request) -> Response:
        found = files.get(request.path_params.get("name", "index.html"))
        if found is None:
            raise HTTPException(404, "the page has no such file")
        content, kind = found
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=PAGE_HEADERS)

    return [Route("/", file, methods=["GET"]), Route("/page/{name}", file, methods=["GET"])]


def api_routes(
    pages: JobPages, *, guarded: Callable[[Endpoint], Endpoint] = lambda endpoint: endpoint
) -> list[Route]:
    """``/v1/jobs``, ``/v1/jobs/{job_uid}`` and its ``/history``; ``guarded`` checks the client.

    The history takes ``?checkpoints=N`` and ``?samples=N``: only the N newest of them.
    """

    async def jobs(request: Request) -> Response:
        del request
        return Answer(await run_in_threadpool(pages.jobs))

    async def job(request: Request) -> Response:
        uid = request.path_params["job_uid"]
        return _answer(uid, await run_in_threadpool(pages.job, uid))

    async def history(request: Request) -> Response:
        uid = request.path_params["job_uid"]
        most, samples = (_count(request.query_params, each) for each in ("checkpoints", "samples"))
        found = await run_in_threadpool(lambda: pages.history(uid, checkpoints=most))
        if found is not None and samples is not None:
            found = {**found, "samples": found["samples"][-samples:]}
        return _answer(uid, found)

    shown = (
        ("/v1/jobs", jobs),
        ("/v1/jobs/{job_uid}", job),
        ("/v1/jobs/{job_uid}/history", history),
    )
    return [Route(path, guarded(endpoint), methods=["GET"]) for path, endpoint in shown]


def _answer(job_uid: str, found: Mapping[str, Any] | None) -> Response:
    if found is None:
        raise HTTPException(404, f"this service does not know the job {job_uid}")
    return Answer(found)


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _MOST_ENTRIES):
        raise HTTPException(400, f"{name} is not a number from 1 to {_MOST_ENTRIES}")
    return int(text)
