"""Which client sends the driver's requests, and producers that wait for a bounded time."""

import logging
import time
from collections.abc import Mapping
from typing import Any

import pytest

from sluice.connectors.kafka.client.confluent import KafkaError, KafkaException
from sluice.connectors.kafka.client.wire_client import WireClient, kafka_errors
from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import EndOutcome, TransactionState
from sluice.connectors.kafka.sink.producers.producer_errors import UnansweredError
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.runtime.contracts import CommitOutcome
from sluice.runtime.errors import (
    AuthenticationError,
    DeliveryError,
    FencedError,
    TransactionAbortedError,
    UnreachableError,
)
from tests.kit.fakes import ManualClock
from tests.kit.kafka.fake_producer import FakeClient, FakeCluster, kafka_error
from tests.kit.kafka.played_wire import ANSWERS, OURS, Made, PlayedClient, said
from tests.kit.kafka.transaction_harness import committable

MOVED = kafka_errors.KafkaConnectionError("Connection refused")
OLD_CERTIFICATE = kafka_errors.KafkaConnectionError("Handshake failed: certificate has expired")
SLOW = kafka_errors.KafkaTimeoutError("Timed out after 5000 ms")
KINDS = ("FindCoordinatorRequest", "DescribeTransactionsRequest", "ApiVersionsRequest")


def is_described(wire: TransactionWire) -> bool:
    found = wire.describe([OURS.transactional_id], timeout_s=1)
    state = found.get(OURS.transactional_id)
    return state is not None and state.state is TransactionState.ONGOING


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize("failure", [MOVED, OLD_CERTIFICATE], ids=["moved", "certificate"])
def test_a_client_that_does_not_reach_a_coordinator_is_replaced(
    wire_over: Made, kind: str, failure: Exception
) -> None:
    first, second = PlayedClient({kind: failure}), PlayedClient()
    wire = wire_over(first, second)
    assert not is_described(wire)
    assert all(is_described(wire) for _ in range(3)), "and that one is kept"
    assert (first.closed, second.closed) == (True, False)


@pytest.mark.parametrize("kind", ["FindCoordinatorRequest", "ApiVersionsRequest"])
def test_a_client_by_which_nothing_is_ended_is_replaced(wire_over: Made, kind: str) -> None:
    wire = wire_over(PlayedClient({kind: MOVED}), PlayedClient())
    (report,) = wire.end([OURS], commit=True, timeout_s=1)
    assert report.outcome is EndOutcome.REFUSED
    (report,) = wire.end([OURS], commit=True, timeout_s=1)
    assert report.outcome is EndOutcome.DONE


def test_a_decided_transaction_is_committed_where_all_brokers_have_moved(wire_over: Made) -> None:
    """Else it would stay open until the broker aborts it, and its records would be lost."""
    wire = wire_over(PlayedClient(dict.fromkeys(ANSWERS, MOVED)), PlayedClient())
    (report,) = KafkaCommitter(wire).commit([committable(OURS)], timeout_s=5, after_crash=True)
    assert report.outcome is CommitOutcome.COMMITTED


def test_a_client_that_reaches_some_brokers_is_kept_while_there_is_no_other(
    wire_over: Made,
) -> None:
    """The bootstrap servers may be those that are away; then the next failure looks again."""
    first, third = PlayedClient({KINDS[1]: MOVED}), PlayedClient()
    wire = wire_over(first, MOVED, third)
    assert not is_described(wire)
    assert not is_described(wire)
    assert not first.closed
    assert is_described(wire)
    assert first.closed


@pytest.mark.parametrize(("timeout_s", "longest_s"), [(1.0, 0.5), (60.0, 2.0)])
def test_a_client_that_cannot_be_replaced_has_time_left_to_ask(
    wire_over: Made, monkeypatch: pytest.MonkeyPatch, timeout_s: float, longest_s: float
) -> None:
    """Else a short call would be over before the brokers that it reaches were asked."""
    wire = wire_over(PlayedClient({KINDS[1]: MOVED}))
    assert not is_described(wire)
    given: list[float] = []

    def connect(settings: object, deadline: float) -> PlayedClient:
        given.append(deadline - time.monotonic())
        raise MOVED

    monkeypatch.setattr(WireClient, "connect", connect)
    wire.describe([OURS.transactional_id], timeout_s=timeout_s)
    assert len(given) == 1
    assert given[0] <= longest_s


