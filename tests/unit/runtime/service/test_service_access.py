"""The service's address, access, wire format and values."""

import contextlib
import dataclasses
import logging
import socket
import subprocess
import sys
import threading

import pytest
import urllib3

from sluice.runtime import errors
from sluice.runtime.contracts import RegionAttempt
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.errors import (
    ConfigError,
    FencedError,
    MissingRequirementError,
    StreamError,
    UnreachableError,
    WrongServiceError,
)
from sluice.runtime.model.checkpoint_record import (
    RegionRecord,
    RegionStatus,
    StateSnapshot,
)
from sluice.runtime.model.json_values import from_json, to_json
from sluice.runtime.model.splits import Barrier
from sluice.runtime.model.state.file_reference import FileReference
from sluice.runtime.service.coordinator_app import CoordinatorApp
from sluice.runtime.service.error_json import error_from_json, error_to_json
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.service.page.live_job import LiveJob
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import CoordinatorClient, fetch_issued_token
from sluice.runtime.storage.delegation_tokens import DelegationToken, DriverTokens, IssuedToken
from tests.kit.coordinator.coordinated_service import BATCH
from tests.kit.coordinator.core_driver import committable, split
from tests.kit.waiting import PATIENCE_S, join


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"token": "guessed"}, WrongServiceError),
        ({"leader_session_id": "an older run"}, FencedError),
        ({"job_uid": "another job"}, FencedError),
    ],
)
def test_only_who_belongs_to_this_run_is_answered(
    service: CoordinatorService, wrong: dict[str, str], error: type[StreamError]
) -> None:
    address = dataclasses.replace(service.coordinator_address, **wrong)
    with CoordinatorClient(address) as client, pytest.raises(error):
        client.poll_barrier("main", 0, wait_s=0.0)


def test_only_tasks_get_a_delegation_token(service: CoordinatorService) -> None:
    """The token for people gives none."""
    token = DelegationToken(text="secret", obtained_ms=0, expires_ms=1 << 62)
    name = DriverTokens(lambda: token).name
    found = fetch_issued_token(service.coordinator_address, name)
    assert found == IssuedToken(token=token)
    with pytest.raises(WrongServiceError):
        fetch_issued_token(service.command_address, name)
    with pytest.raises(ConfigError, match="no such delegation token"):
        fetch_issued_token(service.coordinator_address, "other")


@pytest.mark.parametrize("path", ["/v1/status", "/metrics"])
def test_nothing_is_shown_without_the_token(service: CoordinatorService, path: str) -> None:
    response = urllib3.request("GET", f"{service.address}{path}")
    assert response.status == 401


def connected(service: CoordinatorService) -> socket.socket:
    host, _, port = service.address.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def test_who_has_no_token_is_answered_before_the_body(service: CoordinatorService) -> None:
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
    more = b"a: b\r\n" * 20_000 if start.endswith(b"1.1\r\n") else b"a" * 120_000
    with connected(service) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(start + more)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400 ")
        assert connection.recv(1 << 16) == b""


