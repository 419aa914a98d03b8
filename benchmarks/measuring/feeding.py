"""Threads that produce records during a measurement."""

import time
from collections.abc import Callable, Iterable, Mapping

from benchmarks.measuring.rig import Rig
from sluice.connectors.kafka.client.confluent import Producer
from sluice.runtime.process.side_thread import SideThread

__all__ = ["BatchFeed", "Feed", "Records"]

Records = Iterable[tuple[int, bytes]]
"""(partition, value) of each; partition -1: the client chooses."""

_FLUSH_S = 60
_POLL_S = 0.1


class _Feed(SideThread):
    """Base of the feeds: a producer with ``config``, flushed at the end."""

    def __init__(self, rig: Rig, topic: str, *, pause_s: float, config: Mapping[str, int]) -> None:
        super().__init__("feed")
        self._topic = topic
        self._pause_s = pause_s
        self._producer = Producer(
            {"bootstrap.servers": rig.bootstrap, "enable.idempotence": True, **config}
        )

    def close(self) -> None:
        """See `SideThread.close`; sends every record that was made."""
        super().close()
        self._producer.flush(_FLUSH_S)
        self._require_sound()


class Feed(_Feed):
    """A context that produces in a thread.

    Args:
        pause_s: between two bursts.
        burst: makes the records of one burst.
        linger_ms: of the producer.
    """

    def __init__(
        self,
        rig: Rig,
        topic: str,
        *,
        pause_s: float,
        burst: Callable[[], Records],
        linger_ms: int = 0,
    ) -> None:
        super().__init__(rig, topic, pause_s=pause_s, config={"linger.ms": linger_ms})
        self._burst = burst

    def _work(self) -> None:
        while not self._stopping.wait(self._pause_s):
            for partition, value in self._burst():
                self._produce(partition, value)
            self._producer.poll(0)

    def _produce(self, partition: int, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, partition=partition)
            except BufferError:  # the broker is slow: retry until the record is accepted
                self._producer.poll(_POLL_S)
            else:
                return


class BatchFeed(_Feed):
    """A `Feed` of many equal records of 100 bytes, spread evenly, at a steady pace.

    Args:
        pause_s: between two bursts.
        partitions: of the topic.
        per_s: records a second of all partitions together.
    """

    def __init__(
        self, rig: Rig, topic: str, *, pause_s: float, partitions: int, per_s: float
    ) -> None:
        config = {"linger.ms": 20, "queue.buffering.max.messages": 2_000_000}
        super().__init__(rig, topic, pause_s=pause_s, config=config)
        self._partitions = partitions
        self._per_s = per_s / partitions

    def _work(self) -> None:
        began_s, sent = time.monotonic(), 0
        while not self._stopping.wait(self._pause_s):
            due = int((time.monotonic() - began_s) * self._per_s) - sent
            sent += due
            messages = [{"value": b"x" * 100}] * due
            for partition in range(self._partitions):
                self._producer.produce_batch(self._topic, messages, partition=partition)
            self._producer.poll(0)
