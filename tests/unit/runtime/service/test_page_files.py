"""The page's files and routes, without a browser."""

import re
from importlib import resources
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from sluice.runtime.errors import AuthenticationError
from sluice.runtime.service.endpoints import ERROR_ANSWERS, Endpoint
from sluice.runtime.service.page.page_routes import PAGE_HEADERS, api_routes, page_routes
from tests.kit.page_jobs import ShownJobs, history_with, job_with

PAGE = resources.files("sluice.runtime.service.page")
FILES = {
    file.name: file.read_text(encoding="utf-8")
    for file in PAGE.iterdir()
    if Path(file.name).suffix in (".css", ".html", ".js", ".svg")
}
SCRIPTS = sorted(name for name in FILES if name.endswith(".js"))


def answer(routes: list[Any], path: str) -> httpx.Response:
    app = Starlette(routes=routes, exception_handlers=ERROR_ANSWERS)

    async def fetch() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
            return await client.get(path)

    return anyio.run(fetch)


@pytest.fixture
def shown() -> ShownJobs:
    jobs = ShownJobs()
    jobs.show(job_with(), history_with(checkpoints=9))
    return jobs


def test_each_file_is_served_with_its_type_and_the_policy() -> None:
    for name in FILES:
        path = "/" if name == "index.html" else f"/page/{name}"
        found = answer(list(page_routes()), path)
        assert found.status_code == 200
        assert found.text == FILES[name]
        assert found.headers["content-type"].startswith(("text/", "image/svg+xml"))
        assert {key: found.headers[key] for key in PAGE_HEADERS} == PAGE_HEADERS


@pytest.mark.parametrize("path", ["/page/none.js", "/page/page_routes.py", "/page/..%2fserver.py"])
def test_only_files_of_the_page_are_served(path: str) -> None:
    assert answer(list(page_routes()), path).status_code == 404


def test_the_policy_permits_only_the_page_itself() -> None:
    rules = dict(
        rule.strip().split(" ", 1) for rule in PAGE_HEADERS["Content-Security-Policy"].split(";")
    )
    assert rules.pop("default-src") == "'none'"
    assert rules.pop("img-src") == "'self' data:"
    assert set(rules.values()) == {"'self'", "'none'"}
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"


def test_the_page_names_no_other_host() -> None:
    for name, text in FILES.items():
        hosts = re.findall(r"\w+://[^\s\"')]+", text)
        assert set(hosts) <= {"http://www.w3.org/2000/svg"}, name


def test_the_page_has_no_inline_script_or_style() -> None:
    html = FILES["index.html"]
    assert not re.findall(r"<script(?![^>]* src=)", html)
    assert not re.findall(r"<style|\sstyle=|\son\w+=|javascript:", html)


def test_no_script_reads_text_as_markup() -> None:
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|\.src\s*="
    for name in SCRIPTS:
        assert not re.findall(banned, FILES[name]), name


def test_each_imported_script_is_there_and_is_loaded_early() -> None:
    for name in SCRIPTS:
        imported = re.findall(r'from "\./([\w.]+)"', FILES[name])
        assert set(imported) <= set(SCRIPTS), name
    for name in SCRIPTS:
        assert f'"page/{name}"' in FILES["index.html"], name


def test_jobs_are_answered_as_json(shown: ShownJobs) -> None:
    routes: list[Any] = list(api_routes(shown))
    (summary,) = answer(routes, "/v1/jobs").json()["jobs"]
    found = answer(routes, f"/v1/jobs/{summary['job_uid']}").json()
    assert found["graph"]["operators"][0]["name"] == "orders"
    history = answer(routes, f"/v1/jobs/{summary['job_uid']}/history").json()
    assert len(history["checkpoints"]) == 9
    path = f"/v1/jobs/{summary['job_uid']}/history?checkpoints=2&samples=3"
    fewer = answer(routes, path).json()
    assert fewer["checkpoints"] == history["checkpoints"][-2:]
    assert fewer["samples"] == history["samples"][-3:]


@pytest.mark.parametrize("path", ["/v1/jobs/none", "/v1/jobs/none/history"])
def test_an_unknown_job_is_not_found(shown: ShownJobs, path: str) -> None:
    assert answer(list(api_routes(shown)), path).status_code == 404


@pytest.mark.parametrize("count", ["0", "-1", "x", "²", "1e9", "99999999"])
def test_a_number_of_checkpoints_is_bounded(shown: ShownJobs, count: str) -> None:
    path = f"/v1/jobs/{job_with().job_uid}/history?checkpoints={count}"
    assert answer(list(api_routes(shown)), path).status_code == 400


def test_a_guard_comes_before_each_answer(shown: ShownJobs) -> None:
    def guarded(endpoint: Endpoint) -> Endpoint:
        async def refuse(request: Request) -> Response:
            raise AuthenticationError("no token", {}, "Send it.")

        return refuse

    routes: list[Any] = list(api_routes(shown, guarded=guarded))
    for path in ("/v1/jobs", "/v1/jobs/x", "/v1/jobs/x/history"):
        assert answer(routes, path).status_code == 401
