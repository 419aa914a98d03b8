"""The driver's client for transactions, played: what each request is answered, or how it fails."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.wire_client import WireClient
from sluice.connectors.kafka.sink.committer import kafka_wire as transaction_wire
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.handles import TransactionIdentity

CONNECTION = KafkaConnection(bootstrap_servers="fake:9092")
OURS = TransactionIdentity(transactional_id="p/j/r.1/o/0", producer_id=7, producer_epoch=3)


def said(**fields: Any) -> SimpleNamespace:
    """A response, or a part of one."""
    return SimpleNamespace(**fields)


def _described(request: Any) -> Any:
    return said(
        transaction_states=[
            said(
                transactional_id=name,
                error_code=0,
                transaction_state="Ongoing",
                producer_id=OURS.producer_id,
                producer_epoch=OURS.producer_epoch,
                transaction_timeout_ms=60_000,
                transaction_start_time_ms=-1,
                topics=[],
            )
            for name in request.transactional_ids
        ]
    )


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "FindCoordinatorRequest": lambda request: said(
        coordinators=[said(key=key, node_id=1, error_code=0) for key in request.coordinator_keys]
    ),
    "DescribeTransactionsRequest": _described,
    "ApiVersionsRequest": lambda _: said(error_code=0, finalized_features=()),
    "EndTxnRequest": lambda _: said(error_code=0),
}


@dataclass
class PlayedClient:
    """A connected client, and what a call sees of it (`Net`).

    Attributes:
        failing: requests of these kinds fail so, each time.
        refusing: the first request of such a kind needs a log-in, which fails so; from then on the
            client refuses all, as kafka-python's do.
        pauses: tries for which a call has time after its first one.
    """

    failing: Mapping[str, Exception] = field(default_factory=dict)
    refusing: Mapping[str, Exception] = field(default_factory=dict)
    pauses: int = 0
    refused: BaseException | None = None
    unreached: bool = False
    closed: bool = False

    def run(self, coroutine: Callable[[], Awaitable[Any]], deadline: float) -> Any:
        """See `WireClient.run`."""
        self.unreached = False

        async def running() -> Any:
            return await coroutine()

        return asyncio.run(running())

    def close(self) -> None:
        """See `WireClient.close`."""
        self.closed = True

    async def send(self, request: Any, node_id: int | None = None) -> Any:
        """See `Net.send`."""
        kind = type(request).__name__
        self.refused = self.refused or self.refusing.get(kind)
        if self.refused is not None:
            raise self.refused
        if kind in self.failing:
            raise self.failing[kind]
        return ANSWERS[kind](request)

    def begin(self, coroutine: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
        """See `Net.begin`."""
        return coroutine()

    async def pause(self) -> bool:
        """See `Net.pause`."""
        self.pauses -= 1
        return self.pauses >= 0


Made = Callable[..., TransactionWire]


@pytest.fixture
def wire_over(monkeypatch: pytest.MonkeyPatch) -> Made:
    """A wire that connects by these, one after the other; an error: it cannot."""

    def made(*clients: PlayedClient | Exception) -> TransactionWire:
        left = list(clients)

        def connect(settings: object, deadline: float) -> PlayedClient:
            found = left.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(WireClient, "connect", connect)
        monkeypatch.setattr(transaction_wire, "Net", lambda client, deadline: client)
        return TransactionWire(CONNECTION)

    return made
