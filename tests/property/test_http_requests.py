"""The coordinator's service, asked anything by GET, or with any head of a request.

An answer of ours, or its HTTP server's word that this is no request; and it serves the next one.

What stands in the bodies of messages: `tests/property/test_http_bodies.py`.
"""

import contextlib
import json
import socket
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sluice.runtime.errors import StreamError
from sluice.runtime.service.error_json import error_from_json
from sluice.runtime.service.server import CoordinatorService
from tests.kit.coordinator.coordinated_service import started_service
from tests.kit.effort import examples
from tests.kit.mutations import mutated_bytes

_QUICK = settings(
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
_TIMEOUT_S = 600.0
_WAITS_FOR_MORE_S = 0.2
_STATUS = "/v1/status"
_PATHS = (_STATUS, "/metrics")

Pairs = Sequence[tuple[str, str]]


@pytest.fixture(scope="module")
def service() -> Iterator[CoordinatorService]:
    with started_service() as made:
        yield made


def token_of(service: CoordinatorService) -> tuple[str, str]:
    return "Authorization", f"Bearer {service.coordinator_address.token}"


def opened(service: CoordinatorService) -> socket.socket:
    host, _, port = service.address.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)


def answered(service: CoordinatorService, request: bytes) -> tuple[int | None, bytes]:
    """Status and body of the answer to a whole request that asks to close after it; None: it was
    hung up on."""
    with opened(service) as connection:
        connection.sendall(request)
        found = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, _, body = found.partition(b"\r\n\r\n")
    return _status(head), body


def status_of(service: CoordinatorService, request: bytes) -> int | None:
    found = b""
    with opened(service) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(request)  # it may be refused, and the connection closed, before the end
        connection.settimeout(_WAITS_FOR_MORE_S)
        with contextlib.suppress(TimeoutError):
            found = connection.recv(1 << 16)
        if not found:
            connection.settimeout(_TIMEOUT_S)
            connection.shutdown(socket.SHUT_WR)
            found = connection.recv(1 << 16)
    return _status(found)


def _status(head: bytes) -> int | None:
    return int(head.split(b" ", 2)[1]) if head else None


