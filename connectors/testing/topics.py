"""Topics of one test: created with unique names, filled, read, deleted after the test."""

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import (
    KafkaError,
    KafkaException,
    Message,
    make_admin,
    make_producer,
    translate,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.topic_creation import NewTopic, create_topics
from sluice.connectors.kafka.tools.verify.topic_history import read_records
from sluice.connectors.testing.sides import Content
from sluice.runtime.checker import Record
from sluice.runtime.errors import WaitedTooLongError

__all__ = ["Topic", "TopicFactory", "created_topics"]

_ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of a test; as text it is its name.

    Attributes:
        name: unique.
        connection: to its cluster.
    """

    name: str
    connection: KafkaConnection

    def __str__(self) -> str:
        return self.name

    @property
    def bootstrap(self) -> str:
        """``host:port`` of its cluster."""
        return self.connection.bootstrap_servers

    def send(
        self, records: Iterable[Content | tuple[Content, Content]], *, partition: int | None = None
    ) -> None:
        """Write records and wait until the broker has acknowledged each.

        Args:
            records: values, or pairs of key and value.
            partition: None: by key as Kafka's own producer, or any.
        Raises:
            StreamError: the broker refused a record, or did not answer in time.
        """
        options = {"enable.idempotence": True, "partitioner": "murmur2_random"}
        producer = make_producer({**self.connection.librdkafka(Role.PRODUCER), **options})
        refused: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                refused.append(error)

        where: dict[str, Any] = {} if partition is None else {"partition": partition}
        for each in records:
            key, value = each if isinstance(each, tuple) else (None, each)
            while True:
                try:
                    producer.produce(
                        self.name, value=value, key=key, on_delivery=delivered, **where
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        left = producer.flush(_ANSWER_S)
        if refused:
            raise translate(refused[0], {"topic": self.name, "records": len(refused)})
        if left:
            raise WaitedTooLongError(
                "the broker did not acknowledge records in time",
                {"topic": self.name, "records": left, "waited_s": _ANSWER_S},
                "Check that the broker runs.",
            )

    def records(self) -> list[Record]:
        """All records that a ``read_committed`` reader sees now, one partition after the other."""
        return list(read_records(self.connection, self.name))


class TopicFactory(Protocol):
    """The fixture `sluice_topic`."""

    def __call__(
        self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> Topic:
        """Create a topic whose name begins with ``name``; ``config`` has topic settings."""
        ...


@contextlib.contextmanager
def created_topics(connection: KafkaConnection) -> Iterator[TopicFactory]:
    """A function that creates topics; they are deleted at the end of the context."""
    created: list[Topic] = []

    def create(name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> Topic:
        topic = Topic(f"{name}-{uuid.uuid4().hex[:8]}", connection)
        made = NewTopic(
            topic.name, num_partitions=partitions, replication_factor=1, config=dict(config or {})
        )
        create_topics(connection, [made])
        created.append(topic)
        return topic

    try:
        yield create
    finally:
        _delete(connection, created)


def _delete(connection: KafkaConnection, topics: Sequence[Topic]) -> None:
    if not topics:
        return
    names = [topic.name for topic in topics]
    admin = make_admin(connection.librdkafka(Role.ADMIN))
    for name, answer in admin.delete_topics(names, request_timeout=_ANSWER_S).items():
        try:
            answer.result(_ANSWER_S)
        except KafkaException as err:
            if err.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:  # the test deleted it
                raise translate(err, {"topic": name}) from err
