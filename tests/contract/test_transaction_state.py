"""What a client says of its transaction, on a real broker, by both ways of moving records.

The pre-commit rests on it (`handle-from-producer`, docs/adr/0015-the-client-reports-its-state.md): a
later librdkafka that says it in other words, or takes another producer epoch within a transaction,
fails here.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.kafka.client.client_tuning import HotPath
from sluice.connectors.kafka.client.confluent import make_producer
from sluice.connectors.kafka.native.library import library_for
from sluice.connectors.kafka.records.rows import RecordColumns
from sluice.connectors.kafka.sink.producers.delivery import DeliveryLog
from sluice.connectors.kafka.sink.producers.native_producer import NativeProducer
from sluice.connectors.kafka.sink.producers.producer_client import Client
from sluice.connectors.kafka.sink.producers.transaction_status import TransactionStatus, read_status
from sluice.connectors.kafka.sink.producers.transactional_producer import (
    STATISTICS_INTERVAL_MS,
    TransactionalProducer,
)
from sluice.connectors.kafka.sink.writer.sender import RecordSender, flush
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import FencedError, StreamError, TransactionAbortedError
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import unique
from tests.kit.task_scopes import SCOPE
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration

Make = Callable[..., TransactionalProducer]


class Watched:
    """A client whose statistics are kept."""

    def __init__(self, make: Callable[[Mapping[str, Any]], Client]) -> None:
        self._make = make
        self.seen: list[TransactionStatus] = []

    def __call__(self, config: Mapping[str, Any]) -> Client:
        tell = config["stats_cb"]

        def kept(statistics: str) -> None:
            status = read_status(statistics)
            if status is not None:
                self.seen.append(status)
            tell(statistics)

        return self._make({**config, "stats_cb": kept})


@pytest.fixture
def watched(hot_path: str) -> Watched:
    if hot_path == "plain":
        return Watched(make_producer)
    library = library_for({}, HotPath.NATIVE)
    assert library is not None
    return Watched(partial(NativeProducer, library))


@pytest.fixture
def make(kafka: EmbeddedKafka, watched: Watched) -> Iterator[Make]:
    """A producer that is ready; its id and settings may be given."""
    made: list[TransactionalProducer] = []

    def ready(
        transactional_id: str = "",
        statistics_interval_ms: int = STATISTICS_INTERVAL_MS,
        **settings: object,
    ) -> TransactionalProducer:
        config = {
            "bootstrap.servers": kafka.bootstrap,
            "delivery.report.only.error": True,
            "log_level": 0,
            **settings,
        }
        producer = TransactionalProducer(
            watched,
            config,
            transactional_id or unique("state"),
            statistics_interval_ms=statistics_interval_ms,
        )
        made.append(producer)
        producer.prepare(topic=None, timeout_s=30)
        return producer

    yield ready
    for producer in made:
        producer.abort(timeout_s=PATIENCE_S)
        producer.release()


def send(producer: TransactionalProducer, topic: str) -> None:
    rows = pa.record_batch({"value": pa.array([b"value"])})
    sender = RecordSender(producer.client, DeliveryLog(SCOPE), queue_full_timeout_s=PATIENCE_S)
    sender.send(rows, RecordColumns.of(rows.schema, topic))


def flushed(producer: TransactionalProducer, topic: str) -> None:
    """A transaction with a record that the broker has."""
    producer.begin(lambda _: None)
    send(producer, topic)
    assert producer.client.flush(30) == 0


def test_handle_from_producer_an_open_transaction_is_confirmed_at_once(
    make: Make, topic: TopicFactory
) -> None:
    """However seldom the client gives its statistics, and as often as it is asked."""
    producer = make(statistics_interval_ms=1_000)
    flushed(producer, topic())
    began_s = time.monotonic()
    for _ in range(100):
        producer.confirm()
    assert time.monotonic() - began_s < 30, "it waits for statistics, a hundred times"
    assert producer.commit(timeout_s=30), "asking has changed nothing"


def test_handle_from_producer_what_was_ended_or_never_begun_is_not_confirmed(
    make: Make, topic: TopicFactory
) -> None:
    ended, unbegun = make(), make()
    flushed(ended, topic())
    assert ended.commit(timeout_s=30)
    for producer in (ended, unbegun):
        with pytest.raises(TransactionAbortedError, match="state=Ready"):
            producer.confirm()


def test_handle_from_producer_a_fenced_transaction_is_not_confirmed(
    make: Make, topic: TopicFactory
) -> None:
    """The client learns of it by its next record."""
    name = topic()
    producer = make()
    flushed(producer, name)
    make(producer.transactional_id)
    with suppress(FencedError):  # it may be reported by the record, or by the client's own error
        send(producer, name)
        flush(producer.client, DeliveryLog(SCOPE), timeout_s=30)
    with pytest.raises(FencedError):
        producer.confirm()


def is_refused(producer: TransactionalProducer) -> bool:
    """Whether a pre-commit would fail by the client's state."""
    try:
        producer.confirm()
    except StreamError:
        return True
    return False


def test_handle_from_producer_another_producer_epoch_is_taken_only_after_the_transaction(
    kafka: EmbeddedKafka, make: Make, watched: Watched, topic: TopicFactory
) -> None:
    """Records that time out make librdkafka want a new epoch: from then on nothing is confirmed,
    and the epoch changes with the abort, not before."""
    name = topic()
    producer = make(**{"message.timeout.ms": 5000, "linger.ms": 0})
    flushed(producer, name)
    kafka.pause()
    try:
        send(producer, name)
        producer.client.flush(10)
        # The delivery report comes first (`pre-commit-confirmed`), and a moment later the state
        # does.
        wait_for(lambda: is_refused(producer), what="the refusal by the client's state")
        epoch = producer.identity.producer_epoch
        seen = len(watched.seen)
        wait_for(
            lambda: producer.keep_alive() and len(watched.seen) > seen + 10,
            what="ten statistics while the broker is paused",
        )
        assert {status.producer_epoch for status in watched.seen[seen:]} == {epoch}
    finally:
        kafka.resume()
    with pytest.raises(StreamError):
        producer.confirm()
    assert producer.abort(timeout_s=30)
    wait_for(
        lambda: producer.keep_alive() and watched.seen[-1].producer_epoch > epoch,
        what="the next epoch after the abort",
    )
