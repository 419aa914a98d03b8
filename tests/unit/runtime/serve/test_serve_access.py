"""Access to the service: token, large and slow bodies, foreign names, TLS, and its document."""

import contextlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest
import urllib3

from sluice.runtime.errors import (
    ConfigError,
    StreamError,
    UnreachableError,
    UnsupportedFormatError,
    WrongServiceError,
)
from sluice.runtime.serve import serve_app
from sluice.runtime.serve.openapi import openapi_document
from sluice.runtime.serve.serve_client import ServeClient
from sluice.runtime.serve.serve_server import checked_tls, made_token, read_token
from sluice.runtime.service.http_thread import HttpThread
from tests.kit.served_jobs_bed import TOKEN, PlayedJobs, Service, service_of
from tests.kit.waiting import PATIENCE_S

LARGE = 100 << 20
DATA = Path(__file__).parents[3] / "data"


def connected(service: Service) -> socket.socket:
    host, _, port = service.server.address.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def answer_to(service: Service, head: str, body: bytes = b"") -> bytes:
    """The first line of the answer."""
    with connected(service) as connection:
        connection.sendall(head.encode() + body)
        return connection.recv(1 << 16).partition(b"\r\n")[0]


def test_pages_without_data_need_no_token(service: Service) -> None:
    for path in ("/", "/docs", "/healthz", "/openapi.json"):
        response = urllib3.request("GET", service.server.address + path)
        assert response.status == 200, path
        assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_all_other_requests_need_the_token(service: Service) -> None:
    calls = openapi_document(service.calls)["paths"]
    paths = [(path, method) for path, operations in calls.items() for method in operations]
    for path, method in [*paths, ("/unknown", "get"), ("/page", "get"), ("/docs/x", "get")]:
        for token in ("guessed", TOKEN[:-1], f"{TOKEN}x", None):
            response = urllib3.request(
                method.upper(),
                service.server.address + path.replace("{", "").replace("}", ""),
                headers={} if token is None else {"Authorization": f"Bearer {token}"},
            )
            assert response.status == 401, (method, path)


def test_a_body_of_100_mb_is_refused_and_not_read(service: Service) -> None:
    for authorization, status in ((f"Authorization: Bearer {TOKEN}\r\n", 413), ("", 401)):
        for framing in (f"Content-Length: {LARGE}", "Transfer-Encoding: chunked"):
            head = f"POST /v1/submissions HTTP/1.1\r\nHost: h\r\n{authorization}{framing}\r\n\r\n"
            assert answer_to(service, head).startswith(f"HTTP/1.1 {status} ".encode())


def test_the_service_answers_on_while_100_mb_arrive(service: Service) -> None:
    head = (
        f"POST /v1/submissions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Length: {LARGE}\r\n\r\n"
    )
    with connected(service) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(head.encode())
        for _ in range(LARGE >> 20):
            connection.sendall(bytes(1 << 20))  # the connection is closed meanwhile
    with service.client() as client:
        assert client.get("/v1/jobs")["jobs"] == []


def test_a_body_that_does_not_arrive_is_given_up(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_app, "_BODY_S", 0.05)
    head = (
        f"POST /v1/submissions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Content-Length: 100\r\n\r\n{"
    )
    assert answer_to(service, head).startswith(b"HTTP/1.1 400 ")


def test_a_foreign_name_reaches_no_file(service: Service) -> None:
    for path in (
        "/v1/jobs/..%2F..%2Fetc%2Fpasswd",
        "/v1/jobs/%2e%2e",
        "/v1/jobs/a%00b",
        "/v1/jobs/" + "a" * 65,
        "/v1/submissions/..%2f..%2fsecret",
        "/v1/submissions/%2e%2e%2fx/log",
        "/v1/drains/..%2f",
        "/page/..%2f..%2fserve_app.py",
        "/page/page_routes.py",
        "/v1/jobs/unknown",
        "/v1/submissions/unknown-one",
        "/v1/submissions/unknown-one/log",
    ):
        response = urllib3.request(
            "GET", service.server.address + path, headers={"Authorization": f"Bearer {TOKEN}"}
        )
        assert response.status == 404, path
        assert "error" in response.json()


