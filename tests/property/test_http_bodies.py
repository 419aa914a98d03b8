"""The coordinator's service and its client, reported anything: an answer, or an error of ours."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import urllib3
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sluice.runtime.continuous.task_messages import EpochResult, NextBarrier
from sluice.runtime.contracts import RegisteredAttempt
from sluice.runtime.errors import ConfigError, StreamError
from sluice.runtime.model.json_values import to_json
from sluice.runtime.model.splits import Barrier, BatchKey, SplitRange
from sluice.runtime.service.drop_in_client import DropInMessage
from sluice.runtime.service.error_json import error_from_json
from sluice.runtime.service.remote_region import RemoteRegion
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient
from tests.kit.coordinator.checkpoint_records import committable
from tests.kit.coordinator.coordinated_service import started_service
from tests.kit.effort import examples
from tests.kit.mutations import json_texts, mutated_json

_QUICK = settings(
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
_SPLIT = SplitRange(
    source_id="s", topic="t", topic_id="i", partition=0, start_offset=0, end_offset=2
)
_BARRIER = Barrier(checkpoint_id=1, region="main", attempt_id=0, splits=(_SPLIT,))
_BATCH = BatchKey(region="main", attempt_id=0, batch_id=1)
_RESULT = EpochResult(batch=_BATCH, checkpoint_id=1, ranges=(_SPLIT,))


class _Echo:
    """A mounted handler."""

    def call(self, call: str, payload: Any) -> Any:
        return {call: payload}


@pytest.fixture(scope="module")
def service() -> Iterator[CoordinatorService]:
    with started_service() as made:
        made.mount("key", _Echo())
        yield made


def whole_bodies(service: CoordinatorService) -> dict[str, dict[str, Any]]:
    address = service.coordinator_address
    envelope = {"job_uid": address.job_uid, "leader_session_id": address.leader_session_id}
    region = envelope | {"region": "main", "attempt_id": 0}
    attempt = RegisteredAttempt(batch=_BATCH, operator_id="sink", resource="r")
    batch = envelope | {"batch": to_json(_BATCH)}
    return {
        "/v1/barrier": region | {"wait_s": 0.0},
        "/v1/attempts": envelope | {"attempt": to_json(attempt)},
        "/v1/waits": batch | {"what": "a producer", "why": "away"},
        "/v1/batches/decided": batch,
        "/v1/tokens": envelope | {"name": "none of this driver"},
        "/v1/epochs/next": region | {"wait_s": 0.0, "has_read": True, "committed": []},
        "/v1/epochs": envelope | {"epoch": to_json(_RESULT)},
        "/v1/regions/restart": envelope | {"regions": [], "exclude_hosts": []},
        "/v1/queries/key/call": envelope | {"payload": {"a": [1, None]}},
    }


_PATHS = (
    *("/v1/barrier", "/v1/attempts", "/v1/waits", "/v1/epochs/next", "/v1/epochs"),
    *("/v1/regions/restart", "/v1/queries/key/call", "/v1/batches/decided", "/v1/tokens"),
)


def answered(service: CoordinatorService, path: str, body: bytes) -> Any:
    response = urllib3.request(
        "POST",
        service.address + path,
        body=body,
        headers={
            "Authorization": f"Bearer {service.coordinator_address.token}",
            "Content-Type": "application/json",
        },
        retries=False,
        timeout=600,
    )
    assert response.status < 500 or response.status == 503, (response.status, response.data)
    found = json.loads(response.data)
    if response.status != 200:
        error = error_from_json(found["error"])
        assert type(error) is not StreamError, "a class of its own reports the client what to do"
        assert all(error.args[at] for at in (0, 2))
    return found


@_QUICK
@given(path=st.sampled_from(_PATHS), data=st.data())
def test_a_body_with_anything_in_it_is_answered(
    service: CoordinatorService, path: str, data: st.DataObject
) -> None:
    """Bodies that are whole but for one place, any JSON, and none."""
    whole = whole_bodies(service)[path]
    body = data.draw(
        st.one_of(
            mutated_json(whole).map(lambda found: json.dumps(found).encode()),
            mutated_json(whole).map(lambda found: json.dumps(found).encode()[:-3]),
            json_texts.map(str.encode),
            st.binary(max_size=30),
        )
    )
    answered(service, path, body)


@pytest.mark.parametrize("path", _PATHS)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: body | {"leader_session_id": "\ud800"},
        lambda body: body | {"wait_s": float("nan")},
        lambda body: body | {"wait_s": -1e308},
        lambda body: body | {"wait_s": float("-inf")},
        lambda body: body | {"attempt_id": 10**300},
        lambda body: body | {"payload": {"a": float("nan"), "b": "\ud800"}},
        lambda body: body | {"payload": {"\ud800": "\ud800"}},
        lambda body: body | {"epoch": {"batch": [], "ranges": {}}},
        lambda body: body | {"regions": ["\ud800"]},
    ],
    ids=[
        "surrogate",
        "nan",
        "long ago",
        "minus infinity",
        "huge",
        "payload",
        "text",
        "epoch",
        "region",
    ],
)
def test_a_body_with_one_evil_value_is_answered(
    service: CoordinatorService, path: str, spoil: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """JSON of Python's own making, which its strict writer cannot send back."""
    answered(service, path, json.dumps(spoil(whole_bodies(service)[path])).encode())


