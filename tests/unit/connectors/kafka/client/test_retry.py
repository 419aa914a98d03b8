"""Lookups at brokers: deadlines, retries, durations, and what a closed client leaves."""

import asyncio
import gc
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.retry import CompletionRetry
from sluice.connectors.kafka.client.wire_client import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    MetadataRequest,
    Net,
    WireClient,
    kafka_errors,
)
from sluice.connectors.kafka.sink.committer.transaction_listing import list_transactions
from sluice.connectors.kafka.sink.committer.wire_answers import id_for_each_partition, partition_of
from sluice.connectors.kafka.source.enumerator import leader_epochs as epoch_lookup
from sluice.connectors.kafka.source.enumerator.leader_epochs import EpochRequest
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.runtime.errors import AuthenticationError, UnreachableError
from tests.kit.kafka.played_wire import CONNECTION, PlayedClient, said
from tests.kit.source.fake_source_cluster import FakeClock


@pytest.mark.parametrize("missing_for", [0, 1, 3])
def test_a_lookup_is_repeated_until_nothing_is_missing(missing_for: int) -> None:
    clock, missing = FakeClock(), ["a"] * missing_for
    retry = CompletionRetry(clock, clock.pass_time)

    def find() -> tuple[int, list[str]]:
        return len(missing), [missing.pop()] if missing else []

    assert retry.until_complete(find) == (0, [])


def test_a_client_that_is_closed_in_a_handshake_leaves_no_socket_open() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        warnings.catch_warnings(record=True, action="always") as told,
    ):
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        connection = KafkaConnection.of(
            {"kafka.bootstrap.servers": server, "kafka.security.protocol": "SSL"}
        )
        with pytest.raises(kafka_errors.KafkaError):
            WireClient.connect(connection.wire(), time.monotonic() + 0.5)
        gc.collect()
    assert [str(each.message) for each in told if each.category is ResourceWarning] == []


_NOT_COORDINATOR, _NOT_FOUND = 16, 105
_PARTITIONS = 50


def test_each_partition_has_an_id_of_the_prefix() -> None:
    ids = id_for_each_partition("prefix/job/", _PARTITIONS)

    assert all(one.startswith("prefix/job/") for one in ids)
    assert [partition_of(one, _PARTITIONS) for one in ids] == list(range(_PARTITIONS))


class _Broker:
    """One broker that leads the whole log; ``loaded`` says what it knows, a call at a time."""

    def __init__(self, *loaded: bool) -> None:
        self._loaded: Iterator[bool] = iter(loaded)

    async def send(self, request: object, _node_id: int | None = None) -> SimpleNamespace:
        match request:
            case MetadataRequest():
                rows = [
                    SimpleNamespace(partition_index=index, leader_id=1)
                    for index in range(_PARTITIONS)
                ]
                return SimpleNamespace(
                    error_code=0,
                    brokers=[SimpleNamespace(node_id=1)],
                    topics=[SimpleNamespace(error_code=0, partitions=rows)],
                )
            case DescribeTransactionsRequest():
                answer = _NOT_FOUND if next(self._loaded) else _NOT_COORDINATOR
                asked: list[str] = cast(Any, request).transactional_ids
                states = [
                    SimpleNamespace(
                        transactional_id=one, error_code=_NOT_FOUND if number else answer
                    )
                    for number, one in enumerate(asked)
                ]
                return SimpleNamespace(transaction_states=states)
            case ListTransactionsRequest():
                return SimpleNamespace(error_code=0, transaction_states=[])
        raise AssertionError(request)


@pytest.mark.parametrize(
    ("loaded", "missing"),
    [
        ((True, True), ()),
        ((False, True), ("broker 1",)),
        ((True, False), ("broker 1",)),
        ((False, False), ("broker 1",)),
    ],
)
def test_wait_for_all_brokers_a_listing_is_not_complete_while_its_broker_has_not_loaded_all(
    loaded: tuple[bool, bool], missing: tuple[str, ...]
) -> None:
    """One partition is enough, before or after: the broker itself answers without an error."""
    listing = asyncio.run(list_transactions(cast(Net, _Broker(*loaded)), "prefix/", []))

    assert listing.transactions == ()
    assert listing.missing == missing


_FIRST, _SECOND = ("orders", 0), ("orders", 1)
_QUESTION = EpochRequest(leader_epoch=3, current_leader_epoch=5)

Answer = tuple[type[kafka_errors.KafkaError] | None, int]
Ask = Callable[..., Mapping[PartitionKey, int]]


