"""What one look into a consumer's queue gave: records, and what is not a record.

`Fetcher` has two implementations, the plain one here and `native_fetching`; the
reader knows no difference.
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
# How long a batch that is not full waits for more: an end may lie in a gap and never fill it.
LINGER_S = 0.005


@dataclass(frozen=True, slots=True)
class Event:
    """What a consumer reports between records.

    Attributes:
        error: librdkafka's.
        slot: of the range it is about; None: of none.
        offset: where a partition ends.
    """

    error: KafkaError
    slot: int | None
    offset: int


class Fetched(Protocol):
    """Records of one look, in the order they came, and the events behind them.

    Attributes:
        slots, offsets: of each record; shape (n,).
        events: to be judged after the records.
    """

    slots: IntArray
    offsets: IntArray
    events: Sequence[Event]

    def batch(self, wanted: BoolArray | None) -> pa.RecordBatch:
        """The records, or those that are wanted."""
        ...

    def timestamps_ms(self, wanted: BoolArray | None) -> IntArray:
        """Of the same; -1 where one has none."""
        ...

    def leader_epoch(self, row: int) -> int | None:
        """The leader that wrote a record, by its place among all of them; None: not known."""
        ...

    def close(self) -> None:
        """Let go of what is not needed any more; nothing may be asked afterwards."""
        ...


class Fetcher(Protocol):
    """Takes from a consumer's queue. Executor, the reader's thread; one per read."""

    def fetch(self, most: int, idle_s: float | None) -> Fetched | None:
        """At most so many records and events; None: nothing came.

        Args:
            idle_s: waited for the first one; None: nothing is waited for.
        """
        ...

    def forget(self, slot: int) -> None:
        """Before a partition stops, or begins anew elsewhere: let go of what was taken of it and
        not handed out. What is still in the consumer's queue librdkafka leaves out by itself.
        """
        ...

    def close(self) -> None:
        """The read is over."""
        ...


class PlainFetcher:
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
        """See `Fetcher`."""
        if idle_s is None:
            return self._take(most, 0)
        return self._take(most, LINGER_S) or self._take(1, idle_s)

    def forget(self, slot: int) -> None:
        """See `Fetcher`. All that was taken has been handed out."""

    def _take(self, most: int, timeout_s: float) -> Fetched | None:
        messages: list[Message] = self._consumer.consume(most, timeout_s)
        if not messages:
            return None
        errors = list(map(Message.error, messages))
        # By truth, never by comparison: KafkaError == None leaves an exception set behind.
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