def test_peoples_token_is_good_for_no_message_whatever_the_host_is_called(
    service: CoordinatorService,
) -> None:
    token = service.command_address.token
    head = f"POST /v1/barrier HTTP/1.1\r\nHost: y/v1/status?\r\nAuthorization: Bearer {token}\r\n"
    with connected(service) as connection:
        connection.sendall(f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 401 ")


def test_peoples_token_shows_the_job(coordinator: BarrierCoordinator) -> None:
    shown = LiveJob(coordinator, checkpoint_uri="file:///checkpoints")
    with (
        CoordinatorService(CoordinatorApp(coordinator, pages=shown)) as service,
        CoordinatorClient(service.command_address, deadline_s=300.0) as client,
    ):
        (summary,) = client.jobs()
        assert summary["job_uid"] == service.command_address.job_uid
        assert client.job()["status"]["state"] == "running"
        assert client.history(checkpoints=1)["checkpoints"] == []
        for path in ("/v1/jobs", f"/v1/jobs/{summary['job_uid']}/history"):
            assert urllib3.request("GET", service.address + path).status == 401


def test_the_token_is_in_no_repr_and_no_error(service: CoordinatorService) -> None:
    address = service.coordinator_address
    assert address.token not in repr(address)
    with (
        CoordinatorClient(dataclasses.replace(address, job_uid="x")) as client,
        pytest.raises(FencedError) as caught,
    ):
        client.poll_barrier("main", 0, wait_s=0.0)
    assert address.token not in str(caught.value)


def test_the_service_listens_on_loopback_unless_reported(service: CoordinatorService) -> None:
    assert service.address.startswith("http://127.0.0.1:")


def test_a_message_of_another_version_is_refused_by_name(service: CoordinatorService) -> None:
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
    caplog.clear()
    watched = caplog.at_level(logging.WARNING, "sluice.runtime.service.http_thread")
    with watched, CoordinatorService(listener=Listener.open(host, range(1))):
        return [record.getMessage() for record in caplog.records]


def test_a_service_that_others_reach_says_that_nothing_is_encrypted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (warning,) = warned_of(caplog, "0.0.0.0")
    assert warning.startswith("service listens beyond this machine, without TLS: address=http://")
    assert "docs/guide/security.md" in warning


@pytest.mark.parametrize("name", sorted(set(errors.__all__)))
def test_every_error_crosses_as_itself(name: str) -> None:
    """Class, text and place; what JSON cannot hold becomes text."""
    kind = getattr(errors, name)
    sent = kind("what happened", {"batch": BATCH, "count": 3, "none": None}, "What to do.")
    got = error_from_json(error_to_json(sent))
    assert type(got) is kind
    assert str(got) == str(sent)


def test_an_error_of_a_later_version_is_still_an_error() -> None:
    got = error_from_json({"type": "Future", "what": "a", "where": {}, "remedy": "b"})
    assert type(got) is StreamError


def test_the_client_is_light() -> None:
    """Every Python worker imports it: no server, no Spark, no Kafka client."""
    code = (
        "import sys; import sluice.runtime.service.service_client; "
        "import sluice.runtime.service.drop_in_client; "
        "print([m for m in ('starlette','uvicorn','httptools','pyspark',"
        "'confluent_kafka','kafka','prometheus_client','fastavro') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert found.stdout.strip() == "[]"


def test_a_coordinator_that_does_not_answer_ends_no_wait(service: CoordinatorService) -> None:
    """It is the brokers that are waited for; how long it may be silent others know."""
    with CoordinatorClient(service.coordinator_address) as client:
        service.stop()
        client.waits(BATCH, "a producer", why="no broker answers")
        client.waited(BATCH, "a producer")


def test_a_client_asks_until_it_is_answered(coordinator: BarrierCoordinator) -> None:
    """The service may come up after the first try."""
    service = CoordinatorService(coordinator)
    answers: list[Barrier | None] = []
    client = CoordinatorClient(service.coordinator_address)
    thread = threading.Thread(
        target=lambda: answers.append(client.poll_barrier("main", 0, wait_s=0.2))
    )
    thread.start()
    with service:
        join(thread)
    client.close()
    assert len(answers) == 1


def test_not_yet_is_tried_again_and_named_at_the_end() -> None:
    """A service without a job answers that, not silence."""
    with CoordinatorService() as service:
        address = service.coordinator_address
        with (
            CoordinatorClient(address, deadline_s=0.3) as client,
            pytest.raises(UnreachableError, match="this service has no coordinator"),
        ):
            client.poll_barrier("main", 0, wait_s=0.0)


def test_an_occupied_port_is_one_clear_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MissingRequirementError, match=f"port={port}"):
            Listener.open("127.0.0.1", range(port, port + 1))


def test_a_stop_may_be_repeated(service: CoordinatorService) -> None:
    service.stop()
    service.stop()
    with (
        CoordinatorClient(service.coordinator_address, deadline_s=0.1) as client,
        pytest.raises(UnreachableError),
    ):
        client.status()


STATE = StateSnapshot(
    provider="rocksdb",
    checkpoint_format_version=2,
    state_version=4,
    state_partitions=3,
    operators=((0, "dedup"), (1, "windows")),
    location="spark/main/state",
    files=(FileReference(path="a/b", length_bytes=3, sha256="0" * 64),),
)
RECORD = RegionRecord(
    region="main",
    attempt_id=3,
    status=RegionStatus.SKIPPED,
    snapshot_id=2,
    batch_id=None,
    splits=(split(0, 3, 5), split(1, 0, 0)),
    state=STATE,
    operator_states=(committable("\u00ff held"),),
)
LIFE = RegionAttempt(attempt_id=7, restored=RECORD, after=4)


@pytest.mark.parametrize(
    ("field", "wrong", "error"),
    [
        ("attempt_id", "7", TypeError),
        ("attempt_id", -1, ConfigError),
        ("unknown", 1, LookupError),
        ("restored", None, TypeError),
    ],
)
def test_what_is_not_such_a_value_is_refused(
    field: str, wrong: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        from_json(RegionAttempt, to_json(LIFE) | {field: wrong})
