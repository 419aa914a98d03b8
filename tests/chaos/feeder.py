"""Feeds a topic steadily while pipelines are killed, and knows exactly what it has sent."""

import contextlib
import threading
from collections.abc import Iterator

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sluice.runtime.checker import Payload, Record
from tests.joined_thread import JoinedThread

__all__ = ["Feeder"]

_CHUNK_RECORDS = 10
_PAUSE_S = 0.05
_ACKNOWLEDGED_S = 300.0


class Feeder(JoinedThread):
    """Sends the records of a `Payload` in a thread of its own, a chunk every 50 ms, until stopped.

    Every record is acknowledged before `close` returns, so `sent` is what the topic holds.

    Args:
        may_lose: the topic, by an unclean election, behind which an idempotent producer has a fatal
            error. Another one goes on then; what was not acknowledged is not sent again.

    Attributes:
        sent: so many records of the payload.
        unacknowledged: values of those that may be in the topic or not.
    """

    def __init__(self, bootstrap: str, payload: Payload, *, may_lose: bool = False) -> None:
        super().__init__("feeder", stop_s=_ACKNOWLEDGED_S)
        self.payload = payload
        self.sent = 0
        self.unacknowledged: list[bytes] = []
        self._bootstrap = bootstrap
        self._may_lose = may_lose
        self._producer = _make_producer(bootstrap)
        self._errors: list[KafkaError] = []
        self._sending = threading.Lock()

    def send(self, count: int) -> None:
        """Send the next ``count`` records; the caller's thread, while the feeder is not running."""
        for record in self.payload.records(count, first=self.sent):
            try:
                self._produce(record)
            except KafkaException as err:
                if not self._may_lose or not err.args[0].fatal():
                    raise
                self._begin_anew()
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

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is sent meanwhile; when it begins, everything sent is acknowledged. What comes
        behind it comes from another producer, of which no replica can have lost records."""
        with self._sending:
            self.flush()
            yield
            self._producer = _make_producer(self._bootstrap)

    def _produce(self, record: Record) -> None:
        self._producer.produce(
            record.topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            partition=record.partition,
            on_delivery=self._delivered,
        )

    def _begin_anew(self) -> None:
        self._producer.purge()
        self._producer.flush(_ACKNOWLEDGED_S)
        self._producer = _make_producer(self._bootstrap)

    def _work(self) -> None:
        while not self._stopping.wait(_PAUSE_S):
            with self._sending:
                self.send(_CHUNK_RECORDS)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._may_lose:
            self.unacknowledged.append(message.value() or b"")
        elif error is not None:
            self._errors.append(error)


def _make_producer(bootstrap: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            # A cluster may stand still for longer than the default of five minutes.
            "message.timeout.ms": 1_200_000,
            "log_level": 0,
        }
    )