def test_a_broker_that_is_slow_costs_no_connection(wire_over: Made) -> None:
    """It would be as slow to answer another client, which first has to log in."""
    only = PlayedClient({KINDS[1]: SLOW})
    wire = wire_over(only)
    assert not is_described(wire)
    only.failing = {}
    assert is_described(wire)
    assert not only.closed


def test_a_permission_that_is_missing_costs_no_connection(
    wire_over: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker has said so, and is asked again for as long as the decision stands."""
    forbidden = kafka_errors.TransactionalIdAuthorizationFailedError.errno

    def found(request: Any) -> Any:
        rows = [said(key=k, node_id=-1, error_code=forbidden) for k in request.coordinator_keys]
        return said(coordinators=rows)

    only = PlayedClient()
    wire = wire_over(only)
    with monkeypatch.context() as patched:
        patched.setitem(ANSWERS, KINDS[0], found)
        with pytest.raises(AuthenticationError):
            is_described(wire)
    assert is_described(wire)
    assert not only.closed


def test_a_client_that_answers_is_not_replaced(wire_over: Made) -> None:
    only = PlayedClient()
    wire = wire_over(only)
    assert all(is_described(wire) for _ in range(3))
    assert not only.closed


def test_wait_for_all_brokers_a_cluster_that_cannot_be_reached_is_missing_as_a_whole(
    wire_over: Made,
) -> None:
    """Nothing that is listed of it would be a complete sweep, and a good end."""
    wire = wire_over(MOVED, MOVED)
    listing = wire.list_transactions("p/", timeout_s=1)
    assert (listing.transactions, listing.missing) == ((), ("the cluster",))
    assert not KafkaCommitter(wire, ids="p/").await_visible(timeout_s=0)


def test_outcome_from_broker_a_wire_that_is_closed_sends_nothing(wire_over: Made) -> None:
    only = PlayedClient()
    wire = wire_over(only)
    assert is_described(wire)
    wire.close()
    assert only.closed
    assert not is_described(wire)
    (report,) = wire.end([OURS], commit=True, timeout_s=1)
    assert report.outcome is EndOutcome.REFUSED


@pytest.mark.parametrize(
    ("level", "message", "is_kept"),
    [
        (logging.DEBUG, "Sending request SaslAuthenticateRequest(auth_bytes=b'secret')", False),
        (logging.DEBUG, "%s: received %r", False),
        (logging.DEBUG, "Connected to node 1", True),
        (logging.WARNING, "SaslHandshake failed", True),
    ],
)
@pytest.mark.parametrize("name", ["kafka.net.connection", "kafka.protocol.parser"])
def test_no_log_shows_what_is_sent_to_log_in(
    name: str, level: int, message: str, is_kept: bool
) -> None:
    """kafka-python's own lines show requests and raw bytes."""
    record = logging.LogRecord(name, level, "", 0, message, None, None)
    assert bool(logging.getLogger(name).filter(record)) is is_kept


_MOST_CALLS = 10_000


class SlowClient(FakeClient):
    """Each call takes as long as it may.

    Attributes:
        answers_at_s: its `init_transactions` is answered then; None: never.
        is_silent: no statistics come.
        error: that its error callback is reported before each `init_transactions`.
    """

    answers_at_s: float | None = None
    is_silent: bool = False
    error: KafkaError | None = None

    def __init__(self, cluster: FakeCluster, config: Mapping[str, Any], clock: ManualClock) -> None:
        super().__init__(cluster, config)
        self._clock = clock
        self._calls = 0

    def init_transactions(self, timeout: float) -> None:
        self._count()
        if self.error is not None:
            self._on_error(self.error)
        self._clock.advance(timeout)
        if self.answers_at_s is None or self._clock() < self.answers_at_s:
            raise KafkaException(kafka_error("_TIMED_OUT", retriable=True))
        super().init_transactions(timeout)

    def poll(self, timeout: float) -> int:
        self._count()
        self._clock.advance(timeout)
        return 0 if self.is_silent else super().poll(timeout)

    def _count(self) -> None:
        self._calls += 1
        assert self._calls < _MOST_CALLS, "it waits for ever"


class Bench:
    """A producer whose client is slow."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.clients: list[SlowClient] = []
        self.cluster = FakeCluster()
        self.producer = TransactionalProducer(self._client, {}, "id", clock=self.clock)
        (self.client,) = self.clients

    def _client(self, config: Mapping[str, Any]) -> SlowClient:
        self.clients.append(SlowClient(self.cluster, config, self.clock))
        return self.clients[-1]


def test_an_id_that_no_coordinator_gives_is_given_up_when_time_is_up() -> None:
    bench = Bench()
    began_s = bench.clock()
    with pytest.raises(UnansweredError) as caught:
        bench.producer.prepare(topic=None, timeout_s=40.0)
    assert isinstance(caught.value.reason, UnreachableError)
    assert 40.0 <= bench.clock() - began_s < 45.0


def test_a_coordinator_that_is_slow_is_waited_for_as_long_as_there_is_time() -> None:
    bench = Bench()
    bench.client.answers_at_s = bench.clock() + 35.0
    bench.producer.prepare(topic=None, timeout_s=40.0)
    assert bench.producer.identity.transactional_id == "id"


def test_a_client_that_has_given_up_is_the_reason_and_not_the_time_that_ran_out() -> None:
    bench = Bench()
    bench.client.error = kafka_error("_FENCED", fatal=True)
    with pytest.raises(UnansweredError) as caught:
        bench.producer.prepare(topic=None, timeout_s=5.0)
    assert isinstance(caught.value.reason, FencedError)


def test_statistics_that_never_tell_of_an_id_end_its_preparation() -> None:
    bench = Bench()
    bench.client.answers_at_s, bench.client.is_silent = 0.0, True
    began_s = bench.clock()
    with pytest.raises(UnreachableError, match="statistics"):
        bench.producer.prepare(topic=None, timeout_s=20.0)
    assert 20.0 <= bench.clock() - began_s < 25.0
    with pytest.raises(DeliveryError, match="before it was ready"):
        _ = bench.producer.identity


def test_ids_never_reused_an_abort_without_statistics_after_it_is_not_reported_as_one() -> None:
    bench = Bench()
    bench.client.answers_at_s = 0.0
    bench.producer.prepare(topic=None, timeout_s=20.0)
    bench.producer.begin(lambda _: None)
    bench.client.is_silent = True
    began_s = bench.clock()
    assert not bench.producer.abort(timeout_s=5.0)
    assert bench.clock() - began_s < 5.0


def test_a_client_that_is_heard_to_give_up_ends_the_epoch_of_its_writer() -> None:
    bench = Bench()
    bench.client.answers_at_s = 0.0
    bench.producer.prepare(topic=None, timeout_s=20.0)
    bench.client._on_error(kafka_error("_TRANSPORT"))  # noqa: SLF001 - before its begin, too
    heard: list[object] = []
    bench.producer.begin(heard.append)
    bench.client._on_error(kafka_error("_ALL_BROKERS_DOWN"))  # noqa: SLF001
    assert not heard
    fatal = kafka_error("_FENCED", fatal=True)
    bench.client._on_error(fatal)  # noqa: SLF001
    assert heard == [fatal]


def test_a_producer_that_was_ready_for_long_begins_a_young_transaction() -> None:
    """It is as old as its begin: the broker counts from its first record."""
    ages = ManualClock()
    cluster = FakeCluster()
    config = {"transaction.timeout.ms": 60_000}
    producer = TransactionalProducer(cluster.client, config, "id", ages=ages)
    producer.prepare(topic=None, timeout_s=1.0)
    ages.advance(290.0)
    producer.begin(lambda _: None)
    ages.advance(59.0)
    producer.confirm()
    ages.advance(1.0)
    with pytest.raises(TransactionAbortedError, match="may have timed out"):
        producer.confirm()


def test_a_client_that_gave_up_before_its_begin_ends_the_epoch_too() -> None:
    bench = Bench()
    bench.client.answers_at_s = 0.0
    bench.producer.prepare(topic=None, timeout_s=20.0)
    fatal = kafka_error("_FENCED", fatal=True)
    bench.client._on_error(fatal)  # noqa: SLF001
    heard: list[object] = []
    bench.producer.begin(heard.append)
    assert heard == [fatal]