class _Leaders(PlayedClient):
    """Brokers 1 and 2, of which each leads one partition.

    Attributes:
        leaders: by partition, for the first look; after it the last one stays.
        answers: to the questions about a partition; the last one again and again.
        asked: broker, partition and the present leader's epoch of each question.
    """

    def __init__(
        self,
        answers: Mapping[PartitionKey, Sequence[Answer]],
        *,
        leaders: Sequence[Mapping[PartitionKey, int]] = ({_FIRST: 1, _SECOND: 2},),
        **played: Any,
    ) -> None:
        super().__init__(pauses=3, **played)
        self._answers = {key: list(each) for key, each in answers.items()}
        self._leaders = list(leaders)
        self.asked: list[tuple[int | None, int, int]] = []

    async def _later(self, answer: Any) -> Any:
        return answer

    def send(self, request: Any, node_id: int | None = None) -> Any:
        if type(request).__name__ == "MetadataRequest":
            return self._later(self._looked())
        return self._later(said(topics=[self._told(topic, node_id) for topic in request.topics]))

    def _looked(self) -> object:
        leaders = self._leaders.pop(0) if len(self._leaders) > 1 else self._leaders[0]
        partitions = [
            said(partition_index=partition, leader_id=leader)
            for (_, partition), leader in leaders.items()
        ]
        return said(topics=[said(name="orders", partitions=partitions)])

    def _told(self, topic: Any, node_id: int | None) -> object:
        found = []
        for each in topic.partitions:
            self.asked.append((node_id, each.partition, each.current_leader_epoch))
            left = self._answers[topic.topic, each.partition]
            error, end = left.pop(0) if len(left) > 1 else left[0]
            code = 0 if error is None else error.errno
            found.append(said(partition=each.partition, error_code=code, end_offset=end))
        return said(topic=topic.topic, partitions=found)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """The question about these partitions, to those brokers."""

    def asked(client: _Leaders, *keys: PartitionKey) -> Mapping[PartitionKey, int]:
        monkeypatch.setattr(WireClient, "connect", lambda *_: client)
        monkeypatch.setattr(epoch_lookup, "Net", lambda client, _: client)
        return epoch_lookup.fetch_epoch_ends(
            CONNECTION, dict.fromkeys(keys, _QUESTION), timeout_s=1
        )

    return asked


def test_each_leader_is_asked_for_its_own_and_who_knows_nothing_is_left_out(ask: Ask) -> None:
    client = _Leaders({_FIRST: [(None, 7)], _SECOND: [(None, -1)]})
    assert ask(client, _FIRST, _SECOND) == {_FIRST: 7}
    assert client.asked == [(1, 0, 5), (2, 1, 5)]
    assert client.closed


@pytest.mark.parametrize(
    "error", [kafka_errors.NotLeaderForPartitionError, kafka_errors.UnknownLeaderEpochError]
)
def test_an_error_is_no_answer(ask: Ask, error: type[kafka_errors.KafkaError]) -> None:
    client = _Leaders({_FIRST: [(error, -1), (error, -1), (None, 7)]})
    assert ask(client, _FIRST) == {_FIRST: 7}
    assert client.asked == [(1, 0, 5)] * 3


def test_a_newer_leader_than_the_one_that_was_seen_is_asked_under_its_own_epoch(ask: Ask) -> None:
    """And only of its own partition; what the other one reported is asked once more."""
    fenced = kafka_errors.FencedLeaderEpochError
    client = _Leaders({_FIRST: [(fenced, -1), (fenced, -1), (None, 7)], _SECOND: [(None, 9)]})
    assert ask(client, _FIRST, _SECOND) == {_FIRST: 7, _SECOND: 9}
    assert [at for _, partition, at in client.asked if partition == 0] == [5, 6, 7]
    assert {at for _, partition, at in client.asked if partition == 1} == {5}


def test_a_partition_without_a_leader_is_asked_for_when_it_has_one(ask: Ask) -> None:
    client = _Leaders({_FIRST: [(None, 7)]}, leaders=[{_FIRST: -1}, {_FIRST: 2}])
    assert ask(client, _FIRST) == {_FIRST: 7}
    assert client.asked == [(2, 0, 5)]


def test_what_stays_so_until_time_is_up_is_said(ask: Ask) -> None:
    client = _Leaders({_FIRST: [(kafka_errors.NotLeaderForPartitionError, -1)]})
    with pytest.raises(UnreachableError, match="NotLeaderForPartitionError"):
        ask(client, _FIRST)
    assert len(client.asked) == 4
    assert client.closed


def test_who_may_not_ask_is_reported_so_at_once(ask: Ask) -> None:
    client = _Leaders({_FIRST: [(kafka_errors.TopicAuthorizationFailedError, -1)]})
    with pytest.raises(AuthenticationError, match=r"TopicAuthorizationFailedError.*DESCRIBE"):
        ask(client, _FIRST)
    assert len(client.asked) == 1
