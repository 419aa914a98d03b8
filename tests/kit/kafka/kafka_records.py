"""Topics and records of a real broker, by confluent-kafka alone: no code of ours is in between.

What these functions say about a topic is the evidence that tests judge our own reader, writer and
committer by, so they must not share code with them.
"""

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec  # type: ignore[attr-defined]  # has no __all__

from tests.kit.waiting import wait_for

_CLUSTER_DEFAULT = -1  # Kafka's own sign for it
_ANSWER_S = 120.0
"""Bound of one answer: on a machine that other tests keep busy it may take seconds."""

Options = Mapping[str, Any]

_PARTITION_EOF = KafkaError._PARTITION_EOF  # noqa: SLF001  # librdkafka's documented code
_NOT_YET = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record, to be written (``offset`` is then ignored) or as read."""

    value: bytes | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    offset: int | None = None
    timestamp_ms: int | None = None


def unique(prefix: str) -> str:
    """A name that no other test uses."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def admin(bootstrap: str, options: Options | None = None) -> AdminClient:
    """An admin client that keeps quiet."""
    return AdminClient(_client_options(bootstrap, options))


def _client_options(bootstrap: str, options: Options | None) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "log_level": 0,
        "log.connection.close": False,
        **(options or {}),
    }


def create_topic(
    bootstrap: str,
    name: str | None = None,
    *,
    partitions: int = 1,
    replication: int | None = None,
    replicas: Sequence[Sequence[int]] = (),
    config: Mapping[str, str] | None = None,
) -> str:
    """Make a topic, wait until its partitions have leaders, and return its name.

    Without ``replication`` the cluster's own default holds: 1 for the embedded broker, 3 for the
    containers. With ``replicas`` each partition lies on its brokers, of which the first leads it.
    """
    name = name or unique("topic")
    client = admin(bootstrap)
    where: dict[str, Any] = {"replication_factor": replication or _CLUSTER_DEFAULT}
    if replicas:
        where = {"replica_assignment": [list(brokers) for brokers in replicas]}
    topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}), **where)
    client.create_topics([topic])[name].result(_ANSWER_S)
    wait_for(lambda: _led_partitions(client, name) == partitions, what=f"leaders of {name}")
    return name


