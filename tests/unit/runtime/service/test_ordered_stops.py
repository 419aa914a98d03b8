"""Stops in order, and calls that the service does not answer."""

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3
import uvicorn
from urllib3.connection import HTTPConnection
from urllib3.exceptions import NameResolutionError, ProtocolError, SSLError

from sluice.runtime.continuous.checkpoint_client import CheckpointClient
from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.coordinator.policy.checkpoint_plan import (
    CheckpointSettings,
    JobPlan,
    RegionPlan,
)
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.coordinator.shell.core_loop import CoreLoop
from sluice.runtime.coordinator.shell.run_threads import Housekeeper, RunThreads
from sluice.runtime.errors import (
    ConfigError,
    CoordinatorLostError,
    MissingRequirementError,
    RegionUnansweredError,
    StreamError,
    UnreachableError,
    WaitedTooLongError,
    WrongServiceError,
)
from sluice.runtime.service import http_thread
from sluice.runtime.service.remote_region import RemoteRegion
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient
from sluice.runtime.service.unanswered_calls import no_connection
from tests.kit.coordinator.coordinated_service import started_service
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.coordinator.region_queries import ThreadQuery
from tests.kit.drop_in_simulation import World
from tests.kit.fakes import FakeBroker, FakeSink, FakeSource
from tests.kit.waiting import PATIENCE_S, wait_for


class _Sink(FakeSink):
    closes = 0

    def close(self) -> None:
        self.closes += 1
        raise RuntimeError("the sink's client does not close")


class _Source(FakeSource):
    closes = 0

    def close(self) -> None:
        self.closes += 1


class _Listener:
    """It has a thread of its own."""

    def on_progress(self, progress: Progress) -> None:
        """See `ProgressListener`."""


def _job() -> tuple[BarrierCoordinator, _Sink, _Source]:
    sink, source = _Sink(FakeBroker()), _Source("source", {0: 5})
    plan = RegionPlan(name="main", source_ids=("source",), sink_ids=("sink",))
    coordinator = BarrierCoordinator(
        JobPlan(name="job", regions=(plan,)),
        FakeStore(),
        sinks={"sink": sink},
        sources={"source": source},
        settings=CheckpointSettings(interval_s=0.01),
        listeners=(_Listener(),),
    )
    coordinator.start(300.0)
    return coordinator, sink, source


def _of_sluice() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("sluice")}


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Housekeeper, "stop"),
        (RunThreads, "_settle_last"),
        (RunThreads, "cancel"),
        (CoreLoop, "stop"),
    ],
)
def test_a_coordinator_that_cannot_stop_one_part_stops_all_others(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _of_sluice()
    coordinator, sink, source = _job()
    assert _of_sluice() > before
    real = getattr(owner, name)

    def broken(self: object, *args: object, **words: object) -> None:
        real(self, *args, **words)
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        coordinator.stop()
    assert (sink.closes, source.closes) == (1, 1)
    wait_for(lambda: _of_sluice() <= before, what="the end of all threads")
    coordinator.stop()  # repeatable, also after a failure
    assert (sink.closes, source.closes) == (1, 1)


def _require_free(port: int) -> None:
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))


def test_a_service_that_does_not_start_leaves_no_port_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    service = CoordinatorService()
    port = int(service.address.rpartition(":")[2])
    with pytest.raises(MissingRequirementError, match="did not start"):
        service.start()
    _require_free(port)


def test_a_service_that_is_slow_to_start_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def run(self: uvicorn.Server, sockets: object) -> None:
        while not self.should_exit:
            ended.wait(0.01)
        ended.set()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr(http_thread, "_START_S", 0.05)
    service = CoordinatorService()
    port = int(service.address.rpartition(":")[2])
    with pytest.raises(WaitedTooLongError, match=r"does not answer yet.*waited_s=0\.05"):
        service.start()
    assert ended.wait(PATIENCE_S)
    _require_free(port)


