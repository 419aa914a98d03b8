"""Records that keep coming while something else is measured."""

import threading
from collections.abc import Callable, Iterable

from benchmarks.rig import Rig
from connectors.kafka._client import Producer

__all__ = ["Feed", "Records"]

Records = Iterable[tuple[int, bytes]]
"""(partition, value) of each; partition -1: the client chooses."""

_JOIN_S = 10


class Feed:
    """Produces in a thread, as long as it is entered.

    Args:
        pause_s: between two bursts.
        burst: makes the records of one.
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
        self._topic = topic
        self._pause_s = pause_s
        self._burst = burst
        self._producer = Producer({"bootstrap.servers": rig.bootstrap, "linger.ms": linger_ms})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(_JOIN_S)
        self._producer.flush(_JOIN_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_s):
            for partition, value in self._burst():
                self._producer.produce(self._topic, value, partition=partition)
            self._producer.poll(0)
