"""A call that no coordinator answers: each cause has words of its own, and says what to do."""

import dataclasses
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import NameResolutionError, ProtocolError, SSLError

from sluice.runtime.embedded.ports import free_ports
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    StreamError,
    UnreachableError,
    UnsupportedFormatError,
    WaitedTooLongError,
)
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient
from sluice.runtime.service.unanswered_calls import no_connection
from tests.kit.coordinator.coordinated_service import started_service

_TOKEN = "s3cret-token"
_HTML = b"<html><body><h1>Sign in</h1></body></html>"


def _at(address: str, *, token: str = _TOKEN) -> CoordinatorAddress:
    return CoordinatorAddress(address=address, token=token, leader_session_id="s", job_uid="u")


@contextmanager
def _answering(status: int, body: bytes, headers: Mapping[str, str]) -> Iterator[str]:
    """A server that is no coordinator's; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _status(address: CoordinatorAddress) -> StreamError:
    with CoordinatorClient(address, deadline_s=0.1) as client, pytest.raises(StreamError) as raised:
        client.status()
    assert _TOKEN not in str(raised.value)
    return raised.value


def test_a_port_where_nothing_listens_is_reported_as_that() -> None:
    """The driver has ended, or is at another port."""
    (port,) = free_ports(1)
    error = _status(_at(f"http://127.0.0.1:{port}"))
    assert type(error) is UnreachableError
    assert "nothing listens at the coordinator's address" in str(error)
    assert f"127.0.0.1:{port} path=/v1/status" in str(error)
    assert "Check that the driver process runs" in str(error)


def test_a_request_that_is_taken_and_not_answered_is_a_wait() -> None:
    """The driver hangs."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = _at(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with (
            CoordinatorClient(address, deadline_s=0.0) as client,
            pytest.raises(WaitedTooLongError, match=r"does not answer it.*waited_s=0\.05"),
        ):
            client.query("key", "call", {}, timeout_s=0.05)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NameResolutionError("h", HTTPConnection("h"), socket.gaierror()), "host .* is unknown"),
        (SSLError("wrong version number"), "does not speak TLS"),
        (ProtocolError("reset"), "connection to the coordinator broke"),
    ],
)
def test_other_ways_to_get_no_answer_are_reported_apart(
    error: urllib3.exceptions.HTTPError, says: str
) -> None:
    """Each is tried again."""
    found = no_connection(error, address="http://h:1", path="/p", timeout_s=1.0)
    with pytest.raises(UnreachableError, match=says):
        raise found


@pytest.mark.parametrize("address", ["", "driver:99", "http://[::1", "ftp://h:1", "http://h:port"])
def test_what_is_no_address_is_refused_at_once(address: str) -> None:
    """To try again would not help."""
    error = _status(_at(address))
    assert isinstance(error, ConfigError)
    assert "http://host:port" in str(error)


@pytest.mark.parametrize("token", [f"{_TOKEN}\nX: y", f"{_TOKEN}\u20ac"])
def test_a_token_that_no_request_can_carry_is_refused_and_not_shown(token: str) -> None:
    with started_service() as service:
        error = _status(_at(service.address, token=token))
    assert isinstance(error, ConfigError)
    assert error.__cause__ is None
    assert error.__suppress_context__


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (200, UnsupportedFormatError, "not come from a coordinator"),
        (302, UnsupportedFormatError, "location=http://login/"),
        (404, UnsupportedFormatError, "not come from a coordinator"),
        (401, AuthenticationError, "a proxy or another service requires credentials"),
        (407, AuthenticationError, "a proxy or another service requires credentials"),
        (502, UnreachableError, "a proxy answers instead of the coordinator"),
    ],
)
def test_the_page_of_a_proxy_is_reported_as_that(
    status: int, kind: type[StreamError], says: str
) -> None:
    """With its status and what it calls itself, and without its HTML."""
    headers = {"Content-Type": "text/html", "Location": "http://login/"}
    with _answering(status, _HTML, headers) as address:
        error = _status(_at(address))
    assert isinstance(error, kind)
    assert says in str(error)
    assert f"status={status} content_type=text/html server=BaseHTTP" in str(error)
    assert "Sign in" not in str(error)


@pytest.mark.parametrize(("token", "says"), [("guessed", "a wrong token"), ("", "wrong")])
def test_a_wrong_token_is_reported_as_that(token: str, says: str) -> None:
    """The token of another run, for example; neither is shown."""
    with started_service() as service:
        address = dataclasses.replace(service.coordinator_address, token=token)
        error = _status(address)
        assert service.coordinator_address.token not in str(error)
        assert service.command_address.token not in str(error)
    assert isinstance(error, AuthenticationError)
    assert says in str(error)
    assert "path=/v1/status" in str(error)
