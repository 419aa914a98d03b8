"""Order events for `sluice demo`: keyed, with headers, some of them null; every one unique."""

import json
import random
import threading
import time
from collections.abc import Iterator

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import KafkaError, Message, make_producer, translate
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.runtime.checker import Record
from sluice.runtime.process.side_thread import SideThread

__all__ = ["Loader", "order_events"]

_CUSTOMERS = 5_000
_ARTICLES = ("tea", "coffee", "cocoa", "sugar", "rice", "pepper", "salt", "flour")
_EVENTS = ("created", "paid", "packed", "shipped", "delivered")
_CANCELLED_EVERY = 50
_CHUNK_RECORDS = 500
_STOP_S = 30.0


def order_events(topic: str, partitions: int, count: int) -> Iterator[Record]:
    """The first ``count`` events: the same in any process. Orders of one customer stay in one
    partition; offsets are those of a topic without other records."""
    rng = random.Random(20_26)
    offsets = [0] * partitions
    for number in range(count):
        customer = int(rng.random() * _CUSTOMERS)
        partition = customer % partitions
        order_id = f"o-{number:09d}"
        event, value = _EVENTS[number % len(_EVENTS)], None
        if number % _CANCELLED_EVERY == _CANCELLED_EVERY - 1:
            event = "cancelled"  # a null value, as in compacted topics
        else:
            content = {
                "order": order_id,
                "customer": customer,
                "article": _ARTICLES[number % len(_ARTICLES)],
                "cents": int(rng.random() * 100_000),
            }
            value = json.dumps(content).encode()
        headers = (("event", event.encode()), ("order", order_id.encode()))
        yield Record(topic, partition, offsets[partition], b"c-%d" % customer, value, headers)
        offsets[partition] += 1


class Loader(SideThread):
    """Sends order events at a steady rate in a thread of its own; `sent` counts them.

    As a context manager it starts and stops.

    Args:
        orders: ``count`` records.
        rate: records per second; less if the machine is slower.
        held_back: number of last records, which wait for `release`.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        orders: Iterator[Record],
        *,
        count: int,
        rate: float,
        held_back: int = 0,
    ) -> None:
        super().__init__("demo loader", stop_s=_STOP_S)
        self.count = count
        self.sent = 0
        self._freely = count - held_back
        self._released = threading.Event()
        self._orders = orders
        self._rate = rate
        self._producer = make_producer(
            {
                **connection.librdkafka(Role.PRODUCER),
                "enable.idempotence": True,
                "linger.ms": 20,
                "delivery.report.only.error": True,
            }
        )

    @property
    def is_done(self) -> bool:
        """Everything is sent and acknowledged; otherwise raises the error."""
        self._require_sound()
        return self.sent == self.count

    def release(self) -> None:
        """Send the last records, too."""
        self._released.set()

    def close(self) -> None:
        """See `SideThread.close`."""
        self._released.set()  # otherwise its thread would wait for ever
        super().close()

    def _work(self) -> None:
        started = time.monotonic()
        for number, record in enumerate(self._orders, start=1):
            if number > self._freely and not self._released.is_set():
                self._producer.flush(60)
                self._released.wait()
            self._send(record)
            if number % _CHUNK_RECORDS == 0 or number == self.count:
                self._producer.poll(0)
                if number == self.count:
                    self._producer.flush(60)
                self.sent = number
                ahead_s = number / self._rate - (time.monotonic() - started)
                if self._stopping.wait(max(0.0, ahead_s)) or self._error is not None:
                    return

    def _send(self, record: Record) -> None:
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    on_delivery=self._delivered,
                )
                return
            except BufferError:
                self._producer.poll(0.05)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._error = translate(error, {"topic": message.topic()})
