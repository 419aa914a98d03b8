"""Feeds a topic steadily while pipelines are killed, and knows exactly what it has sent."""

from confluent_kafka import KafkaError, Message, Producer

from sluice.runtime.checker import Payload, Record
from tests.kit.threads.joined_thread import JoinedThread

_CHUNK_RECORDS = 10
_PAUSE_S = 0.05
_ACKNOWLEDGED_S = 300.0


class Feeder(JoinedThread):
    """Sends the records of a `Payload` in a thread of its own, a chunk every 50 ms, until stopped.

    Every record is acknowledged before `close` returns, so `sent` is what the topic holds.

    Attributes:
        sent: so many records of the payload.
    """

    def __init__(self, bootstrap: str, payload: Payload) -> None:
        super().__init__("feeder", stop_s=_ACKNOWLEDGED_S)
        self.payload = payload
        self.sent = 0
        self._producer = _make_producer(bootstrap)
        self._errors: list[KafkaError] = []

    def send(self, count: int) -> None:
        """Send the next ``count`` records; the caller's thread, while the feeder is not running."""
        for record in self.payload.records(count, first=self.sent):
            self._produce(record)
            self.sent += 1
            self._producer.poll(0)

    def flush(self) -> None:
        """Wait until everything sent is acknowledged."""
        left = self._producer.flush(_ACKNOWLEDGED_S)
        assert not left, f"{left} records were not acknowledged"
        assert not self._errors, self._errors[0]

    def close(self) -> None:
        """Feed no more; everything sent is acknowledged."""
        super().close()
        self.flush()

    def _produce(self, record: Record) -> None:
        self._producer.produce(
            record.topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            partition=record.partition,
            on_delivery=self._delivered,
        )

    def _work(self) -> None:
        while not self._stopping.wait(_PAUSE_S):
            self.send(_CHUNK_RECORDS)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        del message
        if error is not None:
            self._errors.append(error)


def _make_producer(bootstrap: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            # A cluster may hang for longer than the default of five minutes.
            "message.timeout.ms": 1_200_000,
            "log_level": 0,
        }
    )
