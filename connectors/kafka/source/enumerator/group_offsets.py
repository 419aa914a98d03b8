"""Offsets of one consumer group, read and published without being a member of it."""

from collections.abc import Collection, Iterable, Mapping

from sluice.connectors.kafka.client.confluent import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
    make_consumer,
)
from sluice.connectors.kafka.client.retry import Deadline
from sluice.connectors.kafka.source.positions import PartitionKey

__all__ = ["ANSWER_MS", "GroupOffsets"]

ANSWER_MS = 5_000
"""Timeout of a request. If a coordinator hangs and another broker takes the group, the client
notices only after a timeout; otherwise it looks up the coordinator every ten minutes."""

_POLL_S = 0.005  # a poll takes so long even if the answer arrives at once


class GroupOffsets:
    """A group's offsets. Driver, one thread at a time.

    Uses a consumer that never joins the group, not the admin client. If the group's coordinator
    dies during an admin request, librdkafka 2.16 ends the process by a failed assertion (seen when
    a broker of three was killed).
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
            self._consumer.poll(0)  # runs the callback that reports a refused log-in
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
        deadline = Deadline(timeout_s)
        while not self._answers:
            if deadline.is_over:
                raise TimeoutError(f"offsets of group {self._group_id} were not confirmed")
            self._consumer.poll(_POLL_S)
        error, answered = self._answers.pop()
        _raise_first([error, *(place.error for place in answered)])

    def close(self) -> None:
        """Release connections.

        Does not call the client's own ``close``: that waits for the confirmation of a commit, for
        as long as the coordinator hangs.
        """
        del self._consumer


def _raise_first(errors: Iterable[KafkaError | None]) -> None:
    for error in errors:
        if error is not None:
            raise KafkaException(error)
