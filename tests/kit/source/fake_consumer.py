"""A consumer in memory that reports what a test put in."""

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from sluice.connectors.kafka.source.reader import consumers
from sluice.connectors.kafka.source.reader.consumers import PooledConsumer

CONFLICT: int = getattr(KafkaError, "_CONFLICT")  # noqa: B009 - public, underscored
INVALID: int = getattr(KafkaError, "_INVALID_ARG")  # noqa: B009 - public, underscored
TRANSPORT: int = getattr(KafkaError, "_TRANSPORT")  # noqa: B009 - public, underscored


def message(
    offset: int, error: KafkaError | None = None, leader_epoch: int = -1, partition: int = 0
) -> Message:
    """A record of orders-0, or an event about it."""
    return Message(
        topic="orders",
        partition=partition,
        offset=offset,
        value=b"%d" % offset,
        error=error,
        leader_epoch=leader_epoch,
    )


class FakeConsumer:
    """Gives what a test put in, one call at a time; the last answer again and again. As librdkafka,
    it takes nothing twice, and gives back nothing that it does not have."""

    unreachable = False
    is_closed = False

    def __init__(self, *answers: Sequence[Message], watermarks: tuple[int, int] | None) -> None:
        self._answers = list(answers)
        self._watermarks = watermarks
        self.assigned: set[tuple[str, int]] = set()
        self.calls: list[str] = []

    def consume(self, most: int, timeout_s: float) -> Sequence[Message]:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int] | None:
        return self._watermarks

    def list_topics(self, topic: str, timeout: float) -> None:
        self.calls.append(f"look up {topic}")
        if self.unreachable:
            raise KafkaException(KafkaError(TRANSPORT))

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self.calls.append("assign")
        self.assigned = _keys(places)
        self.places = [(place.offset, place.leader_epoch) for place in places]
        self.checked: list[tuple[int, int | None]] = []

    def seek(self, place: TopicPartition) -> None:
        self.checked.append((place.offset, place.leader_epoch))

    def unassign(self) -> None: ...

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        if self.assigned & _keys(places):
            raise KafkaException(KafkaError(CONFLICT))
        self.assigned |= _keys(places)
        self.places = [(place.offset, place.leader_epoch) for place in places]

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        if not _keys(places) <= self.assigned:
            raise KafkaException(KafkaError(INVALID))
        self.assigned -= _keys(places)

    def close(self) -> None:
        self.is_closed = True

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever reads gets this one."""
        monkeypatch.setattr(
            consumers, "_connect", lambda key: PooledConsumer(consumer=self, key=key)
        )


def _keys(places: Sequence[TopicPartition]) -> set[tuple[str, int]]:
    return {(place.topic, place.partition) for place in places}