def test_a_drop_in_query_that_is_not_served_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator would renew the lease for ever, and refuse the next start."""
    world = World(tmp_path)
    try:
        before = _of_sluice()

        def refused(self: CoordinatorService, coordinator: object) -> None:
            raise MissingRequirementError("no thread is left", {}, "End others.")

        with monkeypatch.context() as patch:
            patch.setattr(CoordinatorService, "serve_run", refused)
            with pytest.raises(MissingRequirementError, match="no thread is left"):
                world.begin()
        wait_for(lambda: _of_sluice() <= before, what="the end of its threads")
        assert world.begin().run_id == world.query.runId
    finally:
        world.close()


class _Attempt(ThreadQuery):
    """One that cannot be reported its stop."""

    def __init__(self) -> None:
        self.stops = 0

    @property
    def is_active(self) -> bool:
        return self.stops == 0

    def prepare_stop(self) -> None:
        raise RuntimeError("its JVM is gone")

    def stop(self) -> None:
        self.stops += 1

    def failure(self) -> BaseException | None:
        return None


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


def test_a_request_that_is_taken_and_not_answered_is_a_wait() -> None:
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
    found = no_connection(error, address="http://h:1", path="/p", timeout_s=1.0)
    with pytest.raises(UnreachableError, match=says):
        raise found


@pytest.mark.parametrize("address", ["", "driver:99", "http://[::1", "ftp://h:1", "http://h:port"])
def test_what_is_no_address_is_refused_at_once(address: str) -> None:
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
        (200, WrongServiceError, "not come from a coordinator"),
        (302, WrongServiceError, "location=http://login/"),
        (404, WrongServiceError, "not come from a coordinator"),
        (401, WrongServiceError, "a proxy or another service requires credentials"),
        (407, WrongServiceError, "a proxy or another service requires credentials"),
        (502, UnreachableError, "a proxy answers instead of the coordinator"),
    ],
)
def test_the_page_of_a_proxy_is_reported_as_that(
    status: int, kind: type[StreamError], says: str
) -> None:
    headers = {"Content-Type": "text/html", "Location": "http://login/"}
    with _answering(status, _HTML, headers) as address:
        error = _status(_at(address))
    assert isinstance(error, kind)
    assert says in str(error)
    assert f"status={status} content_type=text/html server=BaseHTTP" in str(error)
    assert "Sign in" not in str(error)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"type": "security_exception", "reason": "no credentials"}, "status": 401},
        {"error": {"code": 404}},
        {"error": "not found"},
        {"status": "UP"},
    ],
)
@pytest.mark.parametrize("status", [200, 401, 404])
def test_the_json_of_another_service_is_none_of_ours(body: dict[str, Any], status: int) -> None:
    """A leader ended, and its port is used again: a task waits for the next leader."""
    headers = {"Content-Type": "application/json"}
    with (
        _answering(status, json.dumps(body).encode(), headers) as address,
        CoordinatorClient(_at(address), deadline_s=0.05) as client,
    ):
        with pytest.raises(WrongServiceError):
            client.savepoints()
        remote = RemoteRegion("main", _at(address))
        with pytest.raises(RegionUnansweredError):
            remote.status(timeout_s=0.05)
        remote.close()


def test_a_task_asks_another_service_with_pauses() -> None:
    """Its answer comes at once, and so would the next request."""
    began_s, tries = time.monotonic(), 0

    def is_needed() -> bool:
        nonlocal tries
        tries += 1
        return time.monotonic() - began_s < 1.0

    with (
        started_service() as service,
        CoordinatorClient(_at(service.address), deadline_s=0.0) as link,
    ):
        client = CheckpointClient(link, "main", 0, lost_timeout_s=60.0)
        assert client.call(link.status, is_needed=is_needed) is None
    assert tries < 40


def test_a_task_that_gives_up_says_what_it_heard_last() -> None:
    with (
        started_service() as service,
        CoordinatorClient(_at(service.address), deadline_s=0.0) as link,
    ):
        client = CheckpointClient(link, "main", 0, lost_timeout_s=0.2)
        with pytest.raises(CoordinatorLostError, match="wrong token"):
            client.call(link.status, is_needed=lambda: True)
