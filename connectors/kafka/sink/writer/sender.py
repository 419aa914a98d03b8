"""Arrow batches into a producer's queue, in order, as fast as one thread can.

Natively (`native_producing`), or by ``produce``, called by ``map`` with whole columns. Measured on
two cores shared with the broker, 100-byte records, one transaction, the plain way: 1.0 million
records/s. With ``produce_batch`` it was 0.9 million (it needs a dict per record, and takes no
headers, timestamps or partitions), with a loop 0.8 million. One way for all records of a writer
also keeps the order, with any columns (`produce-order`).
"""

import time
from collections import Counter
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from sluice.connectors.kafka.client.confluent import UNKNOWN_PARTITION, KafkaError, KafkaException
from sluice.connectors.kafka.records.partitioner import by_partition
from sluice.connectors.kafka.records.rows import RecordColumns
from sluice.connectors.kafka.sink.handles import OutputCount
from sluice.connectors.kafka.sink.producers.delivery import DeliveryLog, is_consequence
from sluice.connectors.kafka.sink.producers.native_producer import NativeProducer
from sluice.connectors.kafka.sink.producers.producer_client import (
    Client,
    RecordClient,
    partition_count,
    serve,
)
from sluice.connectors.kafka.sink.writer.native_producing import NativeProducing
from sluice.connectors.kafka.sink.writer.produce import PlainProducing, Prepared, Producing
from sluice.connectors.kafka.sink.writer.producer_wait import UnreportedWait, Wait
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import ConfigError, DeliveryError, UnreachableError
from sluice.runtime.failpoints import failpoint
from sluice.runtime.process.gc_control import without_collector

__all__ = ["RecordSender", "flush"]

_CHUNK_ROWS = 10_000
_CAUSE_S = 1.0
_SHORTEST_STEP_S = 0.001
_LONGEST_STEP_S = 0.05
# From 0.2 on the client adds steps of its own, also after a fatal error that it is about to raise:
# its callback then fails with a SystemError.
_FLUSH_STEP_S = 0.15


