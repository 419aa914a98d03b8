"""The coordinator over HTTP: what is asked of it, and what comes back."""

import dataclasses
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
import urllib3

from sluice.runtime.continuous.barrier_service import (
    KEYED_STATE,
    AttemptEpochs,
    BarrierService,
)
from sluice.runtime.contracts import RegionRegistration, RegisteredAttempt
from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.errors import (
    ConfigError,
    FencedError,
    StreamError,
    UnreachableError,
    WrongJobError,
)
from sluice.runtime.keyed.keyed_plan import LOADING, STATE_FILES
from sluice.runtime.service import coordinator_app
from sluice.runtime.service.coordinator_app import CoordinatorApp
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import CoordinatorClient
from tests.kit.coordinator.coordinated_service import BATCH
from tests.kit.fakes import FakeBroker
from tests.kit.threads.region_threads import RegionThread
from tests.kit.waiting import PATIENCE_S, join, wait_for

_FEW_THREADS = 4


def test_a_task_registers_and_may_repeat_it(client: CoordinatorClient) -> None:
    attempt = RegisteredAttempt(
        batch=BATCH, operator_id="sink", resource='["id", 1, 0]', checkpoint_id=1
    )
    before_s = time.monotonic()
    first_s, again_s = client.register(attempt), client.register(attempt)
    assert before_s <= first_s <= again_s <= time.monotonic(), "the coordinator's clock"
    old = dataclasses.replace(attempt, batch=dataclasses.replace(BATCH, attempt_id=-1))
    with pytest.raises(FencedError, match="restarted"):
        client.register(old)


def test_a_task_that_waits_is_heard_and_reported_when_its_attempt_is_over(
    client: CoordinatorClient, coordinator: BarrierCoordinator
) -> None:
    client.waits(BATCH, "a producer", why="no broker answers")
    client.waited(BATCH, "a producer")
    with pytest.raises(FencedError, match="is over"):
        client.waits(dataclasses.replace(BATCH, attempt_id=-1), "a producer", why="the same")
    with pytest.raises(WrongJobError):
        client.waits(dataclasses.replace(BATCH, region="of another job"), "a producer", why="")
    coordinator.cancel()
    wait_for(lambda: not coordinator.is_live("main", 0))
    with pytest.raises(FencedError, match="is over"):
        client.waits(BATCH, "a producer", why="no broker answers")
    client.waited(BATCH, "a producer")