@pytest.mark.parametrize("path", _PATHS)
@pytest.mark.parametrize(
    "body",
    [b"", b"[" * 100_000, b'{"a": ' * 50_000, b"9" * 5000, b"\xff\xfe{}", b"null", b"[]"],
    ids=["none", "deep", "deep objects", "long number", "no UTF-8", "null", "list"],
)
def test_a_body_that_is_no_object_is_refused(
    service: CoordinatorService, path: str, body: bytes
) -> None:
    assert "error" in answered(service, path, body)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/", "/v1/nothing", "/v1/barrier", "/v1/queries/key"])
def test_what_does_not_exist_is_said_in_our_words(
    service: CoordinatorService, method: str, path: str
) -> None:
    response = urllib3.request(
        method,
        service.address + path,
        headers={"Authorization": f"Bearer {service.coordinator_address.token}"},
        retries=False,
        timeout=600,
    )
    assert response.status in (404, 405)
    assert json.loads(response.data)["error"]["type"] == "ConfigError"


class _Garbled(ThreadingHTTPServer):
    """Answers everything with ``status`` and ``body``."""

    status, body = 200, b""


class _Handler(BaseHTTPRequestHandler):
    def _say(self) -> None:
        server: Any = self.server
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(server.status)
        self.send_header("Content-Length", str(len(server.body)))
        self.end_headers()
        self.wfile.write(server.body)

    do_GET = do_POST = _say

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def garbled() -> Iterator[_Garbled]:
    server = _Garbled(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


_RIGHT = {
    "barrier": to_json(_BARRIER),
    "next": to_json(NextBarrier(barrier=_BARRIER)),
    "decided": True,
    "answer": {"result": {"region": "main", "attempt_id": 1, "state": "running"}},
    "error": {"type": "FencedError", "what": "w", "where": {"a": 1}, "remedy": "r"},
}
_ANSWERS = st.one_of(
    st.binary(max_size=30),
    json_texts.map(str.encode),
    mutated_json(_RIGHT).map(lambda found: json.dumps(found).encode()),
)


def asked(address: CoordinatorAddress) -> Iterator[Callable[[], object]]:
    """Every question that a client asks, with what it may be answered."""
    client = CoordinatorClient(address, deadline_s=0.0)
    attempt = RegisteredAttempt(batch=_BATCH, operator_id="o", resource="r", checkpoint_id=1)
    yield lambda: _of(client.poll_barrier("main", 0, wait_s=0.0), Barrier, type(None))
    yield lambda: _of(client.next_barrier("main", 0, wait_s=0.0, has_read=True), NextBarrier)
    yield lambda: _of(client.is_decided(_BATCH), bool)
    yield lambda: client.acknowledge_epoch(_RESULT)
    yield lambda: client.register(attempt)
    yield lambda: _of(client.status()["job"], dict, type(None))
    yield lambda: client.query("k", "c", {}, timeout_s=0.1)
    region = RemoteRegion("main", address, transfer_s=0.1)
    yield lambda: region.status(timeout_s=0.1)
    yield lambda: _of(region.stop(1, timeout_s=0.1), bool)
    yield lambda: region.register(1, timeout_s=0.1)
    client.close()
    region.close()


def _address_of(garbled: _Garbled) -> CoordinatorAddress:
    host, port = garbled.server_address[:2]
    return CoordinatorAddress(
        address=f"http://{host!s}:{port}", token="t", leader_session_id="s", job_uid="u"
    )


def _of(found: object, *kinds: type) -> None:
    assert isinstance(found, kinds)


@pytest.mark.extended
@_QUICK
@given(status=st.sampled_from([200, 200, 200, 204, 400, 409, 422, 500, 503]), body=_ANSWERS)
@example(status=200, body=b"[" * 100_000)
@example(status=200, body=b"{}")
@example(status=200, body=b'{"barrier": 1, "next": 1, "decided": "false", "answer": 1}')
@example(status=200, body=b'{"barrier": {"splits": [1]}, "next": {"barrier": 3}, "answer": {}}')
@example(status=400, body=b'{"error": {"type": "FencedError", "where": 3}}')
@example(status=200, body=b'{"answer": {"error": 3}}')
@example(status=503, body=b'{"error": {"where": [1]}}')
def test_a_garbled_answer_is_an_error_of_ours(garbled: _Garbled, status: int, body: bytes) -> None:
    garbled.status, garbled.body = status, body
    for ask in asked(_address_of(garbled)):
        with contextlib.suppress(StreamError):
            ask()


@_QUICK
@given(said=st.text(st.characters()))
@example(said="half \ud800")
def test_a_client_sends_any_text(service: CoordinatorService, said: str) -> None:
    with CoordinatorClient(service.coordinator_address) as client:
        assert client.query("key", "call", {said: said}, timeout_s=60.0) == {"call": {said: said}}


def test_a_task_reports_its_epoch_whatever_its_function_said(garbled: _Garbled) -> None:
    garbled.status, garbled.body = 200, b"{}"
    with CoordinatorClient(_address_of(garbled), deadline_s=0.0) as client:
        client.acknowledge_epoch(replace(_RESULT, examples=(("op", "half \ud800"),)))


_ENTRY = to_json(committable())
_MESSAGES = {
    "begin": {"location": "/c", "format_name": "sluice-kafka", "options": {"topic": "t"}},
    "commit": {
        "location": "/c",
        "run_id": "r",
        "batch_id": 3,
        "entries": [_ENTRY],
        "decide_by_s": 7.5,
    },
    "abort": {"location": "/c", "run_id": "r", "batch_id": 3},
    "comit": {"location": "/c", "run_id": "r", "batch_id": 3},
}


@given(call=st.sampled_from(sorted(_MESSAGES)), data=st.data())
def test_a_message_of_a_drop_in_process_is_whole_or_refused(call: str, data: st.DataObject) -> None:
    payload = data.draw(mutated_json(_MESSAGES[call]))
    try:
        message = DropInMessage.of(call, payload)
    except ConfigError:
        return
    assert call != "comit"
    assert call == "begin" or message.batch_id == payload["batch_id"]
    assert len(message.entries) == len(payload.get("entries", ()) if call == "commit" else ())


@pytest.mark.parametrize("call", ["begin", "commit", "abort"])
def test_the_right_message_of_a_drop_in_process_is_read(call: str) -> None:
    message = DropInMessage.of(call, _MESSAGES[call])
    assert message.location == "/c"
    assert message.entries == ((committable(),) if call == "commit" else ())
    assert message.decide_by_s == (7.5 if call == "commit" else None)


@pytest.mark.parametrize("said", ['"false"', "0", "1", "null", "[]", "{}"])
def test_batch_identity_only_true_says_that_a_batch_is_decided(
    garbled: _Garbled, said: str
) -> None:
    """Its records are not written again then: a word that is merely not empty is no yes."""
    with CoordinatorClient(_address_of(garbled), deadline_s=0.0) as client:
        garbled.status, garbled.body = 200, b'{"decided": true}'
        assert client.is_decided(_BATCH)
        garbled.body = f'{{"decided": {said}}}'.encode()
        with pytest.raises(StreamError):
            client.is_decided(_BATCH)
