"""Checks the output of a run with a read_committed reader: every record once, and when."""

import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.peers.records import HEAD_BYTES, Ints, heads, tail_of
from sluice.connectors.kafka.client.confluent import OFFSET_BEGINNING, Message, TopicPartition
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.verify.topic_history import reading_consumer, topic_ends

__all__ = [
    "TENTH",
    "Verdict",
    "judge",
    "judge_counts",
    "judge_tenths",
    "judge_windows",
    "read_counts",
    "read_output",
    "read_tenths",
    "read_windows",
]

_CONSUME_RECORDS = 10_000
_CONSUME_S = 0.1
_IDLE_S = 60.0

TENTH = 10
"""Records of a key between two counts that a program of `judge_tenths` writes."""


@dataclass(slots=True)
class _Found:
    """The records of one output partition, in its order."""

    partitions: list[Ints] = field(default_factory=list)
    numbers: list[Ints] = field(default_factory=list)
    stamps_ms: list[Ints] = field(default_factory=list)
    foreign: int = 0

    def take(self, messages: Sequence[Message], tail: bytes) -> None:
        """Parse values; those without a head and the tail are foreign."""
        values, stamps = [], []
        for message in messages:
            value = message.value() or b""
            if isinstance(value, bytes) and value[HEAD_BYTES:] == tail:
                values.append(value)
                stamps.append(message.timestamp()[1])
        self.foreign += len(messages) - len(values)
        if values:
            partitions, numbers, _ = heads(values)
            self.partitions.append(partitions)
            self.numbers.append(numbers)
            self.stamps_ms.append(np.array(stamps, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a finished run.

    Attributes:
        found: records that a read_committed reader gets.
        lost, duplicated, unexpected: against the input, as a multiset.
        reordered: records that follow a later one of their input partition, within one partition
            of the output.
        first_ms, middle_ms, last_ms: append times of the first record, the middle one and the last
            one, by the broker's clock.
        at_first: records that the first append includes already; a count appends after a batch.
    """

    found: int
    lost: int
    duplicated: int
    unexpected: int
    reordered: int
    first_ms: int
    middle_ms: int
    last_ms: int
    at_first: int = 0

    @property
    def faults(self) -> int:
        """Faults that no exactly-once program may have."""
        return self.lost + self.duplicated + self.unexpected + self.reordered

    @property
    def rate(self) -> float:
        """Records a second from first to last append."""
        return (self.found - self.at_first) / max(0.001, (self.last_ms - self.first_ms) / 1000)

    @property
    def second_half_rate(self) -> float:
        """The same from the append of the middle record on."""
        return self.found / 2 / max(0.001, (self.last_ms - self.middle_ms) / 1000)


def judge(
    found: Mapping[int, tuple[Ints, Ints, Ints]],
    shares: Sequence[int],
    foreign: int,
    *,
    every: int = 1,
) -> Verdict:
    """Compare with ``shares[p]`` records of each input partition p.

    Args:
        found: by output partition: input partitions, numbers and append times in ms, in order.
        foreign: values that are no record of the race.
        every: between two numbers of a partition, see `benchmarks.peers.records.fill`.
    """
    lost = duplicated = reordered = 0
    unexpected = foreign
    for partition, share in enumerate(shares):
        numbers = [n[p == partition] for p, n, _ in found.values()]
        reordered += sum(int((np.diff(one) < 0).sum()) for one in numbers)
        together = np.concatenate(numbers) if numbers else np.empty(0, np.int64)
        if every > 1:
            own = (together - partition) % every == 0
            together = np.where(own, (together - partition) // every, -1)
        known = together[(together >= 0) & (together < share)]
        unexpected += len(together) - len(known)
        times = np.bincount(known, minlength=share)
        lost += int((times == 0).sum())
        duplicated += int((times[times > 1] - 1).sum())
    unexpected += sum(int(((p < 0) | (p >= len(shares))).sum()) for p, _, _ in found.values())
    stamps = np.sort(np.concatenate([s for _, _, s in found.values()] or [np.empty(0, np.int64)]))
    if not len(stamps):
        stamps = np.zeros(1, np.int64)
    return Verdict(
        found=sum(len(n) for _, n, _ in found.values()) + foreign,
        lost=lost,
        duplicated=duplicated,
        unexpected=unexpected,
        reordered=reordered,
        first_ms=int(stamps[0]),
        middle_ms=int(stamps[len(stamps) // 2]),
        last_ms=int(stamps[-1]),
    )


def read_output(
    connection: KafkaConnection,
    topic: str,
    *,
    shares: Sequence[int],
    value_bytes: int,
    every: int = 1,
) -> Verdict:
    """Read all committed records, and judge them.

    Raises:
        RuntimeError: the topic could not be read to its end.
    """
    found: dict[int, _Found] = defaultdict(_Found)
    tail = tail_of(value_bytes)
    for partition, messages in _messages(connection, topic):
        found[partition].take(messages, tail)
    columns = {
        p: (np.concatenate(f.partitions), np.concatenate(f.numbers), np.concatenate(f.stamps_ms))
        for p, f in found.items()
        if f.numbers
    }
    return judge(columns, shares, sum(one.foreign for one in found.values()), every=every)


def read_counts(connection: KafkaConnection, topic: str, *, records: int) -> Verdict:
    """Read all committed counts per key, and judge them against the number of records.

    A record without a key has the key before its count, and a space between them.

    Raises:
        RuntimeError: the topic could not be read to its end.
    """
    rows = [
        (message.timestamp()[1], (partition, key), count)
        for partition, messages in _messages(connection, topic)
        for message in messages
        for key, count in [_count_of(message)]
    ]
    return judge_counts(rows, records)


def _count_of(message: Message) -> tuple[bytes, int]:
    key, value = bytes(message.key() or b""), bytes(message.value() or b"0")
    if not key:
        key, _, value = value.rpartition(b" ")
    return key, int(value)


def read_tenths(connection: KafkaConnection, topic: str, *, records: int) -> Verdict:
    """The same of each tenth count of a key, in any partition.

    Raises:
        RuntimeError: the topic could not be read to its end.
    """
    rows = [
        (message.timestamp()[1], *_count_of(message))
        for _, messages in _messages(connection, topic)
        for message in messages
    ]
    return judge_tenths(rows, records)


def read_windows(connection: KafkaConnection, topic: str, *, records: int) -> Verdict:
    """The same of counts per window and key: the text before ``|`` in a key is its window.

    Raises:
        RuntimeError: the topic could not be read to its end.
    """
    rows = [
        (message.timestamp()[1], *_count_of(message))
        for _, messages in _messages(connection, topic)
        for message in messages
    ]
    return judge_windows(rows, records)


def judge_windows(rows: Sequence[tuple[int, bytes, int]], records: int) -> Verdict:
    """Compare counts that come once, when their window closes, with the number of records.

    The rate counts from the last append of the first window on.
    """
    by_window: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for at_ms, key, count in rows:
        by_window[key.partition(b"|")[0]].append((at_ms, count))
    windows = sorted(by_window.values(), key=max)
    found = sum(count for _, _, count in rows)
    repeated = len(rows) - len({key for _, key, _ in rows})
    ends = [max(at_ms for at_ms, _ in window) for window in windows] or [0]
    halfway = np.searchsorted(
        np.cumsum([sum(count for _, count in window) for window in windows] or [0]), found / 2
    )
    return Verdict(
        found=found,
        lost=max(0, records - found),
        duplicated=max(0, found - records) + repeated,
        unexpected=0,
        reordered=0,
        first_ms=ends[0],
        middle_ms=ends[int(halfway)],
        last_ms=ends[-1],
        at_first=sum(count for _, count in windows[0]) if windows else 0,
    )


def judge_tenths(rows: Sequence[tuple[int, bytes, int]], records: int) -> Verdict:
    """Compare each tenth count of a key, each once, with the number of records; all keys have the
    same number of records, a multiple of 10.

    The last digit of a key is added to its count before it is compared with 10. So outputs come
    all along, and not only when all keys reach ten. The rate counts from the first append on.
    """
    stamps = sorted(at_ms for at_ms, _, _ in rows) or [0]
    keys = {key for _, key, _ in rows}
    counts = Counter((key, count) for _, key, count in rows)
    share = records // max(1, len(keys))
    known = sum(
        (count + key[-1] - ord("0")) % TENTH == 0 and 0 < count <= share for key, count in counts
    )
    return Verdict(
        found=TENTH * len(rows),
        lost=max(0, records - TENTH * known),
        duplicated=TENTH * (len(rows) - len(counts)),
        unexpected=TENTH * (len(counts) - known),
        reordered=0,
        first_ms=stamps[0],
        middle_ms=stamps[len(stamps) // 2],
        last_ms=stamps[-1],
        at_first=TENTH * bisect_right(stamps, stamps[0]) if rows else 0,
    )


def judge_counts(rows: Sequence[tuple[int, Hashable, int]], records: int) -> Verdict:
    """Compare the last counts with the number of records.

    Args:
        rows: append times in ms, keys and counts, in the order of each key.
        records: of the input.
    """
    last: dict[Hashable, int] = {}
    at_first = repeated = falling = 0
    increments = []
    for at_ms, key, count in rows:
        before = last.get(key, 0)
        at_first += count if key not in last else 0
        repeated += count == before
        falling += count < before
        increments.append((at_ms, count - before))
        last[key] = count
    increments.sort()
    found = sum(last.values())
    reached = np.cumsum([more for _, more in increments] or [0])
    stamps = [at_ms for at_ms, _ in increments] or [0]
    return Verdict(
        found=found,
        lost=max(0, records - found),
        duplicated=max(0, found - records) + repeated,
        unexpected=0,
        reordered=falling,
        first_ms=stamps[0],
        middle_ms=stamps[int(np.searchsorted(reached, found / 2))] if found else 0,
        last_ms=stamps[-1],
        at_first=at_first,
    )


def _messages(connection: KafkaConnection, topic: str) -> Iterator[tuple[int, Sequence[Message]]]:
    """All committed records of a topic, by partition, in parts.

    Raises:
        RuntimeError: the topic could not be read to its end.
    """
    wanted = {p: end for p, end in topic_ends(connection, topic).stable.items() if end}
    consumer = reading_consumer(connection, group="sluice-verdict")
    try:
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in wanted])
        progressed_s = time.monotonic()
        while wanted:
            messages = consumer.consume(_CONSUME_RECORDS, _CONSUME_S)
            if messages:
                progressed_s = time.monotonic()
                yield from _by_partition(messages, wanted).items()
            elif time.monotonic() - progressed_s > _IDLE_S:
                raise RuntimeError(f"{topic} could not be read to its end: {wanted}")
    finally:
        consumer.close()


def _by_partition(
    messages: Sequence[Message], wanted: dict[int, int]
) -> Mapping[int, Sequence[Message]]:
    by_partition: dict[int, list[Message]] = defaultdict(list)
    for message in messages:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        if message.error() is None:
            by_partition[partition].append(message)
        elif offset >= wanted.get(partition, 0):  # the end of the partition
            wanted.pop(partition, None)
    return by_partition
