"""A read_committed reader that runs for the whole round, and notes when records become visible."""

import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.verify.topic_history import reading_consumer, record_of
from sluice.runtime.checker import History
from sluice.runtime.checker.records.payload import origin_of
from tests.kit.threads.joined_thread import JoinedThread

_RECORDS = 5_000
_WAIT_S = 0.05
_STOP_S = 120.0
_SILENT_S = 60.0
_CLOSE_S = 10.0
_PARTITION_EOF = KafkaError._PARTITION_EOF  # noqa: SLF001  # librdkafka's documented code


class Witness(JoinedThread):
    """Reads a topic from its first record on, in a thread of its own, which no fault strikes.

    A context manager. Read `seen` after it is closed.

    Its client may hang after several brokers were away (seen with librdkafka 2.16.1: no record in ten
    minutes, although transactions ended, and a close that does not return). So a client without a
    message for a minute is replaced by a new one, which reads on. If transactions hide the
    records, the new one sees none either.

    Attributes:
        replaced: number of silent clients.
        hanging: number of clients that did not close.
    """

    def __init__(self, connection: KafkaConnection, topic: str, *, partitions: int) -> None:
        super().__init__("witness", stop_s=_STOP_S)
        self.seen = History()
        self._connection = connection
        self._topic = topic
        self._times_s = [array("d") for _ in range(partitions)]
        self._sequences = [array("q") for _ in range(partitions)]
        self._next = [OFFSET_BEGINNING] * partitions
        self.replaced = self.hanging = 0

    @property
    def total(self) -> int:
        """Records seen so far; raises the error that has ended the reader, if any."""
        self._require_sound()
        return sum(map(len, self._times_s))

    def seen_at(self, sequences: Sequence[int]) -> float | None:
        """When, on the monotonic clock, every partition had shown this record or a later one.

        Args:
            sequences: by partition; see `Origin`.
        Returns:
            None: not yet.
        """
        self._require_sound()
        seen_s = []
        for times_s, shown, wanted in zip(self._times_s, self._sequences, sequences, strict=True):
            count = len(shown)  # the reader's thread appends meanwhile
            # Sequences grow; if those of a copy do not, the verdict reports reordered records.
            first = bisect_left(shown, wanted, 0, count)
            if first == count:
                return None
            seen_s.append(times_s[first])
        return max(seen_s)

    def _work(self) -> None:
        while not self._stopping.is_set():
            consumer = reading_consumer(self._connection, group="bed-witness")
            try:
                self._read(consumer)
            finally:
                closing = threading.Thread(target=consumer.close, daemon=True)
                closing.start()
                closing.join(_CLOSE_S)
                self.hanging += closing.is_alive()

    def _read(self, consumer: Consumer) -> None:
        """Until the end, or until this client has been silent for too long."""
        places = [TopicPartition(self._topic, p, at) for p, at in enumerate(self._next)]
        consumer.assign(places)
        heard_s = time.monotonic()
        while not self._stopping.is_set():
            messages = consumer.consume(_RECORDS, _WAIT_S)
            self._see(messages)
            if any(message.error() is None for message in messages):
                heard_s = time.monotonic()
            if time.monotonic() - heard_s > _SILENT_S:
                self.replaced += 1
                return

    def _see(self, messages: Sequence[Message]) -> None:
        now_s = time.monotonic()
        for message in messages:
            error, partition = message.error(), message.partition()
            if error is None and partition is not None:
                record = record_of(message)
                origin = origin_of(record)
                assert origin is not None, f"a record that the feeder did not send: {record}"
                self.seen.append(record)
                self._next[partition] = (message.offset() or 0) + 1
                # In this order: a caller that finds a sequence must find its time.
                self._times_s[partition].append(now_s)
                # A function with state returns its rows key by key.
                shown = self._sequences[partition]
                shown.append(max(origin.sequence, shown[-1] if shown else 0))
            elif error is not None and error.code() != _PARTITION_EOF and not error.retriable():
                raise AssertionError(f"the witness of {self._topic} cannot read: {error}")