def _led_partitions(client: AdminClient, topic: str) -> int:
    found = client.list_topics(topic, timeout=_ANSWER_S).topics[topic]
    return sum(1 for partition in found.partitions.values() if partition.leader >= 0)


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic and wait until the broker has forgotten it."""
    client = admin(bootstrap)
    client.delete_topics([name])[name].result(_ANSWER_S)
    wait_for(
        lambda: name not in client.list_topics(timeout=_ANSWER_S).topics, what=f"no topic {name}"
    )


def add_partitions(bootstrap: str, topic: str, *, total: int) -> None:
    """Raise the number of partitions and wait until all have leaders."""
    client = admin(bootstrap)
    client.create_partitions([NewPartitions(topic, total)])[topic].result(_ANSWER_S)
    wait_for(lambda: _led_partitions(client, topic) == total, what=f"leaders of {topic}")


def partition_count(bootstrap: str, topic: str) -> int:
    """How many partitions a topic has."""
    return len(admin(bootstrap).list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions)


def produce(
    bootstrap: str, topic: str, records: Iterable[Record | bytes], *, options: Options | None = None
) -> None:
    """Write records outside any transaction and wait until every one is acknowledged.

    Each partition's once and in this order, also where a new leader refuses the first request.
    """
    idempotent = {"enable.idempotence": True, **(options or {})}
    _send(Producer(_client_options(bootstrap, idempotent)), topic, records)


def produce_transaction(
    bootstrap: str,
    topic: str,
    records: Iterable[Record | bytes],
    *,
    commit: bool = True,
    transactional_id: str | None = None,
    options: Options | None = None,
) -> None:
    """Write records in one transaction and end it."""
    producer = abandon_transaction(
        bootstrap, topic, records, transactional_id=transactional_id, options=options
    )
    (producer.commit_transaction if commit else producer.abort_transaction)(2 * _ANSWER_S)


def abandon_transaction(
    bootstrap: str,
    topic: str,
    records: Iterable[Record | bytes],
    *,
    transactional_id: str | None = None,
    options: Options | None = None,
) -> Producer:
    """Write records in a transaction that stays open as long as the returned producer lives on."""
    transactional = {
        "transactional.id": transactional_id or unique("test"),
        "transaction.timeout.ms": 600_000,  # longer than any test holds it open
    }
    producer = Producer(_client_options(bootstrap, {**transactional, **(options or {})}))
    producer.init_transactions(2 * _ANSWER_S)
    producer.begin_transaction()
    _send(producer, topic, records)
    return producer


def _send(producer: Producer, topic: str, records: Iterable[Record | bytes]) -> None:
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            errors.append(error)

    for item in records:
        record = Record(value=item) if isinstance(item, bytes) else item
        arguments: dict[str, Any] = {}
        if record.partition is not None:
            arguments["partition"] = record.partition
        if record.timestamp_ms is not None:
            arguments["timestamp"] = record.timestamp_ms
        while True:
            try:
                producer.produce(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    on_delivery=delivered,
                    **arguments,
                )
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(60)
    assert not left, f"{left} records of {topic} were not acknowledged"
    assert not errors, errors[0]


def end_offsets(
    bootstrap: str, topic: str, *, committed: bool = True, options: Options | None = None
) -> dict[int, int]:
    """Per partition the last stable offset, or with ``committed=False`` the high watermark.

    A topic that has just been made has leaders that do not know it yet; they are asked again.
    """
    client = admin(bootstrap, options)
    deadline = time.monotonic() + _ANSWER_S
    while True:
        partitions = client.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions
        try:
            return _listed_ends(client, topic, partitions, committed=committed)
        except KafkaException as err:
            if err.args[0].code() not in _NOT_YET or time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def _listed_ends(
    client: AdminClient, topic: str, partitions: Iterable[int], *, committed: bool
) -> dict[int, int]:
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = client.list_offsets(
        {TopicPartition(topic, number): latest for number in partitions},
        isolation_level=level,
        request_timeout=_ANSWER_S,
    )
    return {
        partition.partition: future.result(_ANSWER_S).offset for partition, future in asked.items()
    }


def await_stable(
    bootstrap: str, topic: str, *, timeout_s: float = 600.0, options: Options | None = None
) -> dict[int, int]:
    """Wait until no transaction is open in the topic; the end offset of each partition.

    Before any count: an acknowledged commit is visible only when its markers are written, and a
    broker that was killed may need a while for that after it is back.
    """

    def ends() -> dict[int, int] | None:
        try:
            stable = end_offsets(bootstrap, topic, options=options)
            written = end_offsets(bootstrap, topic, committed=False, options=options)
        except KafkaException:  # a partition without a leader for a moment
            return None
        return stable if stable == written else None

    return wait_for(lambda: ends() or None, timeout_s=timeout_s, what=f"{topic} is stable") or {}


def read(
    bootstrap: str,
    topic: str,
    *,
    committed: bool = True,
    timeout_s: float = 600.0,
    options: Options | None = None,
) -> list[Record]:
    """Every record up to the ends at the time of the call; partitions one after the other."""
    ends = end_offsets(bootstrap, topic, committed=committed, options=options)
    consumer = Consumer(
        _client_options(
            bootstrap,
            {
                "group.id": unique("reader"),
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.queue.backoff.ms": 5,
                **(options or {}),
            },
        )
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in ends])
        found = _read_to(consumer, ends, timeout_s)
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition or 0, record.offset or 0))


def _read_to(consumer: Consumer, ends: Mapping[int, int], timeout_s: float) -> list[Record]:
    found: list[Record] = []
    open_partitions = {number for number, end in ends.items() if end > 0}
    deadline = time.monotonic() + timeout_s
    while open_partitions:
        assert time.monotonic() < deadline, f"partitions {open_partitions} not read to {ends}"
        for message in consumer.consume(10_000, 0.2):
            error = message.error()
            number, offset = message.partition() or 0, message.offset() or 0
            if error is not None:
                # The end may be reached by markers alone, which are never handed out.
                if error.code() != _PARTITION_EOF:
                    raise KafkaException(error)
            elif offset < ends[number]:
                found.append(_record(message))
            if offset + (error is None) >= ends[number]:
                open_partitions.discard(number)
    return found


def _record(message: Any) -> Record:
    headers: Sequence[tuple[str, bytes | None]] = message.headers() or ()
    return Record(
        value=message.value(),
        key=message.key(),
        headers=tuple(headers),
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=message.timestamp()[1],
    )


def values(
    bootstrap: str, topic: str, *, committed: bool = True, options: Options | None = None
) -> list[bytes | None]:
    """The values of `read`."""
    return [record.value for record in read(bootstrap, topic, committed=committed, options=options)]
