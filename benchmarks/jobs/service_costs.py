"""The cost of a message to the coordinator: processor time of the driver's and of the client's
process. A continuous region sends four messages in each epoch."""

import multiprocessing
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.measuring.figures import Figure
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.service.listening.service_settings import ServiceSettings
from sluice.runtime.service.server import CoordinatorService
from sluice.runtime.service.service_client import CoordinatorAddress, CoordinatorClient

__all__ = ["measure"]

_WARM, _MESSAGES = 300, 3_000
_TIMEOUT_S = 30.0
_KEY = "key"
# About as long as a task's report of its transaction.
_PAYLOAD = {"region": "main", "attempt_id": 1, "batch_id": 17, "resource": "x" * 80}


class _Answering:
    """Implements `sluice.runtime.service.coordinator_app.QueryHandler`."""

    def call(self, call: str, payload: Mapping[str, Any]) -> object:
        """An answer like that to a registration."""
        del call, payload
        return {"registered_s": 12345.678}


def measure(*, repeat: int) -> list[Figure]:
    """Messages of one client, one after the other, to a service in a process of its own; without
    and with TLS."""
    return [*_figures(repeat, tls=False), *_figures(repeat, tls=True)]


def _figures(repeat: int, *, tls: bool) -> list[Figure]:
    listener = Listener.of(ServiceSettings(tls=tls))
    with CoordinatorService(listener=listener) as service:
        service.mount(_KEY, _Answering())
        _measure_messages(service.coordinator_address, _WARM)
        turns = [_measure_messages(service.coordinator_address, _MESSAGES) for _ in range(repeat)]
    sides = ("the driver", "the task")
    return [
        Figure(
            what=f"a message to the coordinator{', TLS' if tls else ''}: {side}",
            runs=[1000 * turn[at] for turn in turns],
            unit="ms",
            note="processor time",
        )
        for at, side in enumerate(sides)
    ]


def _measure_messages(address: CoordinatorAddress, messages: int) -> tuple[float, float]:
    """Seconds of processor time of a message: this process's, and the client's."""
    own_s = time.process_time()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        client_s = pool.apply(_send_messages, (address, messages))
    return (time.process_time() - own_s) / messages, client_s


def _send_messages(address: CoordinatorAddress, messages: int) -> float:
    with CoordinatorClient(address) as client:
        client.query(_KEY, "register", _PAYLOAD, timeout_s=_TIMEOUT_S)  # connected from here on
        began_s = time.process_time()
        for _ in range(messages):
            client.query(_KEY, "register", _PAYLOAD, timeout_s=_TIMEOUT_S)
        return (time.process_time() - began_s) / messages
