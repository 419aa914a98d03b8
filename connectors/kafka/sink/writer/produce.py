"""Queues rows in a producer, in order, up to the first that is not taken.

`Producing` has two implementations, the plain one here and `native_producing`; the sender treats
them alike.
"""

import collections
import itertools
import operator
from typing import Protocol

import pyarrow as pa

from sluice.connectors.kafka.client.confluent import KafkaException
from sluice.connectors.kafka.records.rows import ProduceArguments, RecordColumns
from sluice.connectors.kafka.sink.producers.delivery import DeliveryLog, OnDelivery
from sluice.connectors.kafka.sink.producers.producer_client import RecordClient

__all__ = ["PlainProducing", "Prepared", "Producing"]


class Prepared(Protocol):
    """Rows in the form in which a producer takes them."""

    def produce(self, start: int) -> tuple[int, Exception | None]:
        """Queue the rows from ``start`` on; returns the number taken, and the error of the next
        one: BufferError, if the queue is full; KafkaException, TypeError or ValueError.
        """
        ...

    def target(self, row: int) -> tuple[str, int]:
        """Topic and partition of a row; -1: by key."""
        ...


class Producing(Protocol):
    """One producer's way of taking rows. Executor, the writer's thread."""

    def prepare(
        self,
        rows: pa.RecordBatch,
        columns: RecordColumns,
        partitions: pa.Array | None,
        delivery: DeliveryLog,
    ) -> Prepared:
        """See `RecordColumns.arguments`, also for errors; ``delivery`` receives refused rows."""
        ...


class PlainProducing(Producing):
    """By confluent-kafka's ``produce``, called by ``map`` with whole columns, so that no Python
    code runs per record."""

    def __init__(self, client: RecordClient) -> None:
        self._client = client

    def prepare(
        self,
        rows: pa.RecordBatch,
        columns: RecordColumns,
        partitions: pa.Array | None,
        delivery: DeliveryLog,
    ) -> Prepared:
        arguments = columns.arguments(rows, partitions)
        return _PlainPrepared(self._client, arguments, delivery.on_delivery(rows))


class _PlainPrepared:
    """Implements `Prepared`."""

    def __init__(
        self, client: RecordClient, arguments: ProduceArguments, on_delivery: OnDelivery
    ) -> None:
        self._client = client
        self._arguments = arguments
        self._on_delivery = on_delivery

    def produce(self, start: int) -> tuple[int, Exception | None]:
        arguments = self._arguments.tail(start)
        # Only this list shows how far `map` came if a record in the middle is refused.
        values = iter(arguments.values)
        calls = map(
            self._client.produce,
            arguments.topics,
            values,
            arguments.keys,
            arguments.partitions,
            itertools.repeat(self._on_delivery),
            itertools.repeat(None),
            arguments.timestamps_ms,
            arguments.headers,
        )
        try:
            collections.deque(calls, maxlen=0)
        except (BufferError, KafkaException, TypeError, ValueError) as err:
            return len(arguments.values) - operator.length_hint(values) - 1, err
        return len(arguments.values), None

    def target(self, row: int) -> tuple[str, int]:
        rest = self._arguments.tail(row)
        return next(iter(rest.topics)), next(iter(rest.partitions))
