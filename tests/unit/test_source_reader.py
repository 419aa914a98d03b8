"""Reading ranges in an executor: what is not a record, as a consumer in memory reports it."""

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from connectors.kafka import consumers
from connectors.kafka.consumers import ConsumerPool, PooledConsumer
from connectors.kafka.reader import KafkaSplitReader
from connectors.kafka.security import KafkaConnection
from runtime.errors import DataLostError, StreamError, UnreachableError
from runtime.model import SplitRange

TRANSPORT: int = getattr(KafkaError, "_TRANSPORT")  # noqa: B009 - public, underscored
OUT_OF_RANGE: int = getattr(KafkaError, "_AUTO_OFFSET_RESET")  # noqa: B009 - public, underscored


def message(offset: int, error: KafkaError | None = None, leader_epoch: int = -1) -> Message:
    """A record of orders-0, or an event about it."""
    return Message(
        topic="orders",
        partition=0,
        offset=offset,
        value=b"%d" % offset,
        error=error,
        leader_epoch=leader_epoch,
    )


class FakeConsumer:
    """Gives what a test put in, one call at a time; the last answer again and again."""

    unreachable = False

    def __init__(self, *answers: Sequence[Message], watermarks: tuple[int, int]) -> None:
        self._answers = list(answers)
        self._watermarks = watermarks
        self.calls: list[str] = []

    def consume(self, most: int, timeout_s: float) -> Sequence[Message]:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        return self._watermarks

    def list_topics(self, topic: str, timeout: float) -> None:
        self.calls.append(f"look up {topic}")
        if self.unreachable:
            raise KafkaException(KafkaError(TRANSPORT))

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self.calls.append("assign")

    def unassign(self) -> None: ...

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None: ...

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def fresh_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """No consumer of a test outlives it."""
    monkeypatch.setattr("connectors.kafka.reader.process_pool", ConsumerPool())


def values(
    monkeypatch: pytest.MonkeyPatch,
    consumer: FakeConsumer,
    *,
    leader_epoch: int | None = None,
    **settings: Any,
) -> list[bytes]:
    """What a read of orders-0[0,3) yields from this consumer."""
    monkeypatch.setattr(
        consumers, "_connect", lambda key: PooledConsumer(consumer=consumer, key=key)
    )
    reader = KafkaSplitReader(
        connection=KafkaConnection(bootstrap_servers="fake:9092"), columns=("value",), **settings
    )
    split = SplitRange(
        source_id="s",
        topic="orders",
        topic_id="id",
        partition=0,
        start_offset=0,
        end_offset=3,
        leader_epoch=leader_epoch,
    )
    return [value for b in reader.read([split]) for value in b.column("value").to_pylist()]


@pytest.mark.parametrize("name", ["_BAD_MSG", "_BAD_COMPRESSION", "_NOT_IMPLEMENTED"])
def test_records_that_cannot_be_read_stop_the_read(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """librdkafka goes on behind them, and the gap would look like one of compaction."""
    unreadable = message(1, KafkaError(getattr(KafkaError, name), "MessageSet at offset 1"))
    consumer = FakeConsumer([message(0), unreadable, message(2)], watermarks=(0, 3))
    with pytest.raises(StreamError, match="offset 1"):
        values(monkeypatch, consumer)


def test_a_position_that_is_refused_again_and_again_has_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A follower that lags behind refuses offsets that exist; that must not last for ever."""
    refused = message(0, KafkaError(OUT_OF_RANGE, "out of range"))
    consumer = FakeConsumer([refused], watermarks=(0, 3))
    with pytest.raises(UnreachableError, match=r"orders-0\[0,3\)"):
        values(monkeypatch, consumer, no_progress_timeout_s=0.05)


def test_a_loss_while_reading_is_passed_over_where_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = message(0, KafkaError(OUT_OF_RANGE, "out of range"))
    consumer = FakeConsumer([refused], [message(2)], watermarks=(2, 3))
    assert values(monkeypatch, consumer, fail_on_data_loss=False) == [b"2"]


def _of_three_leaders() -> FakeConsumer:
    """The range's records, each of another leader, and one behind it."""
    records = [message(offset, leader_epoch=1 + offset) for offset in range(4)]
    return FakeConsumer(records, watermarks=(0, 4))


def test_records_of_a_later_leader_are_none_of_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the place of records that the range was cut for."""
    with pytest.raises(DataLostError, match=r"orders-0\[2,3\)"):
        values(monkeypatch, _of_three_leaders(), leader_epoch=2)


@pytest.mark.parametrize(
    ("leader_epoch", "count"), [(0, 0), (1, 1), (2, 2), (3, 3), (9, 3), (None, 3)]
)
def test_what_a_later_leader_wrote_is_left_for_later_where_allowed(
    monkeypatch: pytest.MonkeyPatch, leader_epoch: int | None, count: int
) -> None:
    """What lies behind the range may be of any leader; where none is known, everything is read."""
    found = values(
        monkeypatch, _of_three_leaders(), leader_epoch=leader_epoch, fail_on_data_loss=False
    )
    assert found == [b"0", b"1", b"2"][:count]


def test_nothing_of_a_range_is_read_behind_what_a_later_leader_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not with the next batch either, which is on its way already."""
    first, second = message(0, leader_epoch=5), message(1, leader_epoch=5)
    consumer = FakeConsumer([first], [second, message(2)], [message(3)], watermarks=(0, 4))
    assert values(monkeypatch, consumer, leader_epoch=4, fail_on_data_loss=False) == []


def test_a_topic_is_looked_up_once_and_before_it_is_assigned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or else the first read of each worker waits up to a second for the leader."""
    consumer = FakeConsumer([message(0), message(1), message(2)], watermarks=(0, 3))
    for _ in range(2):
        assert values(monkeypatch, consumer) == [b"0", b"1", b"2"]
    assert consumer.calls == ["look up orders", "assign", "assign"]


def test_a_failed_look_up_leaves_the_read_to_its_own_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = FakeConsumer([message(0), message(1), message(2)], watermarks=(0, 3))
    consumer.unreachable = True
    assert values(monkeypatch, consumer) == [b"0", b"1", b"2"]


def test_the_newest_timestamp_of_a_range_is_told_once_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of its own records alone: one behind the end, or without a timestamp, does not count."""
    found = [
        Message(topic="orders", partition=0, offset=0, value=b"", timestamp=(1, 700)),
        Message(topic="orders", partition=0, offset=1, value=b"", timestamp=(2, 900)),
        Message(topic="orders", partition=0, offset=2, value=b"", timestamp=(0, 5_000)),
        Message(topic="orders", partition=0, offset=3, value=b"", timestamp=(1, 9_000)),
    ]
    consumer = FakeConsumer(found, watermarks=(0, 4))
    monkeypatch.setattr(
        consumers, "_connect", lambda key: PooledConsumer(consumer=consumer, key=key)
    )
    reader = KafkaSplitReader(
        connection=KafkaConnection(bootstrap_servers="fake:9092"), columns=("value",)
    )
    split = SplitRange(
        source_id="s", topic="orders", topic_id="id", partition=0, start_offset=0, end_offset=3
    )
    told: list[tuple[SplitRange, int]] = []
    reading = reader.read_timed([split], lambda *answer: told.append(answer))
    assert next(reading).num_rows == 3
    assert told == []
    assert list(reading) == []
    assert told == [(split, 900)]
