"""A region with a Kafka sink, driven manually: what the writers' tests on a real broker share."""

import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.kafka_sink import KafkaSink
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.sink.handles import TransactionalId, TransactionHandle, decode_handle
from sluice.connectors.kafka.sink.producers.producer_pool import process_pools
from sluice.connectors.kafka.sink.writer.kafka_writer import KafkaWriterFactory
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.contracts import CommitOutcome, RegisteredAttempt, SinkWriter, TaskScope
from sluice.runtime.errors import DeliveryError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey, SplitRange
from tests.kit.kafka.kafka_records import unique

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass
class Region:
    """One region of a job with one sink, as the engine would drive it.

    ``attempts`` are the registered ones, in order.
    """

    factory: KafkaWriterFactory
    job_uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    attempt_id: int = 0
    batch_id: int = 0
    attempts: list[RegisteredAttempt] = field(default_factory=list)
    source_ranges: tuple[SplitRange, ...] = ()

    def register(self, attempt: RegisteredAttempt) -> float:
        self.attempts.append(attempt)
        return time.monotonic()

    def open(self, task: str = "0.0") -> SinkWriter:
        scope = TaskScope(
            job_uid=self.job_uid,
            operator_id="sink",
            batch=BatchKey(region="r", attempt_id=self.attempt_id, batch_id=self.batch_id),
            checkpoint_id=self.batch_id + 1,
            committed_through=self.batch_id,
            task=task,
            source_ranges=self.source_ranges,
        )
        return self.factory.open(scope, self)

    def write(self, *batches: pa.RecordBatch, task: str = "0.0") -> list[StateEntry]:
        writer = self.open(task)
        try:
            for batch in batches:
                writer.write(batch)
            return writer.pre_commit()
        except BaseException:
            writer.abort()
            raise


@pytest.fixture(autouse=True)
def no_pools_left() -> Iterator[None]:
    """Producers that were made ready do not outlive their test."""
    yield
    process_pools().close()


def sink_to(kafka: EmbeddedKafka, topic: str | None, **settings: Any) -> KafkaSink:
    given = {"transactional_id_prefix": unique("sink"), **settings}
    return KafkaSink(bootstrap_servers=kafka.bootstrap, topic=topic, **given)


def region_of(kafka: EmbeddedKafka, topic: str | None, **settings: Any) -> Region:
    return Region(sink_to(kafka, topic, **settings).writer_factory())


def commit(kafka: EmbeddedKafka, entries: list[StateEntry]) -> None:
    """What the driver does after the decision: another client, the wire's EndTxn."""
    names = [TransactionalId.parse(handle.transactional_id) for handle in handles(entries)]
    (prefix,) = {name.prefix for name in names if name is not None}  # else nobody is waited for
    coordinator = sink_to(kafka, None, transactional_id_prefix=prefix).coordinator()
    with contextlib.closing(coordinator):
        reports = coordinator.committer.commit(entries, timeout_s=300, after_crash=False)
        assert [report.outcome for report in reports] == [CommitOutcome.COMMITTED] * len(entries)
        assert coordinator.committer.await_visible(timeout_s=300)


def describe(kafka: EmbeddedKafka, transactional_id: str) -> tuple[TransactionState, int, int]:
    wire = TransactionWire(KafkaConnection(bootstrap_servers=kafka.bootstrap))
    try:
        found = wire.describe([transactional_id], timeout_s=120)[transactional_id]
    finally:
        wire.close()
    return found.state, found.producer_id, found.producer_epoch


def handles(entries: list[StateEntry]) -> list[TransactionHandle]:
    return [decode_handle(entry) for entry in entries]


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def refused(region: Region, batch: pa.RecordBatch) -> dict[str, object]:
    """What the error says of the record that the broker refused."""
    with pytest.raises(DeliveryError) as caught:
        region.write(batch)
    where: dict[str, object] = caught.value.args[1]
    return where
