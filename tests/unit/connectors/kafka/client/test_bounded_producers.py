"""Nothing that a producer waits for keeps its task for ever; time is played."""

from collections.abc import Mapping
from typing import Any

import pytest

from sluice.connectors.kafka.client.confluent import KafkaError, KafkaException
from sluice.connectors.kafka.sink.producers.producer_errors import UnansweredError
from sluice.connectors.kafka.sink.producers.transactional_producer import TransactionalProducer
from sluice.runtime.errors import (
    DeliveryError,
    FencedError,
    TransactionAbortedError,
    UnreachableError,
)
from tests.kit.fakes import ManualClock
from tests.kit.kafka.fake_producer import FakeClient, FakeCluster, kafka_error

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
    """And reported as one that may yet be given."""
    bench = Bench()
    began_s = bench.clock()
    with pytest.raises(UnansweredError) as caught:
        bench.producer.prepare(topic=None, timeout_s=40.0)
    assert isinstance(caught.value.reason, UnreachableError)
    assert 40.0 <= bench.clock() - began_s < 45.0


def test_a_coordinator_that_is_slow_is_waited_for_as_long_as_there_is_time() -> None:
    """Only refused credentials are given up before."""
    bench = Bench()
    bench.client.answers_at_s = bench.clock() + 35.0
    bench.producer.prepare(topic=None, timeout_s=40.0)
    assert bench.producer.identity.transactional_id == "id"


def test_a_client_that_has_given_up_is_the_reason_and_not_the_time_that_ran_out() -> None:
    """By its fatal error; what it answers then says nothing."""
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
    """Whichever thread has heard it."""
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
