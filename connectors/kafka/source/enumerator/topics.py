"""Topics as brokers describe them, and which of their partitions may be asked for offsets.

librdkafka (2.15.0, 2.16.0) looks for leaders that it does not know in the thread that calls
``list_offsets``, and is listed for the next answer about topics before it is done with that. An
answer that comes in between is judged in the client's own thread, which frees what the caller still
uses (``rd_kafka_topic_partition_list_query_leaders_async_worker``): the process crashes, or goes on
with damaged memory. Calls at once for topics that the client does not know do so within seconds.
Behind an answer of ``describe_topics`` it knows the leaders of whatever has one; who asks for those
alone makes it look for nothing.
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
from sluice.connectors.kafka.source.positions import PartitionKey
from sluice.connectors.kafka.source.splits import TopicFacts
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import SourceChangedError

__all__ = [
    "Descriptions",
    "KnownLeaders",
    "described",
    "facts",
    "is_absence",
    "result",
    "until_s_for",
]

_MARGIN_S = 5.0
_FRESH_S = 1.0  # much less than the client keeps it for, unless a user says so

T = TypeVar("T")

Descriptions = Mapping[str, Any]
"""confluent-kafka's ``TopicDescription`` by topic; what does not exist is absent."""


def described(admin: AdminClient, names: Collection[str], *, timeout_s: float) -> Descriptions:
    """Ask, and wait for all answers.

    Raises:
        KafkaException: a broker refuses, or none answers.
        concurrent.futures.TimeoutError: an answer got lost.
    """
    if not names:
        return {}
    asked: Mapping[str, Future[Any]] = admin.describe_topics(
        TopicCollection(sorted(names)), request_timeout=timeout_s
    )
    found: dict[str, Any] = {}
    until_s = until_s_for(timeout_s)
    for name, future in asked.items():
        try:
            found[name] = result(future, until_s)
        except KafkaException as err:
            if not is_absence(err):
                raise
    return found


def facts(descriptions: Descriptions) -> dict[str, TopicFacts]:
    """What is told of each topic."""
    return {
        name: TopicFacts(
            topic_id=str(topic.topic_id),
            partitions=frozenset(partition.id for partition in topic.partitions),
        )
        for name, topic in descriptions.items()
    }


class KnownLeaders:
    """Which partitions a client has just been told the leaders of. Driver, one thread at a time.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._told_s: dict[str, float] = {}
        self._has_leader: dict[PartitionKey, bool] = {}

    def learn(self, names: Collection[str], descriptions: Descriptions) -> None:
        """What was told of these topics; one that does not exist has no partition."""
        told = dict.fromkeys(names, self._clock())
        for key in [key for key in self._has_leader if key[0] in told]:
            del self._has_leader[key]
        for name, topic in descriptions.items():
            self._has_leader |= {(name, p.id): p.leader is not None for p in topic.partitions}
        self._told_s |= told

    def forget(self) -> None:
        """The client may have heard something else."""
        self._told_s.clear()
        self._has_leader.clear()

    def untold(self, keys: Iterable[PartitionKey]) -> set[str]:
        """Their topics that were not described a moment ago."""
        since_s = self._clock() - _FRESH_S
        return {name for name, _ in keys if self._told_s.get(name, since_s) <= since_s}

    def located(self, keys: Iterable[PartitionKey]) -> list[PartitionKey]:
        """Those that exist.

        Raises:
            KafkaException: one has no leader for the moment.
        """
        there = [key for key in keys if key in self._has_leader]
        if not all(self._has_leader[key] for key in there):
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return there


def until_s_for(timeout_s: float) -> float:
    """For all answers of one question together. librdkafka ends its requests by itself; the margin
    only guards against lost futures."""
    return time.monotonic() + timeout_s + _MARGIN_S


def result(future: "Future[T]", until_s: float) -> T:
    """Of a future of the client's, waited for until then."""
    return future.result(max(0.0, until_s - time.monotonic()))


def is_absence(err: KafkaException) -> bool:
    """Whether what was asked for does not exist."""
    # "No leaders found" is what a request about deleted partitions alone is answered with.
    return isinstance(translate(err), SourceChangedError) or "No leaders found" in str(err)