def test_the_task_of_a_batch_that_loads_its_state_tells_of_its_progress(
    client: CoordinatorClient, coordinator: BarrierCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint does not expire meanwhile."""
    told: list[RegionRegistration] = []
    monkeypatch.setattr(coordinator, "register_region", told.append)
    for what in (KEYED_STATE, STATE_FILES, KEYED_STATE):
        client.waits(BATCH, what, why=LOADING)
    client.waited(BATCH, KEYED_STATE)
    assert [(each.region, each.attempt_id, each.replayed) for each in told] == [
        (BATCH.region, BATCH.attempt_id, 1),
        (BATCH.region, BATCH.attempt_id, 2),
    ]


def test_a_continuous_task_that_waits_before_its_first_epoch_has_its_core(
    coordinator: BarrierCoordinator,
) -> None:
    """It asks for no barrier yet, and was taken for one that Spark does not run."""
    barrier_service = BarrierService(coordinator)
    book = AttemptEpochs(region="main", attempt_id=0)
    barrier_service.open(book)
    with (
        CoordinatorService(CoordinatorApp(coordinator, barrier_service=barrier_service)) as service,
        CoordinatorClient(service.coordinator_address) as client,
    ):
        with pytest.raises(FencedError):
            client.waits(dataclasses.replace(BATCH, attempt_id=-1), "a producer", why="away")
        assert not book.heartbeat.has_begun, "by the task of another attempt"
        client.waits(BATCH, "a producer", why="away")
        assert book.heartbeat.has_begun


def test_status_shows_the_job(client: CoordinatorClient) -> None:
    """Ids, state, positions; for people and dashboards."""
    assert wait_for(lambda: client.poll_barrier("main", 0, wait_s=0.2))
    job = client.status()["job"]
    assert job["state"] == "running"
    assert job["pending"][0]["state"] == "aligning"
    assert job["regions"][0]["splits"] == {"input-0": 5}


def test_metrics_count_checkpoints(
    service: CoordinatorService, coordinator: BarrierCoordinator, broker: FakeBroker
) -> None:
    region = RegionThread(coordinator, broker).start()

    def text() -> str:
        token = service.coordinator_address.token
        response = urllib3.request(
            "GET", f"{service.address}/metrics", headers={"Authorization": f"Bearer {token}"}
        )
        return response.data.decode()

    wait_for(lambda: "sluice_checkpoints_committed_total 1.0" in text(), poll_s=0.01)
    assert "sluice_offsets_committed_total 5.0" in text()
    assert 'sluice_checkpoint_seconds_count{stage="decided"} 1.0' in text()
    coordinator.cancel()
    region.stop()


class _Handler:
    """A mounted handler that waits when reported."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.entered = threading.Semaphore(0)
        self.leave = threading.Event()

    def call(self, call: str, payload: Mapping[str, Any]) -> Any:
        """See `sluice.runtime.service.coordinator_app.QueryHandler`."""
        self.calls.append((call, payload))
        if call == "wait":
            self.entered.release()
            assert self.leave.wait(300)
        if call == "divide":
            raise ZeroDivisionError
        if call == "fail":
            raise WrongJobError("another job", {"uid": "x"}, "Choose.")
        if call == "unreachable":
            raise UnreachableError("no broker answered", {"servers": "x:1"}, "Start them.")
        return {"batch": payload.get("batch")}


def test_a_drop_in_query_reaches_its_handler() -> None:
    handler = _Handler()
    with CoordinatorService() as service:
        service.mount("key", handler)
        with CoordinatorClient(service.coordinator_address) as client:
            assert client.query("key", "commit", {"batch": 7}, timeout_s=120.0) == {"batch": 7}
            with pytest.raises(WrongJobError, match="uid=x"):
                client.query("key", "fail", {}, timeout_s=120.0)
            with pytest.raises(ConfigError, match="mounted=key"):
                client.query("other", "commit", {}, timeout_s=120.0)
            assert client.status()["queries"] == ["key"]
    assert handler.calls[0] == ("commit", {"batch": 7})


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        ("unreachable", UnreachableError, "servers=x:1"),
        ("divide", StreamError, "error=ZeroDivisionError"),
    ],
)
def test_a_drop_in_query_is_reported_at_once_what_its_handler_met(
    call: str, kind: type[StreamError], says: str
) -> None:
    """It has waited for what it could not reach already, and bad input would take minutes; what it
    did not expect would be "the coordinator did not answer", with the cause in a log."""
    handler = _Handler()
    with CoordinatorService() as service:
        service.mount("key", handler)
        with (
            CoordinatorClient(service.coordinator_address) as client,
            pytest.raises(kind, match=says),
        ):
            client.query("key", call, {}, timeout_s=300.0)
    assert len(handler.calls) == 1


def test_status_and_refusals_are_answered_while_every_thread_waits(
    coordinator: BarrierCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_app, "_THREADS", _FEW_THREADS)
    handler = _Handler()
    with CoordinatorService(coordinator) as service:
        service.mount("key", handler)
        address = service.coordinator_address
        waiting = [
            threading.Thread(
                target=lambda: CoordinatorClient(address).query("key", "wait", {}, timeout_s=300.0)
            )
            for _ in range(_FEW_THREADS)
        ]
        for thread in waiting:
            thread.start()
        for _ in waiting:
            assert handler.entered.acquire(timeout=PATIENCE_S)
        try:
            assert CoordinatorClient(address).status()["job"]["state"] == "running"
            assert _refusals(service) == [401, 404, 422]
        finally:
            handler.leave.set()
        join(*waiting)


def _refusals(service: CoordinatorService) -> list[int]:
    token = {"Authorization": f"Bearer {service.coordinator_address.token}"}
    asked = (("/v1/barrier", {}), ("/v1/nothing", token), ("/v1/barrier", token))
    return [
        urllib3.request(
            "POST", service.address + path, headers=headers, body=b"{}", timeout=60, retries=False
        ).status
        for path, headers in asked
    ]
