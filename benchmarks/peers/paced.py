"""A read_committed reader that notes when it saw each record."""

import time

import numpy as np

from benchmarks.peers.records import HEAD_BYTES, Ints, heads
from sluice.connectors.kafka.client.confluent import OFFSET_BEGINNING, TopicPartition
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.verify.topic_history import reading_consumer, topic_ends
from sluice.runtime.process.side_thread import SideThread

__all__ = ["Reader"]

_CONSUME_RECORDS = 5_000
_CONSUME_S = 0.01


class Reader(SideThread):
    """Reads the copies of a topic."""

    def __init__(self, connection: KafkaConnection, topic: str) -> None:
        super().__init__("paced reader")
        self._connection = connection
        self._topic = topic
        self._seen: list[tuple[int, Ints]] = []
        self._count = 0

    @property
    def count(self) -> int:
        """Records seen so far."""
        self._require_sound()
        return self._count

    def columns(self) -> tuple[Ints, Ints]:
        """When each record was made and seen, in us; shape (n,). Call it after closing."""
        self._require_sound()
        if not self._seen:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        made = [one for _, one in self._seen]
        seen = [np.full(len(one), at, np.int64) for at, one in self._seen]
        return np.concatenate(made), np.concatenate(seen)

    def _work(self) -> None:
        partitions = sorted(topic_ends(self._connection, self._topic).high)
        consumer = reading_consumer(self._connection, group="sluice-paced")
        try:
            consumer.assign([TopicPartition(self._topic, p, OFFSET_BEGINNING) for p in partitions])
            while not self._stopping.is_set():
                messages = consumer.consume(_CONSUME_RECORDS, _CONSUME_S)
                now_us = time.time_ns() // 1000
                values = [m.value() for m in messages if m.error() is None]
                whole = [v for v in values if isinstance(v, bytes) and len(v) >= HEAD_BYTES]
                if len(whole) != len(values):
                    raise RuntimeError(f"{self._topic} has a record that the feed did not make")
                if whole:
                    # Parse now: the values of ten minutes would fill the memory.
                    self._seen.append((now_us, heads(whole)[2]))
                    self._count += len(whole)
        finally:
            consumer.close()