def test_a_wrong_body_is_refused_by_name(service: Service, played: PlayedJobs) -> None:
    job = played.start_job("job-1")
    for body in (
        *(b"{", b"[]", b'{"unknown": 1}', b'{"to": 7}', b'{"to": NaN}', b"\xff"),
        b"[" * 100_000,
    ):
        response = urllib3.request(
            "POST",
            service.server.address + "/v1/jobs/job-1/stop",
            body=body,
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        assert response.status == 422, body[:20]
        assert response.json()["error"]["what"]
    assert job.told == []


def test_each_error_of_a_client_says_what_to_do(service: Service) -> None:
    with service.client(token="another-token-0000") as client, pytest.raises(WrongServiceError):
        client.get("/v1/jobs")
    with pytest.raises(UnreachableError, match="no service answers"):
        ServeClient("http://127.0.0.1:1", TOKEN).get("/v1/jobs")
    with service.client() as client, pytest.raises(ConfigError, match="no such job"):
        client.get("/v1/jobs/unknown")
    with pytest.raises(ConfigError, match="neither http"):
        ServeClient("localhost:8080", TOKEN)
    with pytest.raises(ConfigError, match="cannot be made") as caught:
        ServeClient(service.server.address, "a\nb").get("/v1/jobs")
    assert "a\nb" not in str(caught.value)


def test_an_answer_of_another_service_is_named(played: PlayedJobs) -> None:
    with (
        ServeClient(played.address, TOKEN) as client,
        pytest.raises(UnsupportedFormatError, match="does not come from"),
    ):
        client.get("/v1/jobs")


def test_the_document_and_the_routes_are_the_same(service: Service) -> None:
    document = urllib3.request("GET", f"{service.server.address}/openapi.json").json()
    assert document == json.loads(json.dumps(openapi_document(service.calls)))
    assert document["openapi"].startswith("3.1")
    referred: list[str] = []

    def walk(value: Any) -> None:
        for name, each in value.items() if isinstance(value, dict) else ():
            if name == "$ref":
                referred.append(each)
            walk(each)

    walk(document["paths"])
    schemas = document["components"]["schemas"]
    assert {each.removeprefix("#/components/schemas/") for each in referred} == schemas.keys()
    stop = schemas["StopRequest"]
    assert stop["properties"]["drain"]["type"] == "boolean"
    operations = [each for path in document["paths"].values() for each in path.values()]
    ids = [each["operationId"] for each in operations]
    assert len(ids) == len(set(ids))
    page = urllib3.request("GET", f"{service.server.address}/docs").data.decode()
    assert "<script" not in page
    assert all(path in page for path in document["paths"])


def test_a_wrong_token_is_checked_before_a_tls_client_reads(
    played: PlayedJobs, tmp_path: Path
) -> None:
    """With a certificate the same service speaks only TLS."""
    pem = DATA / "tls-service.pem"
    with service_of(played.registry.fs.uri, tmp_path, tls=(pem, pem)) as service:
        assert service.server.address.startswith("https://")
        address = service.server.address.replace("127.0.0.1", "localhost")
        with ServeClient(address, TOKEN, ca_file=str(pem)) as client:
            assert client.get("/v1/jobs")["jobs"] == []
        with ServeClient(address, TOKEN) as client, pytest.raises(ConfigError, match="certificate"):
            client.get("/v1/jobs")
        plain = address.replace("https://", "http://")
        with ServeClient(plain, TOKEN) as client, pytest.raises(StreamError):
            client.get("/v1/jobs")


def test_files_of_tls_are_checked_at_the_start(tmp_path: Path) -> None:
    pem = DATA / "tls-service.pem"
    assert checked_tls(None, None) is None
    assert checked_tls(pem, pem) == (pem, pem)
    (tmp_path / "empty.pem").write_text("")
    for certificate, key in (
        (pem, None),
        (pem, tmp_path / "absent"),
        (tmp_path / "empty.pem", pem),
    ):
        with pytest.raises(ConfigError):
            checked_tls(certificate, key)


def test_a_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "token"
    made = made_token(path)
    assert made_token(path) == read_token(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["token"]
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="other users"):
        made_token(path)


@pytest.mark.parametrize("content", ["", "short", "x" * 20 + "\n" + "y" * 20, "é" * 20])
def test_an_unusable_token_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(ConfigError):
        read_token(path)
    with pytest.raises(ConfigError):
        read_token(tmp_path / "absent")


def test_no_more_connections_than_its_limit(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.runtime.serve.serve_server._LimitedRequests.most", 3)
    assert isinstance(service.server, HttpThread)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(connected(service)) for _ in range(4)]
        with contextlib.suppress(ConnectionError):
            assert opened[-1].recv(1) == b""
    with service.client() as client:
        assert client.get("/v1/jobs")["jobs"] == []