class RecordSender:
    """Passes rows to one producer. Executor, the writer's thread.

    ``partition_count`` is that of the sink's one topic: then keyed records may be partitioned here
    as the client would do it (`sluice.connectors.kafka.records.partitioner`).
    """

    def __init__(
        self,
        client: Client,
        delivery: DeliveryLog,
        *,
        queue_full_timeout_s: float,
        partition_count: int | None = None,
        stops_at_errors: bool = True,
        wait: Wait | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._client = client
        self._producing = _producing(client)
        self._delivery = delivery
        self._partition_count = partition_count
        self._queue_full_timeout_s = queue_full_timeout_s
        self._stops_at_errors = stops_at_errors
        self._wait = wait or UnreportedWait()
        self._clock = clock
        self._refreshed: set[tuple[str, int]] = set()
        self._records: Counter[str] = Counter()

    def send(
        self, batch: pa.RecordBatch, columns: RecordColumns, *, is_own_topic: bool = True
    ) -> None:
        """Queue every row; waits while the queue is full.

        Args:
            is_own_topic: False: the rows go to another topic, with partitions of its own.
        Raises:
            ConfigError: a row holds a value that no record can have.
            DeliveryError, AuthenticationError, FencedError: a record was refused, now or earlier.
            UnreachableError: the brokers took none for too long.
        """
        for start in range(0, batch.num_rows, _CHUNK_ROWS):
            with without_collector():
                count = self._partition_count if is_own_topic else None
                self._send_rows(batch.slice(start, _CHUNK_ROWS), columns, count)
            failpoint("mid-write")

    def _send_rows(
        self, batch: pa.RecordBatch, columns: RecordColumns, partition_count: int | None
    ) -> None:
        rows, partitions = by_partition(batch, columns, partition_count)
        try:
            prepared = self._producing.prepare(rows, columns, partitions, self._delivery)
        except ConfigError as err:
            raise self._delivery.located(err, rows) from err
        self._queue_rows(rows, columns, prepared)
        serve(self._client, 0, self._delivery.client_failed)
        self._check()
        self._count(rows, columns)

    @property
    def outputs(self) -> tuple[OutputCount, ...]:
        """Number of rows sent to each topic."""
        return tuple(OutputCount(topic=t, records=n) for t, n in self._records.items())

    def _count(self, rows: pa.RecordBatch, columns: RecordColumns) -> None:
        topics = columns.topics(rows)
        if topics is None:
            self._records[columns.topic or ""] += rows.num_rows
            return
        for found in pc.value_counts(topics).to_pylist():
            self._records[found["values"]] += found["counts"]

    def _queue_rows(self, rows: pa.RecordBatch, columns: RecordColumns, prepared: Prepared) -> None:
        sent, was_empty = 0, False
        while sent < rows.num_rows:
            taken, refusal = prepared.produce(sent)
            sent += taken
            if isinstance(refusal, BufferError):
                if was_empty and not taken:
                    sent += self._beyond_queue(rows, columns, prepared, sent)
                was_empty = self._wait_for_space()
            elif refusal is not None:
                sent += self._refused(refusal, rows, prepared, sent)

    def _refused(
        self, refusal: Exception, rows: pa.RecordBatch, prepared: Prepared, row: int
    ) -> int:
        """Raise, try once more, or leave out the record; returns the number left out."""
        topic, partition = prepared.target(row)
        if isinstance(refusal, KafkaException):
            if self._was_added(refusal.args[0], topic, partition):
                return 0
            self._await_cause(refusal.args[0])
            self._delivery.refused(
                refusal.args[0], topic=topic, partition=partition, rows=rows, row=row
            )
            self._check()
            return 1
        raise DeliveryError(
            "the Kafka client refused a record",
            {"topic": topic, "partition": partition, "row": row, "reason": refusal},
            "Correct the record; nothing of this epoch is visible.",
        ) from refusal

    def _beyond_queue(
        self, rows: pa.RecordBatch, columns: RecordColumns, prepared: Prepared, row: int
    ) -> int:
        """Raise, or leave out a record that is larger than the whole queue."""
        topic, partition = prepared.target(row)
        if self._stops_at_errors:
            where = {"topic": topic, "partition": partition, "row": row}
            raise DeliveryError(
                "a record is larger than the producer's queue",
                {**where, "record_bytes": columns.size(rows, row)},
                "Raise kafka.buffer.memory (queue.buffering.max.kbytes) of the sink above it, or "
                "drop or split the record.",
            )
        error = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "it is larger than the producer's queue")
        self._delivery.refused(error, topic=topic, partition=partition, rows=rows, row=row)
        return 1

    def _was_added(self, error: KafkaError, topic: str, partition: int) -> bool:
        """Whether the partition exists, and the client did not know it: one request for each.

        The client alone refreshes its metadata every 5 minutes; Java's also asks at once.
        """
        if error.code() != UNKNOWN_PARTITION or (topic, partition) in self._refreshed:
            return False
        self._refreshed.add((topic, partition))
        count = partition_count(self._client, topic)
        return count is not None and partition < count

    def _await_cause(self, error: KafkaError) -> None:
        """A failed client refuses further records; a report that is still to be served has the
        reason."""
        deadline = self._clock() + _CAUSE_S
        while is_consequence(error) and not self._delivery.knows_cause and self._clock() < deadline:
            serve(self._client, 0.05, self._delivery.client_failed)

    def _check(self) -> None:
        if self._stops_at_errors:
            self._delivery.check()

    def _wait_for_space(self) -> bool:
        """Whether the queue has become empty: then no record has to wait for another."""
        try:
            self._await_fewer(len(self._client))
        finally:
            self._wait.is_over()
        return not len(self._client)

    def _await_fewer(self, full: int) -> None:
        deadline, step_s = self._clock() + self._queue_full_timeout_s, _SHORTEST_STEP_S
        # Already empty if the last records were acknowledged since the refusal.
        while full and len(self._client) >= full:
            # No event wakes the waiting thread: successful records are not reported.
            serve(self._client, step_s, self._delivery.client_failed)
            step_s = min(2 * step_s, _LONGEST_STEP_S)
            self._check()
            if self._clock() > deadline:
                raise UnreachableError(
                    "the producer's queue stayed full",
                    {"queued_records": full, "timeout_s": self._queue_full_timeout_s},
                    "Check that the brokers accept records.",
                )
            self._wait.report(f"the queue is full: records={full}")


def _producing(client: Client) -> Producing:
    if isinstance(client, NativeProducer):
        return NativeProducing(client)
    return PlainProducing(cast(RecordClient, client))


def flush(
    client: Client,
    delivery: DeliveryLog,
    *,
    timeout_s: float,
    stops_at_errors: bool = True,
    wait: Wait | None = None,
    clock: Clock = time.monotonic,
) -> None:
    """Wait until every record is acknowledged (`pre-commit-confirmed`: both the count and the
    reports).

    In short steps: after a refused record librdkafka keeps the rest of its partition until they
    time out, and waiting for that is useless.

    Args:
        wait: called while no record is acknowledged; may end it.
    Raises:
        DeliveryError, AuthenticationError, FencedError: a record was refused.
        UnreachableError: not all were confirmed in time.
    """
    wait = wait or UnreportedWait()
    deadline, least = clock() + timeout_s, len(client)
    try:
        while True:
            left = _flush_step(client, delivery)
            if stops_at_errors or not left:
                delivery.check()
            if not left:
                return
            if clock() > deadline:
                raise UnreachableError(
                    "records were not confirmed in time",
                    {"unconfirmed_records": left, "timeout_s": timeout_s},
                    "Check that the brokers accept records; nothing of this epoch is visible.",
                )
            if left < least:
                least = left
                wait.is_over()
            wait.report(f"not all records are acknowledged: records={left}")
    finally:
        wait.is_over()


def _flush_step(client: Client, delivery: DeliveryLog) -> int:
    try:
        return client.flush(_FLUSH_STEP_S)
    except KafkaException as err:  # as in `serve`
        delivery.client_failed(err.args[0])
        return len(client)
