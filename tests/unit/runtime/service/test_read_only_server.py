"""The port without a token: it only reads, and a client can neither change nor exhaust anything."""

import contextlib
import logging
import socket
from collections.abc import Iterator

import pytest
import urllib3
from prometheus_client import CollectorRegistry, Gauge
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sluice.runtime.errors import ConfigError, MissingRequirementError
from sluice.runtime.service.listening.service_settings import checked_port
from sluice.runtime.service.read_only_server import ReadOnlyServer
from tests.kit.waiting import PATIENCE_S

LIMITS = "sluice.runtime.service.read_only_server._FewConnections"


async def page(request: Request) -> Response:
    """A further route, as the job's page has them."""
    if request.path_params["name"] == "broken":
        raise RuntimeError("secret")
    return PlainTextResponse(request.path_params["name"])


@pytest.fixture
def server() -> Iterator[ReadOnlyServer]:
    registry = CollectorRegistry()
    Gauge("some_value", "A value", registry=registry).set(7)
    routes = [Route("/pages/{name}", page, methods=["GET"])]
    with ReadOnlyServer(registry, host="127.0.0.1", port=0, routes=routes) as made:
        yield made


def sent(server: ReadOnlyServer, request: bytes) -> bytes:
    """The whole answer to these bytes, until the server closes the connection."""
    host, _, port = server.address.removeprefix("http://").rpartition(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                answer += part
    return answer


def asked(target: str, *headers: str, method: str = "GET") -> bytes:
    head = "\r\n".join([f"{method} {target} HTTP/1.1", "Connection: close", *headers])
    return f"{head}\r\n\r\n".encode()


def test_metrics_and_further_routes_need_no_token(server: ReadOnlyServer) -> None:
    shown = urllib3.request("GET", f"{server.address}/metrics")
    assert (shown.status, b"some_value 7.0" in shown.data) == (200, True)
    assert urllib3.request("GET", f"{server.address}/pages/graph").data == b"graph"


@pytest.mark.parametrize("path", ["/metrics", "/pages/a", "/nothing", "/pages/broken"])
def test_each_answer_has_the_security_headers(server: ReadOnlyServer, path: str) -> None:
    headers = urllib3.request("GET", f"{server.address}{path}").headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_no_request_can_change_anything(server: ReadOnlyServer, method: str) -> None:
    answer = urllib3.request(method, f"{server.address}/pages/a")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (asked("/metrics", "Host: localhost", "Content-Length: 1000000"), 413),
        (asked("/metrics", "Host: localhost", "Transfer-Encoding: chunked"), 413),
        (asked(f"/metrics?{'a' * 4096}", "Host: localhost"), 414),
        (asked(f"/{'a' * (80 << 10)}", "Host: localhost"), 400),
        (asked("/metrics", "Host: attacker.example:9464"), 421),
        (asked("/pages/../metrics", "Host: localhost"), 404),
        (b"nonsense\r\n\r\n", 400),
    ],
    ids=["body", "chunks", "query", "head", "rebinding", "dots", "no-http"],
)
def test_a_large_or_odd_request_is_refused(
    server: ReadOnlyServer, request_bytes: bytes, status: int
) -> None:
    assert sent(server, request_bytes).startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9464", "127.0.0.1:9464", "[::1]:9464", "[::1]"]
)
def test_names_of_this_machine_are_answered(server: ReadOnlyServer, host: str) -> None:
    assert sent(server, asked("/metrics", f"Host: {host}")).startswith(b"HTTP/1.1 200 ")


def test_an_error_of_a_route_shows_no_detail(server: ReadOnlyServer) -> None:
    answer = urllib3.request("GET", f"{server.address}/pages/broken")
    assert (answer.status, b"secret" in answer.data) == (500, False)


def test_connections_are_few_and_end(
    server: ReadOnlyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that opens many and sends nothing does not use up the driver's descriptors."""
    monkeypatch.setattr(f"{LIMITS}.most", 2)
    monkeypatch.setattr(f"{LIMITS}.request_s", 0.05)
    assert [sent(server, part) for part in (b"", b"GET", b"GET / HTTP/1.1\r\n")] == [b""] * 3
    host, _, port = server.address.removeprefix("http://").rpartition(":")
    monkeypatch.setattr(f"{LIMITS}.request_s", PATIENCE_S)
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
        assert sent(server, asked("/metrics", "Host: localhost")) == b""
    while not sent(server, asked("/metrics", "Host: localhost")).startswith(b"HTTP/1.1 200 "):
        pass  # until the server has seen that both are closed


def test_a_port_in_use_is_a_typed_error(server: ReadOnlyServer) -> None:
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(MissingRequirementError, match=r"Choose another metrics_port"):
        ReadOnlyServer(CollectorRegistry(), host="127.0.0.1", port=port)


@pytest.mark.parametrize("port", [-1, 1 << 16, True, "9464"])
def test_what_is_no_port_is_refused(port: object) -> None:
    with pytest.raises(ConfigError):
        checked_port(port, host="127.0.0.1")  # type: ignore[arg-type]  # without types


def test_an_empty_host_does_not_mean_all_interfaces() -> None:
    with pytest.raises(ConfigError, match="metrics_host"):
        checked_port(9464, host=" ")


def test_a_port_beyond_loopback_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "sluice.runtime.service.http_thread"),
        ReadOnlyServer(CollectorRegistry(), host="0.0.0.0", port=0) as server,
    ):
        (warning,) = [record.getMessage() for record in caplog.records]
        assert warning.startswith("read-only service listens beyond this machine, without token")
        port = server.address.rpartition(":")[2]
        answer = sent(server, asked("/metrics", f"Host: driver.example:{port}"))
    # A client came by loopback with a name: it is refused even so.
    assert answer.startswith(b"HTTP/1.1 421 ")
