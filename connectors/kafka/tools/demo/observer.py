"""A read_committed reader that runs during the whole demo, while the pipeline is killed and
restarted.

The records it has seen must be a prefix of the topic's final content (`SpilledPrefix`); their times
show how long readers waited.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.connectors.kafka.client.confluent import (
    OFFSET_BEGINNING,
    PARTITION_EOF,
    Consumer,
    Message,
    TopicPartition,
    translate,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.verify.topic_history import (
    reading_consumer,
    record_of,
    topic_ends,
)
from sluice.runtime.checker import SpilledPrefix
from sluice.runtime.errors import UnreachableError
from sluice.runtime.process.side_thread import SideThread

__all__ = ["Observer", "Sighting"]

log = logging.getLogger(__name__)

_CONSUME_RECORDS = 5_000
_CONSUME_S = 0.02
_STOP_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Records that became visible together.

    Attributes:
        at_s: monotonic seconds.
        records: their number.
        total: records seen so far, including these.
    """

    at_s: float
    records: int
    total: int


class Observer(SideThread):
    """Reads a topic from its first record, in a thread of its own, until stopped.

    It lives in the process of the test or demo, never in the pipeline's, so it survives every kill.
    Used as a context manager.

    Args:
        seen: receives each record in the observer's thread, so do not use it until the observer is
            closed. None: only numbers and times are kept.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        *,
        seen: SpilledPrefix | None = None,
    ) -> None:
        super().__init__(f"observer {topic}", stop_s=_STOP_S)
        self._seen = seen
        self._connection = connection
        self._topic = topic
        self._changed = threading.Condition()
        self._sightings: list[Sighting] = []
        self._total = 0
        self._positions: dict[int, int] = {}

    @property
    def total(self) -> int:
        """Records seen so far."""
        with self._changed:
            return self._total

    def sightings(self) -> list[Sighting]:
        """All sightings so far, oldest first."""
        with self._changed:
            return list(self._sightings)

    def await_total(self, total: int, *, timeout_s: float) -> float:
        """Wait until ``total`` records were seen; returns the time on the observer's clock.

        Raises:
            UnreachableError: not seen in time.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._total >= total or self._error, timeout_s)
            self._require_sound()
            for sighting in self._sightings:
                if sighting.total >= total:
                    return sighting.at_s
            if total <= 0:
                return time.monotonic()
            raise UnreachableError(
                "a reader did not see the records in time",
                {
                    "topic": self._topic,
                    "seen": self._total,
                    "wanted": total,
                    "timeout_s": timeout_s,
                },
                "Read the pipeline's log, and check for open transactions.",
            )

    def catch_up(self, *, timeout_s: float) -> int:
        """Wait until it has seen everything that a reader can see now; returns the number of
        records.

        Raises:
            UnreachableError: not seen in time.
        """
        stable = topic_ends(self._connection, self._topic, timeout_s=timeout_s).stable
        with self._changed:
            self._changed.wait_for(lambda: self._has_reached(stable) or self._error, timeout_s)
            self._require_sound()
            if not self._has_reached(stable):
                raise UnreachableError(
                    "a reader did not reach the end of the topic in time",
                    {"topic": self._topic, "positions": self._positions, "ends": dict(stable)},
                    "Check whether the broker is overloaded.",
                )
            return self._total

    def _has_reached(self, ends: Mapping[int, int]) -> bool:
        return all(self._positions.get(number, 0) >= end for number, end in ends.items())

    def close(self) -> None:
        """Stop reading; raises the error that ended the reader early, if there is one."""
        super().close()
        self._require_sound()

    def _run(self) -> None:
        super()._run()
        with self._changed:  # passes the error to the waiting thread
            self._changed.notify_all()

    def _work(self) -> None:
        partitions = topic_ends(self._connection, self._topic).high
        consumer: Consumer = reading_consumer(self._connection, group="sluice-observer")
        try:
            consumer.assign(
                [TopicPartition(self._topic, number, OFFSET_BEGINNING) for number in partitions]
            )
            while not self._stopping.is_set():
                self._see(consumer.consume(_CONSUME_RECORDS, _CONSUME_S))
        finally:
            consumer.close()

    def _see(self, messages: Sequence[Message]) -> None:
        new = 0
        positions: dict[int, int] = {}
        for message in messages:
            error, position = message.error(), message.offset()
            if error is None:
                new += 1
                if self._seen is not None:
                    self._seen.append(record_of(message))
                positions[_number(message)] = (position or 0) + 1
            elif error.code() == PARTITION_EOF:
                positions[_number(message)] = position or 0  # also after control records
            elif not error.retriable():
                raise translate(error, {"topic": self._topic, "partition": message.partition()})
        if positions:
            self._note(new, positions)

    def _note(self, new: int, positions: Mapping[int, int]) -> None:
        with self._changed:
            self._positions.update(positions)
            if new:
                self._total += new
                self._sightings.append(
                    Sighting(at_s=time.monotonic(), records=new, total=self._total)
                )
            self._changed.notify_all()


def _number(message: Message) -> int:
    partition = message.partition()
    assert partition is not None
    return partition