def request_of(method: str, target: str, headers: Pairs, *, body: bytes = b"") -> bytes:
    """As it goes over the wire; what a header says goes there unchecked."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def is_no_failure(status: int | None) -> bool:
    return status is None or status < 500 or status == 503


def judged(status: int | None, body: bytes) -> bytes | StreamError:
    """The answer, or which error of ours it is."""
    assert status is not None
    assert is_no_failure(status), (status, body)
    if status == 200:
        return body
    error = error_from_json(json.loads(body)["error"])
    assert type(error) is not StreamError, "a class of its own reports the client what to do"
    assert all(error.args[at] for at in (0, 2))
    return error


def asked(service: CoordinatorService, target: str) -> bytes | StreamError:
    headers = [("Host", "h"), ("Connection", "close"), token_of(service)]
    return judged(*answered(service, request_of("GET", target, headers)))


def assert_it_serves(service: CoordinatorService) -> None:
    status = asked(service, _STATUS)
    assert isinstance(status, bytes)
    assert json.loads(status)["job"] is not None


# Neither spaces nor line ends: these would end the target, and are the business of the heads below.
_RAW = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=20
) | st.sampled_from(
    ["%", "%zz", "%ff", "%ed%a0%80", "%00", "&&&", "=", "=&=", ";", "?", "?a", "#x", "[]", "a[b]=c"]
)


@_QUICK
@given(path=st.sampled_from(_PATHS), data=st.data())
def test_a_query_with_anything_in_it_is_answered(
    service: CoordinatorService, path: str, data: st.DataObject
) -> None:
    query = data.draw(_RAW | st.lists(_RAW, max_size=4).map("&".join))
    asked(service, f"{path}?{query}")
    assert_it_serves(service)


@_QUICK
@given(path=_RAW | st.sampled_from([*_PATHS, "/v1/barrier", "/v1/queries/a/b"]))
@example(path="/v1/queries/%2e%2e/%ff")
@example(path="//")
@example(path="*")
@example(path="/v1/status#x")
@example(path="http://[::1/v1/status")
def test_any_target_is_answered(service: CoordinatorService, path: str) -> None:
    """A path, a whole address, or nothing of the kind: what HTTP allows, our words answer."""
    headers = [("Host", "h"), ("Connection", "close"), token_of(service)]
    status, body = answered(service, request_of("GET", path or "/", headers))
    assert is_no_failure(status), body
    assert_it_serves(service)


_VALUES = st.text(st.characters(max_codepoint=0xFF), max_size=30) | st.sampled_from(
    ["", "\0", "\xff", "Bearer", "Bearer \xff\xfe", "Basic eDp5", "," * 50, "a\r\n b", "x" * 70_000]
)
_NAMES = st.sampled_from(
    [
        *("Authorization", "Host", "Connection", "Content-Length", "Content-Type", "Accept"),
        *("Transfer-Encoding", "Expect", "Upgrade", "Range", "Cookie", "X-Forwarded-For", "TE"),
        *("Accept-Encoding", "If-None-Match", "Origin", "Sec-WebSocket-Key"),
        *("", " ", "\xff", "a b"),
    ]
)
_NUMERIC = st.sampled_from(["-1", "1e9", "0x10", "9" * 30, "5, 5", "+5", "5"])
_UPGRADES = (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Version", "13"))


@_QUICK
@given(
    method=st.sampled_from(["GET", "GET", "HEAD", "OPTIONS", "POST", "CONNECT", "get", "\xff", ""]),
    path=st.sampled_from([*_PATHS, "/v1/barrier"]),
    more=st.lists(st.tuples(_NAMES, _VALUES | _NUMERIC), max_size=4),
    may_ask=st.booleans(),
    body=st.binary(max_size=12),
)
@example(method="GET", path="/v1/status", more=[*_UPGRADES], may_ask=True, body=b"")
@example(method="GET", path="/v1/status", more=[*_UPGRADES], may_ask=False, body=b"")
@example(
    method="POST",
    path="/v1/barrier",
    more=[("Transfer-Encoding", "chunked")],
    may_ask=True,
    body=b"zz\r\n",
)
@example(method="POST", path="/v1/barrier", more=[("Content-Length", "5")], may_ask=True, body=b"")
@example(
    method="POST",
    path="/v1/barrier",
    more=[("Content-Type", "\xff/\xff; charset=\xff"), ("Content-Length", "2")],
    may_ask=True,
    body=b"{}",
)
def test_a_head_with_anything_in_it_is_answered_or_hung_up_on(
    service: CoordinatorService,
    method: str,
    path: str,
    more: list[tuple[str, str]],
    may_ask: bool,
    body: bytes,
) -> None:
    headers = [("Host", "h"), *([token_of(service)] if may_ask else []), *more]
    status = status_of(service, request_of(method, path, headers, body=body))
    assert is_no_failure(status)
    assert may_ask or status != 200, "nobody is let in by what stands beside the token"
    assert_it_serves(service)


@_QUICK
@given(value=_VALUES)
@example(value="")
@example(value="Bearer ")
@example(value="Bearer \xe4\xf6\xfc")
def test_who_has_not_the_token_is_reported_so(service: CoordinatorService, value: str) -> None:
    """In whatever bytes the wrong one comes; never by an error of the comparison."""
    plain = "".join(each for each in value if each.isprintable() and each != "\xa0").strip()[:1000]
    headers = [("Host", "h"), ("Connection", "close"), ("Authorization", plain)]
    for path in _PATHS:
        status, body = answered(service, request_of("GET", path, headers))
        error = judged(status, body)
        kind = "WrongServiceError" if plain else "AuthenticationError"
        assert (status, type(error).__name__) == (401, kind)


_NO_REQUESTS = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # who speaks TLS
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /v1/status HTTP/9.9\r\n\r\n",
    b"\r\n" * 1000,
    b"GET /" + b"a" * 200_000,
)


@pytest.mark.parametrize("data", _NO_REQUESTS, ids=["TLS", "HTTP/2", "9.9", "lines", "long"])
def test_what_is_no_request_is_refused(service: CoordinatorService, data: bytes) -> None:
    status = status_of(service, data)
    assert status is None or 400 <= status < 500
    assert_it_serves(service)


@_QUICK
@given(data=st.data())
def test_a_request_with_some_bytes_changed_is_answered_or_hung_up_on(
    service: CoordinatorService, data: st.DataObject
) -> None:
    headers = [("Host", "h"), ("Accept", "*/*"), token_of(service)]
    whole = request_of("GET", f"{_STATUS}?a=1", headers)
    changed = data.draw(mutated_bytes(whole) | st.binary(max_size=40))
    assert is_no_failure(status_of(service, changed + b"\r\n\r\n"))
    assert_it_serves(service)
