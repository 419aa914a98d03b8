"""Fills topics of the benchmarks fast, and reads the broker's append times."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import uuid4

from sluice.connectors.kafka.client.client_options import Role
from sluice.connectors.kafka.client.confluent import (
    Consumer,
    KafkaError,
    Message,
    TopicPartition,
    make_admin,
    make_producer,
)
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.topic_creation import NewTopic, create_topics
from sluice.connectors.kafka.tools.verify.topic_history import reading_consumer, topic_ends
from sluice.runtime.model.splits import SplitRange

__all__ = ["Span", "append_span", "create", "delete", "ends", "fill", "whole"]

_READ_S = 30.0
_TAIL_OFFSETS = 50  # more than the markers at the end of a partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Append times of a range of a topic, by the broker's clock."""

    first_ms: int
    last_ms: int

    @property
    def seconds(self) -> float:
        """From the first to the last append; at least the clock's resolution."""
        return max(1, self.last_ms - self.first_ms) / 1000


def create(connection: KafkaConnection, purpose: str, *, partitions: int) -> str:
    """Create a topic with the broker's timestamps."""
    name = f"bench-{purpose}-{uuid4().hex[:8]}"
    config = {"message.timestamp.type": "LogAppendTime"}
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
    create_topics(connection, [topic])
    return name


def delete(connection: KafkaConnection, *names: str) -> None:
    """Delete topics, which frees the disk for the next run."""
    admin = make_admin(connection.librdkafka(Role.ADMIN))  # must live until the answers arrive
    for answer in admin.delete_topics(list(names)).values():
        answer.result(_READ_S)


def fill(
    connection: KafkaConnection, topic: str, count: int, *, value_bytes: int, partitions: int
) -> None:
    """Append records without keys or headers, spread evenly; returns when all are acknowledged."""
    errors: list[KafkaError] = []
    producer = make_producer(
        {
            **connection.librdkafka(Role.PRODUCER),
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 2_000_000,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: errors.append(error),
        }
    )
    shares = [count // partitions + (p < count % partitions) for p in range(partitions)]
    messages = [{"value": b"x" * value_bytes}] * 10_000
    for partition, share in enumerate(shares):
        while share:
            share -= producer.produce_batch(topic, messages[:share], partition=partition)
            producer.poll(0)
    left = producer.flush(60)
    if left or errors:
        raise RuntimeError(f"{left} records were not acknowledged: {errors[:1]}")


def ends(connection: KafkaConnection, topic: str) -> Mapping[int, int]:
    """High watermark by partition."""
    return topic_ends(connection, topic).high


def append_span(connection: KafkaConnection, topic: str, *, beyond: Mapping[int, int]) -> Span:
    """Append times of the records from the given offsets on."""
    stamps: list[int] = []
    for partition, end in ends(connection, topic).items():
        start = beyond.get(partition, 0)
        if end > start:
            stamps.append(_stamps(connection, topic, partition, start, one=True)[0])
            tail = max(start, end - _TAIL_OFFSETS)
            stamps.append(_stamps(connection, topic, partition, tail, one=False)[-1])
    return Span(first_ms=min(stamps), last_ms=max(stamps))


def whole(connection: KafkaConnection, topic: str) -> list[SplitRange]:
    """All records of a topic, by partition."""
    return [
        SplitRange(
            source_id="s",
            topic=topic,
            topic_id="",
            partition=partition,
            start_offset=0,
            end_offset=end,
        )
        for partition, end in ends(connection, topic).items()
    ]


def _stamps(
    connection: KafkaConnection, topic: str, partition: int, start: int, *, one: bool
) -> list[int]:
    """The timestamp of the first record at or after ``start``, or of all records from there on."""
    consumer = reading_consumer(connection)
    found: list[int] = []
    deadline = time.monotonic() + _READ_S
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        for message in _until(deadline, consumer, at_once=1 if one else 1_000):
            if message.error() is not None:  # the end of the partition
                return found
            found.append(message.timestamp()[1])
            if one:
                return found
    finally:
        consumer.close()
    raise RuntimeError(f"{topic}-{partition} could not be read from {start}")


def _until(deadline: float, consumer: Consumer, *, at_once: int) -> Iterator[Message]:
    while time.monotonic() < deadline:
        yield from consumer.consume(at_once, 0.5)
