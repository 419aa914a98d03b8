"""The records of the race: padded text with the record's number and the time it was made.

No keys: PyFlink's Kafka source cannot read them. The function of every contender appends ``!``.
"""

import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import KafkaError, make_producer
from sluice.connectors.kafka.client.connection import KafkaConnection

__all__ = ["HEAD_BYTES", "Ints", "fill", "heads", "paced_value", "tail_of"]

Ints = npt.NDArray[np.int64]

_FORM = b"%03d/%012d/%016d|"  # input partition, its number there, when it was made in us
HEAD_BYTES = len(_FORM % (0, 0, 0))
_PARTITION, _NUMBER, _MADE = slice(0, 3), slice(4, 16), slice(17, 33)
_CHUNK = 10_000
_FLUSH_S = 120.0


def _padding(value_bytes: int) -> bytes:
    if value_bytes < HEAD_BYTES:
        raise ValueError(f"a numbered record needs {HEAD_BYTES} bytes")
    return b"." * (value_bytes - HEAD_BYTES)


def tail_of(value_bytes: int) -> bytes:
    """The text after the head in the output."""
    return _padding(value_bytes) + b"!"


def paced_value(partition: int, number: int, value_bytes: int) -> bytes:
    """A record with the present time."""
    return _FORM % (partition, number, time.time_ns() // 1000) + _padding(value_bytes)


def fill(
    connection: KafkaConnection,
    topic: str,
    count: int,
    *,
    value_bytes: int,
    partitions: int,
    every: int = 1,
    us_each: int = 0,
    end_us: int | None = None,
) -> None:
    """Append ``count`` records, spread evenly and in turn; returns when all are acknowledged.

    Args:
        every: 1: each partition has the numbers from 0 on. The number of partitions: partition p
            has p, p + every, and so on, so that the last digits of a number decide its partition.
        us_each: event time from one number to the next; 0: the records have none.
        end_us: the event time of one more record in each partition, which closes all windows.
    """
    errors: list[KafkaError] = []
    producer = make_producer(
        {
            **connection.librdkafka(Role.PRODUCER),
            "enable.idempotence": True,  # a retry must not change the order
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 200_000,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: errors.append(error),
        }
    )
    padding = _padding(value_bytes)

    def append(partition: int, heads: Iterable[tuple[int, int]]) -> None:
        messages = [{"value": _FORM % (partition, *head) + padding} for head in heads]
        sent = 0
        while sent < len(messages):
            sent += producer.produce_batch(topic, messages[sent:], partition=partition)
            producer.poll(0 if sent == len(messages) else 0.01)

    for partition, chunk in _chunks(count, partitions):
        numbers = chunk if every == 1 else (partition + n * every for n in chunk)
        append(partition, ((n, n * us_each) for n in numbers))
    if end_us is not None:
        for partition in range(partitions):
            append(partition, [(partition, end_us)])
    left = producer.flush(_FLUSH_S)
    if left or errors:
        raise RuntimeError(f"{left} records were not acknowledged: {errors[:1]}")


def _chunks(count: int, partitions: int) -> Iterator[tuple[int, range]]:
    shares = [count // partitions + (p < count % partitions) for p in range(partitions)]
    for first in range(0, max(shares), _CHUNK):
        for partition, share in enumerate(shares):
            yield partition, range(first, min(first + _CHUNK, share))


def heads(values: Sequence[bytes]) -> tuple[Ints, Ints, Ints]:
    """Partition, number and microseconds that each value claims, shape (n,) each.

    Every value must have at least `HEAD_BYTES`.
    """
    joined = b"".join(value[:HEAD_BYTES] for value in values)
    digits = np.frombuffer(joined, dtype=np.uint8).reshape(-1, HEAD_BYTES)
    return _number(digits, _PARTITION), _number(digits, _NUMBER), _number(digits, _MADE)


def _number(digits: npt.NDArray[np.uint8], place: slice) -> Ints:
    figures = digits[:, place].astype(np.int64) - ord("0")
    powers = 10 ** np.arange(figures.shape[1] - 1, -1, -1, dtype=np.int64)
    found: Ints = figures @ powers
    # A field with another character than digits is no number.
    found[((figures < 0) | (figures > 9)).any(axis=1)] = -1
    return found
