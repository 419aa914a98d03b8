"""Feeds a topic steadily while pipelines are killed, and knows exactly what it has sent."""

import threading
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, Producer

from runtime.checker import Payload

__all__ = ["Feeder"]

_CHUNK_RECORDS = 10
_PAUSE_S = 0.05
_ACKNOWLEDGED_S = 300.0


class Feeder:
    """Sends the records of a `Payload` in a thread of its own, a chunk every 50 ms, until stopped.

    Every record is acknowledged before `stop` returns, so `sent` is what the topic holds.
    """

    def __init__(self, bootstrap: str, payload: Payload) -> None:
        self.payload = payload
        self.sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                # A cluster may stand still for longer than the default of five minutes.
                "message.timeout.ms": 1_200_000,
                "log_level": 0,
            }
        )
        self._errors: list[KafkaError | Exception] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)

    def send(self, count: int) -> None:
        """Send the next ``count`` records; the caller's thread, while the feeder is not running."""
        for record in self.payload.records(count, first=self.sent):
            self._producer.produce(
                record.topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                on_delivery=self._delivered,
            )
            self.sent += 1
            self._producer.poll(0)

    def flush(self) -> None:
        """Wait until everything sent is acknowledged."""
        left = self._producer.flush(_ACKNOWLEDGED_S)
        assert not left, f"{left} records were not acknowledged"
        assert not self._errors, self._errors[0]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop feeding; everything sent is acknowledged."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_ACKNOWLEDGED_S)
            assert not self._thread.is_alive(), "the feeder does not end"
        self.flush()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(_PAUSE_S):
                self.send(_CHUNK_RECORDS)
        except Exception as err:  # noqa: BLE001  told by whoever stops this thread
            self._errors.append(err)

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self._errors.append(error)
