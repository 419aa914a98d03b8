"""Topics as brokers describe them, and the partitions whose offsets can be requested safely.

If librdkafka (2.15.0, 2.16.0) does not know a leader, ``list_offsets`` looks it up in the caller's
thread. It registers for the next metadata answer before it is ready. If an answer arrives
meanwhile, the client's own thread frees memory that the caller still uses
(``rd_kafka_topic_partition_list_query_leaders_async_worker``): the process crashes, or continues
with damaged memory. Concurrent calls for unknown topics crash within seconds. After
``describe_topics`` the client knows the leader of each partition that has one, and a request for
those partitions needs no lookup.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from sluice.connectors.kafka.client.confluent import (
    AdminClient,
    KafkaError,
    KafkaException,
    TopicCollection,
    translate,
)
from sluice.connectors.kafka.client.retry import Deadline
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.splits import TopicFacts
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import SourceChangedError

__all__ = [
    "Descriptions",
    "KnownLeaders",
    "answers_deadline",
    "described",
    "facts",
    "is_absence",
    "result",
]

_MARGIN_S = 5.0
_FRESH_S = 1.0  # much less than the client keeps it for, unless a user says so

T = TypeVar("T")

Descriptions = Mapping[str, Any]
"""confluent-kafka's ``TopicDescription`` by topic; what does not exist is absent."""


def described(admin: AdminClient, names: Collection[str], *, timeout_s: float) -> Descriptions:
    """Describe topics, and wait for all answers.

    Raises:
        KafkaException: a broker refuses, or none answers.
        concurrent.futures.TimeoutError: an answer got lost.
    """
    if not names:
        return {}
    futures: Mapping[str, Future[Any]] = admin.describe_topics(
        TopicCollection(sorted(names)), request_timeout=timeout_s
    )
    found: dict[str, Any] = {}
    deadline = answers_deadline(timeout_s)
    for name, future in futures.items():
        try:
            found[name] = result(future, deadline)
        except KafkaException as err:
            if not is_absence(err):
                raise
    return found


def facts(descriptions: Descriptions) -> dict[str, TopicFacts]:
    """Return id and partitions of each topic."""
    return {
        name: TopicFacts(
            topic_id=str(topic.topic_id),
            partitions=frozenset(partition.id for partition in topic.partitions),
        )
        for name, topic in descriptions.items()
    }


class KnownLeaders:
    """The partitions whose leaders a client has just learned. Driver, one thread at a time.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._described_s: dict[str, float] = {}
        self._has_leader: dict[PartitionKey, bool] = {}

    def learn(self, names: Collection[str], descriptions: Descriptions) -> None:
        """Remember the description of these topics; a missing topic has no partition."""
        described_s = dict.fromkeys(names, self._clock())
        for key in [key for key in self._has_leader if key[0] in described_s]:
            del self._has_leader[key]
        for name, topic in descriptions.items():
            self._has_leader |= {(name, p.id): p.leader is not None for p in topic.partitions}
        self._described_s |= described_s

    def forget(self) -> None:
        """Forget all descriptions: the client may have newer metadata."""
        self._described_s.clear()
        self._has_leader.clear()

    def undescribed(self, keys: Iterable[PartitionKey]) -> set[str]:
        """Return their topics that were not described within the last second."""
        since_s = self._clock() - _FRESH_S
        return {name for name, _ in keys if self._described_s.get(name, since_s) <= since_s}

    def located(self, keys: Iterable[PartitionKey]) -> list[PartitionKey]:
        """Return the partitions that exist.

        Raises:
            KafkaException: one has no leader at the moment.
        """
        there = [key for key in keys if key in self._has_leader]
        if not all(self._has_leader[key] for key in there):
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return there


def answers_deadline(timeout_s: float) -> Deadline:
    """Return the deadline for all futures of one request.

    librdkafka ends its requests by itself; the margin only guards against lost futures.
    """
    return Deadline(timeout_s + _MARGIN_S)


def result(future: "Future[T]", deadline: Deadline) -> T:
    """Wait for a future of the client until then."""
    return future.result(max(0.0, deadline.left_s))


def is_absence(err: KafkaException) -> bool:
    """Whether the topic or partition of a request does not exist."""
    # "No leaders found" answers a request about deleted partitions only.
    return isinstance(translate(err), SourceChangedError) or "No leaders found" in str(err)
