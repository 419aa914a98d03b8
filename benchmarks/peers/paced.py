"""A read_committed reader that notes when it saw what."""

import threading
import time
from types import TracebackType
from typing import Self

import numpy as np

from benchmarks.peers.records import HEAD_BYTES, Ints, heads
from connectors.kafka._client import OFFSET_BEGINNING, TopicPartition
from connectors.kafka.history import reading_consumer, topic_ends
from connectors.kafka.security import KafkaConnection

__all__ = ["Reader"]

_CONSUME_RECORDS = 5_000
_CONSUME_S = 0.01
_STOP_S = 15.0


class Reader:
    """Reads in a thread of its own as long as it is entered."""

    def __init__(self, connection: KafkaConnection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        self._seen: list[tuple[int, Ints]] = []
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._count = 0
        self._thread = threading.Thread(target=self._run, name="paced reader", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join(_STOP_S)

    @property
    def count(self) -> int:
        """Records seen so far."""
        if self._error is not None:
            raise self._error
        return self._count

    def columns(self) -> tuple[Ints, Ints]:
        """When each record was made and seen, in us; shape (n,). After the reader is closed."""
        if not self._seen:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        made = [one for _, one in self._seen]
        seen = [np.full(len(one), at, np.int64) for at, one in self._seen]
        return np.concatenate(made), np.concatenate(seen)

    def _run(self) -> None:
        try:
            self._read()
        except Exception as err:  # noqa: BLE001 - raised in the thread that asks
            self._error = err

    def _read(self) -> None:
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
                    raise RuntimeError(f"{self._topic} holds a record that nobody made")
                if whole:
                    # Now, for the values of ten minutes would fill the memory.
                    self._seen.append((now_us, heads(whole)[2]))
                    self._count += len(whole)
        finally:
            consumer.close()
