"""Who may ask the coordinator's service, and what nobody is shown."""

import contextlib
import dataclasses
import logging
import socket

import pytest
import urllib3

from sluice.runtime.errors import AuthenticationError, ConfigError, FencedError, StreamError
from sluice.runtime.service.error_json import error_from_json
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import CoordinatorClient
from tests.kit.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"token": "guessed"}, AuthenticationError),
        ({"leader_session_id": "an older run"}, FencedError),
        ({"job_uid": "another job"}, FencedError),
    ],
)
def test_only_who_belongs_to_this_run_is_answered(
    service: CoordinatorService, wrong: dict[str, str], error: type[StreamError]
) -> None:
    """Each message names job and leader session, and carries the token."""
    address = dataclasses.replace(service.coordinator_address, **wrong)
    with CoordinatorClient(address) as client, pytest.raises(error):
        client.poll_barrier("main", 0, wait_s=0.0)


@pytest.mark.parametrize("path", ["/v1/status", "/metrics"])
def test_nothing_is_shown_without_the_token(service: CoordinatorService, path: str) -> None:
    """Not even numbers."""
    response = urllib3.request("GET", f"{service.address}{path}")
    assert response.status == 401


def connected(service: CoordinatorService) -> socket.socket:
    """A connection of its own."""
    host, _, port = service.address.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def test_who_has_no_token_is_answered_before_the_body(service: CoordinatorService) -> None:
    """It is never taken in."""
    head = f"POST /v1/epochs HTTP/1.1\r\nHost: h\r\nContent-Length: {1 << 40}\r\n\r\n{{"
    with connected(service) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    "start",
    [b"GET /", b"GET /v1/status HTTP/1.1\r\nHost: h\r\nA: ", b"GET / HTTP/1.1\r\n"],
    ids=["target", "value", "names"],
)
def test_a_head_without_end_is_hung_up_on(service: CoordinatorService, start: bytes) -> None:
    """Else anybody could fill the driver's memory, token or not. Who still sends may find the
    connection reset in place of an answer; who is kept waiting runs into the time-out."""
    more = b"a: b\r\n" * 20_000 if start.endswith(b"1.1\r\n") else b"a" * 120_000
    with connected(service) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(start + more)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400 ")
        assert connection.recv(1 << 16) == b""


def test_a_long_body_behind_a_short_head_is_taken(service: CoordinatorService) -> None:
    """Epochs of many splits are long."""
    response = urllib3.request(
        "POST",
        f"{service.address}/v1/barrier",
        json={"job_uid": "u" * 1_000_000},
        headers={"Authorization": f"Bearer {service.coordinator_address.token}"},
        timeout=PATIENCE_S,
    )
    assert response.status == 422


def test_peoples_token_is_good_for_no_message_whatever_the_host_is_called(
    service: CoordinatorService,
) -> None:
    """Where a request's address is made of both, the header could make another path of it."""
    token = service.command_address.token
    head = f"POST /v1/barrier HTTP/1.1\r\nHost: y/v1/status?\r\nAuthorization: Bearer {token}\r\n"
    with connected(service) as connection:
        connection.sendall(f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 401 ")


def test_the_token_is_in_no_repr_and_no_error(service: CoordinatorService) -> None:
    """It may end up in a log otherwise."""
    address = service.coordinator_address
    assert address.token not in repr(address)
    with (
        CoordinatorClient(dataclasses.replace(address, job_uid="x")) as client,
        pytest.raises(FencedError) as caught,
    ):
        client.poll_barrier("main", 0, wait_s=0.0)
    assert address.token not in str(caught.value)


def test_the_service_listens_on_loopback_unless_told(service: CoordinatorService) -> None:
    """Nobody else on the network reaches it by accident."""
    assert service.address.startswith("http://127.0.0.1:")


def test_a_message_of_another_version_is_refused_by_name(service: CoordinatorService) -> None:
    """Fields are named, values are not."""
    token = service.coordinator_address.token
    response = urllib3.request(
        "POST",
        f"{service.address}/v1/barrier",
        json={"job_uid": "u", "leader_session_id": "s", "secret": "value"},
        headers={"Authorization": f"Bearer {token}"},
    )
    assert response.status == 422
    error = error_from_json(response.json()["error"])
    assert isinstance(error, ConfigError)
    assert "BarrierMessage.secret" in str(error)
    assert "value" not in str(error.args[1])


def warned_of(caplog: pytest.LogCaptureFixture, host: str) -> list[str]:
    """What a service that listens there warns of."""
    caplog.clear()
    watched = caplog.at_level(logging.WARNING, "sluice.runtime.service.http_thread")
    with watched, CoordinatorService(host=host):
        return [record.getMessage() for record in caplog.records]


def test_a_service_that_others_reach_says_that_nothing_is_encrypted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without TLS a token may be read on its way; never the token itself."""
    (warning,) = warned_of(caplog, "0.0.0.0")
    assert warning.startswith("service listens beyond this machine, without TLS: address=http://")
    assert "docs/guide/security.md" in warning


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_a_service_on_loopback_warns_of_nothing(
    caplog: pytest.LogCaptureFixture, host: str
) -> None:
    """Nobody on another machine connects there."""
    assert warned_of(caplog, host) == []
