"""The used interface of a librdkafka producer: confluent-kafka's, Sluice's own, or a fake."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sluice.connectors.kafka.client.confluent import KafkaError, KafkaException, Message

__all__ = [
    "Client",
    "ClientFactory",
    "RecordClient",
    "TopicMetadata",
    "partition_count",
    "serve",
]

_METADATA_TIMEOUT_S = 5.0


class TopicMetadata(Protocol):
    """The used part of confluent-kafka's ``ClusterMetadata``."""

    topics: Mapping[str, Any]


class Client(Protocol):
    """The used part of a producer, whichever way it takes records; tests have a fake of it."""

    def poll(self, timeout: float, /) -> int: ...
    def flush(self, timeout: float, /) -> int: ...
    def purge(self) -> None: ...
    def init_transactions(self, timeout: float, /) -> None: ...
    def begin_transaction(self) -> None: ...
    def commit_transaction(self, timeout: float, /) -> None: ...
    def abort_transaction(self, timeout: float, /) -> None: ...
    def list_topics(self, topic: str, timeout: float, /) -> "TopicMetadata": ...
    def __len__(self) -> int: ...


class RecordClient(Client, Protocol):
    """The used part of confluent-kafka's ``Producer``: it takes records one by one."""

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        callback: Callable[[KafkaError | None, Message], None],
        on_delivery: None,
        timestamp: int,
        headers: list[tuple[str, bytes | None]] | None,
        /,
    ) -> None: ...


ClientFactory = Callable[[Mapping[str, Any]], Client]
"""Makes a client of a librdkafka configuration, callbacks included."""


def serve(client: Client, timeout_s: float, failed: Callable[[KafkaError], None]) -> int:
    """`poll`, which raises a fatal error instead of calling back with it."""
    try:
        return client.poll(timeout_s)
    except KafkaException as err:
        failed(err.args[0])
        return 0


def partition_count(
    client: Client, topic: str, *, timeout_s: float = _METADATA_TIMEOUT_S
) -> int | None:
    """The number of a topic's partitions now; None if it is unknown.

    A failure is reported with the records, where its meaning is known.
    """
    try:
        found = client.list_topics(topic, timeout_s).topics[topic]
    except KafkaException:
        return None
    return len(found.partitions) or None
