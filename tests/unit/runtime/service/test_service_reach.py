"""A service that is not up, not ready, or stopped: how long a client asks, and what it is reported."""

import socket
import threading
import time

import pytest

from sluice.runtime.coordinator.shell.coordinator import BarrierCoordinator
from sluice.runtime.embedded.ports import free_ports
from sluice.runtime.errors import MissingRequirementError, UnreachableError
from sluice.runtime.model.splits import Barrier
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient
from tests.kit.coordinator.coordinated_service import BATCH
from tests.kit.waiting import join


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


def test_a_client_gives_up_at_its_deadline() -> None:
    """With a typed error that names the address."""
    (port,) = free_ports(1)
    address = CoordinatorAddress(
        address=f"http://127.0.0.1:{port}", token="t", leader_session_id="s", job_uid="u"
    )
    before_s = time.monotonic()
    with (
        CoordinatorClient(address, deadline_s=0.3) as client,
        pytest.raises(UnreachableError, match=str(port)),
    ):
        client.poll_barrier("main", 0, wait_s=0.0)
    assert time.monotonic() - before_s < 300.0


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
    """With host and port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MissingRequirementError, match=f"port={port}"):
            CoordinatorService(port=port)


def test_a_stop_may_be_repeated(service: CoordinatorService) -> None:
    """And ends the address."""
    service.stop()
    service.stop()
    with (
        CoordinatorClient(service.coordinator_address, deadline_s=0.1) as client,
        pytest.raises(UnreachableError),
    ):
        client.status()
