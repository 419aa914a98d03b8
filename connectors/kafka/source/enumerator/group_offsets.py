"""Offsets of one consumer group, read and published without being a member of it."""

import time
from collections.abc import Collection, Iterable, Mapping

from sluice.connectors.kafka.client.confluent import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
    make_consumer,
)
from sluice.connectors.kafka.source.positions import PartitionKey

__all__ = ["ANSWER_MS", "GroupOffsets"]

ANSWER_MS = 5_000
"""Of a coordinator that hangs, while another broker has the group, a client learns only when its
request has timed out; else it asks every ten minutes who coordinates. These requests are small."""

_POLL_S = 0.005  # a poll lasts so long, also where the answer comes at once


class GroupOffsets:
    """A group's offsets. Driver, one thread at a time.

    A consumer that never joins, and not the admin client: when the broker that coordinates the
    group goes away in the midst of an admin request, librdkafka 2.16 ends the whole process by a
    failed assertion (seen when a broker of three was killed).
    """

    def __init__(self, config: Mapping[str, object], group_id: str) -> None:
        self._group_id = group_id
        self._answers: list[tuple[KafkaError | None, list[TopicPartition]]] = []
        self._consumer: Consumer = make_consumer(
            {
                **config,
                "socket.timeout.ms": ANSWER_MS,
                "group.id": group_id,
                "enable.auto.commit": False,
                "on_commit": lambda error, places: self._answers.append((error, places)),
            }
        )

    def read(self, keys: Collection[PartitionKey], *, timeout_s: float) -> dict[PartitionKey, int]:
        """Committed offsets; partitions without one are absent. Raises `KafkaException`."""
        places = [TopicPartition(topic, number) for topic, number in sorted(keys)]
        try:
            found = self._consumer.committed(places, timeout_s)
        except KafkaException:
            self._consumer.poll(0)  # serves the callback that learns of a refused log-in
            raise
        _raise_first(place.error for place in found)
        return {
            (place.topic, place.partition): place.offset for place in found if place.offset >= 0
        }

    def publish(self, offsets: Mapping[PartitionKey, int], *, timeout_s: float) -> None:
        """Commit offsets and wait for the answer. Raises `KafkaException`, `TimeoutError`."""
        places = [TopicPartition(topic, number, at) for (topic, number), at in offsets.items()]
        self._answers.clear()
        # A synchronous commit would wait without a bound.
        self._consumer.commit(offsets=places, asynchronous=True)
        deadline_s = time.monotonic() + timeout_s
        while not self._answers:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"offsets of group {self._group_id} were not confirmed")
            self._consumer.poll(_POLL_S)
        error, answered = self._answers.pop()
        _raise_first([error, *(place.error for place in answered)])

    def close(self) -> None:
        """Release connections. Not by the client's own ``close``, which waits until an offset that
        was committed is confirmed: for as long as the coordinator hangs."""
        del self._consumer


def _raise_first(errors: Iterable[KafkaError | None]) -> None:
    for error in errors:
        if error is not None:
            raise KafkaException(error)
