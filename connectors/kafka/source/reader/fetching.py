"""Records and events from one fetch of a consumer's queue.

`Fetcher` has two implementations, the plain one here and `native_fetching`; the reader uses both in
the same way.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from sluice.connectors.kafka.client.confluent import Consumer, KafkaError, Message
from sluice.connectors.kafka.records.columns import ColumnBuilder, timestamps_ms
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.reader.ranges import BoolArray, IntArray

__all__ = ["BATCH_RECORDS", "Event", "Fetched", "Fetcher", "PlainFetcher"]

BATCH_RECORDS = 10_000
# How long a partial batch waits for more: no record may follow before the end of a range.
LINGER_S = 0.005


@dataclass(frozen=True, slots=True)
class Event:
    """A report of a consumer between records.

    Attributes:
        error: librdkafka's.
        slot: of its range; None: it has none.
        offset: the end of a partition.
    """

    error: KafkaError
    slot: int | None
    offset: int


class Fetched(Protocol):
    """Records of one fetch, in their order, and the events after them.

    Attributes:
        slots, offsets: of each record; shape (n,).
        events: to be handled after the records.
    """

    slots: IntArray
    offsets: IntArray
    events: Sequence[Event]

    def batch(self, wanted: BoolArray | None) -> pa.RecordBatch:
        """Return the records, or the wanted ones."""
        ...

    def timestamps_ms(self, wanted: BoolArray | None) -> IntArray:
        """Return the timestamps of the same records; -1: a record has none."""
        ...

    def leader_epoch(self, row: int) -> int | None:
        """Return the epoch of the leader that wrote the record of a row; None: unknown."""
        ...

    def close(self) -> None:
        """Free the records; no other method may be called afterwards."""
        ...


class Fetcher(Protocol):
    """Takes from a consumer's queue. Executor, the reader's thread; one per read."""

    def fetch(self, most: int, idle_s: float | None) -> Fetched | None:
        """Return at most so many records and events; None: there are none.

        Args:
            idle_s: how long to wait for the first one; None: do not wait.
        """
        ...

    def forget(self, slot: int) -> None:
        """Free fetched records of a partition that stops or restarts elsewhere.

        librdkafka itself leaves out records that are still in its queue.
        """
        ...

    def close(self) -> None:
        """End the read."""
        ...


class PlainFetcher(Fetcher):
    """By confluent-kafka's ``consume``, one Python object per record."""

    def __init__(
        self, consumer: Consumer, keys: Sequence[PartitionKey], builder: ColumnBuilder
    ) -> None:
        self._consumer = consumer
        self._builder = builder
        self._slot_of = {key: slot for slot, key in enumerate(keys)}
        self._slots = len(keys)
        self._one_topic = len({topic for topic, _ in keys}) == 1
        self._slot_of_partition = np.zeros(max(n for _, n in keys) + 1, np.int64)
        self._slot_of_partition[[n for _, n in keys]] = np.arange(len(keys))

    def fetch(self, most: int, idle_s: float | None) -> Fetched | None:
        if idle_s is None:
            return self._take(most, 0)
        return self._take(most, LINGER_S) or self._take(1, idle_s)

    def forget(self, slot: int) -> None:
        """See `Fetcher`. No fetched record is left."""

    def _take(self, most: int, timeout_s: float) -> Fetched | None:
        messages: list[Message] = self._consumer.consume(most, timeout_s)
        if not messages:
            return None
        errors = list(map(Message.error, messages))
        # By truth, never by comparison: KafkaError == None leaves a pending exception.
        if not any(errors):
            return _PlainFetched(messages, self._slots_of(messages), (), self._builder)
        events = [self._event(message) for message in itertools.compress(messages, errors)]
        records = [m for m, e in zip(messages, errors, strict=True) if e is None]
        return _PlainFetched(records, self._slots_of(records), events, self._builder)

    def close(self) -> None:
        """See `Fetcher`."""

    def _event(self, message: Message) -> Event:
        error, partition = message.error(), message.partition()
        assert error is not None  # chosen by it
        slot = self._slot_of.get((message.topic() or "", -1 if partition is None else partition))
        return Event(error, slot, message.offset() or 0)

    def _slots_of(self, messages: Sequence[Message]) -> IntArray:
        count = len(messages)
        if self._slots == 1:
            return np.zeros(count, np.int64)
        if self._one_topic:
            numbers = np.fromiter(map(Message.partition, messages), np.int64, count)
            found: IntArray = self._slot_of_partition[numbers]
            return found
        keys = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        return np.fromiter((self._slot_of[key] for key in keys), np.int64, count)  # type: ignore[index]  # no error, no None


class _PlainFetched:
    """Implements `Fetched`."""

    def __init__(
        self,
        messages: list[Message],
        slots: IntArray,
        events: Sequence[Event],
        builder: ColumnBuilder,
    ) -> None:
        self._messages = messages
        self._builder = builder
        self.slots = slots
        self.offsets = np.fromiter(map(Message.offset, messages), np.int64, len(messages))
        self.events = events

    def batch(self, wanted: BoolArray | None) -> pa.RecordBatch:
        if wanted is None:
            return self._builder.build(self._messages, self.slots, self.offsets)
        return self._builder.build(self._kept(wanted), self.slots[wanted], self.offsets[wanted])

    def timestamps_ms(self, wanted: BoolArray | None) -> IntArray:
        return timestamps_ms(self._kept(wanted))

    def leader_epoch(self, row: int) -> int | None:
        return self._messages[row].leader_epoch()

    def close(self) -> None:
        self._messages = []

    def _kept(self, wanted: BoolArray | None) -> list[Message]:
        if wanted is None:
            return self._messages
        return list(itertools.compress(self._messages, wanted.tolist()))


def slot_names(keys: Sequence[PartitionKey]) -> Mapping[str, list[tuple[int, int]]]:
    """By topic, the partitions that are read and their slots."""
    found: dict[str, list[tuple[int, int]]] = {}
    for slot, (topic, partition) in enumerate(keys):
        found.setdefault(topic, []).append((partition, slot))
    return found
