"""Records with their origin and time at a steady pace, and a reader that notes when it sees one."""

import bisect
import itertools
import struct
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.measuring.feeding import Records
from sluice.connectors.kafka.client.confluent import OFFSET_BEGINNING, Message, TopicPartition
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.verify.topic_history import reading_consumer, topic_ends
from sluice.runtime.process.side_thread import SideThread

__all__ = ["Paced", "Seen", "VisibleRecords"]

_HEAD = struct.Struct(">iqd")  # input partition, its offset, when it was made
_VALUE_BYTES = 100
_CONSUME_RECORDS = 5_000
_CONSUME_S = 0.02


class Paced:
    """A burst for `benchmarks.measuring.feeding.Feed`: the records due since the previous burst.

    Args:
        partitions: in turn, so that each has the same pace.
        per_s: records a second of all together.
    """

    def __init__(self, partitions: int, per_s: float) -> None:
        self._partitions = partitions
        self._per_s = per_s
        self._began_s: float | None = None
        self.sent = 0

    def __call__(self) -> Records:
        """The records that are due."""
        now_s = time.monotonic()
        if self._began_s is None:
            self._began_s = now_s
        return self._due(int((now_s - self._began_s) * self._per_s))

    def _due(self, total: int) -> Iterable[tuple[int, bytes]]:
        padding = bytes(_VALUE_BYTES - _HEAD.size)
        while self.sent < total:
            number, partition = divmod(self.sent, self._partitions)
            self.sent += 1
            yield partition, _HEAD.pack(partition, number, time.time()) + padding

    def sent_to(self, partition: int) -> int:
        """The number of records sent to a partition."""
        return (self.sent - partition + self._partitions - 1) // self._partitions


@dataclass(slots=True)
class Seen:
    """The records of one input partition that a reader saw, as parallel lists in its order.

    Attributes:
        at_s: wall clock.
        offsets: of the input record.
        made_s: wall clock.
    """

    at_s: list[float] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    made_s: list[float] = field(default_factory=list)

    def between(self, first_s: float, last_s: float) -> int:
        """The number of records that became visible in ``[first_s, last_s)``."""
        return bisect.bisect_left(self.at_s, last_s) - bisect.bisect_left(self.at_s, first_s)

    def waits_s(self, first_s: float, last_s: float) -> list[float]:
        """Seconds from made to seen, of records that became visible in ``[first_s, last_s)``."""
        start, end = (bisect.bisect_left(self.at_s, moment) for moment in (first_s, last_s))
        return [self.at_s[place] - self.made_s[place] for place in range(start, end)]

    def back_s(self, moment_s: float) -> float | None:
        """When the first record made after a moment became visible; None: never."""
        for at_s, made_s in zip(self.at_s, self.made_s, strict=True):
            if made_s > moment_s:
                return at_s
        return None

    def longest_pause_s(self, first_s: float, last_s: float) -> float:
        """The longest time without a visible record that overlaps ``[first_s, last_s]``."""
        start = max(0, bisect.bisect_left(self.at_s, first_s) - 1)
        near = self.at_s[start : bisect.bisect_right(self.at_s, last_s) + 1]
        return max((after - before for before, after in itertools.pairwise(near)), default=0.0)

    def faults(self, sent: int, *, ordered: bool = True) -> int:
        """Counts lost, doubled and misplaced ones of ``sent`` records from offset 0 on."""
        known = set(self.offsets)
        lost = sum(offset not in known for offset in range(sent))
        foreign = sum(offset >= sent for offset in known)
        doubled = len(self.offsets) - len(known)
        pairs = zip(self.offsets, self.offsets[1:], strict=False)
        misplaced = sum(one > other for one, other in pairs) if ordered else 0
        return lost + foreign + doubled + misplaced


class VisibleRecords(SideThread):
    """A read_committed reader of the copies of `Paced` records, in a thread of its own.

    Args:
        start: first offset by partition; None: all records.
    """

    def __init__(
        self, connection: KafkaConnection, topic: str, *, start: Mapping[int, int] | None = None
    ) -> None:
        super().__init__("visible records")
        self._start = start or {}
        self._connection = connection
        self._topic = topic
        self._seen: dict[int, Seen] = {}
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """Records seen so far."""
        self._require_sound()
        with self._lock:
            return sum(len(found.offsets) for found in self._seen.values())

    def by_partition(self) -> Mapping[int, Seen]:
        """Records by input partition; complete after the reader is closed."""
        self._require_sound()
        with self._lock:
            return dict(self._seen)

    def _work(self) -> None:
        partitions = sorted(topic_ends(self._connection, self._topic).high)
        consumer = reading_consumer(self._connection, group="sluice-visible")
        try:
            consumer.assign(
                [
                    TopicPartition(self._topic, number, self._start.get(number, OFFSET_BEGINNING))
                    for number in partitions
                ]
            )
            while not self._stopping.is_set():
                messages = consumer.consume(_CONSUME_RECORDS, _CONSUME_S)
                self._note([message for message in messages if message.error() is None])
        finally:
            consumer.close()

    def _note(self, messages: Sequence[Message]) -> None:
        now_s = time.time()
        with self._lock:
            for message in messages:
                partition, offset, made_s = _HEAD.unpack_from(message.value() or b"")
                found = self._seen.setdefault(partition, Seen())
                found.at_s.append(now_s)
                found.offsets.append(offset)
                found.made_s.append(made_s)
