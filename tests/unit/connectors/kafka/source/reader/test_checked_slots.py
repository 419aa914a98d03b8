"""Where a follower goes on, and that it asks for its log before it does."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from sluice.connectors.kafka.client.retry import Deadline
from sluice.connectors.kafka.source.reader import range_reader as reading
from sluice.connectors.kafka.source.reader.seek import resume_position, seek_with_retries
from sluice.connectors.kafka.source.reader.streaming_reader import KafkaStreamingReader
from sluice.runtime.contracts import RecordsRead
from tests.kit.fakes import ManualClock
from tests.unit.connectors.kafka.source.reader.test_source_reader import (
    END,
    OUT_OF_RANGE,
    READER,
    FakeConsumer,
    fresh_pool,
    message,
    split,
)

__all__ = ["fresh_pool"]  # used by each test

_STATE: int = getattr(KafkaError, "_STATE")  # noqa: B009 - public, underscored
_GONE: int = getattr(KafkaError, "_UNKNOWN_PARTITION")  # noqa: B009 - public, underscored
_PLACE = TopicPartition("orders", 0, 3, leader_epoch=4)


class Refusing:
    """Refuses so many seeks."""

    def __init__(self, code: int, times: int) -> None:
        self.code = code
        self.left = times
        self.clock = ManualClock()

    def seek(self, partition: TopicPartition) -> None:
        del partition
        if self.left:
            self.left -= 1
            raise KafkaException(KafkaError(self.code))

    def is_done(self, *, timeout_s: float) -> bool:
        return seek_with_retries(
            self, _PLACE, deadline=Deadline(timeout_s, self.clock), pause=self.clock.advance
        )


def test_a_seek_that_comes_before_its_assignment_is_tried_again() -> None:
    consumer = Refusing(_STATE, 40)
    assert consumer.is_done(timeout_s=1.0)
    assert not consumer.left


def test_a_seek_that_never_takes_effect_is_given_up_in_time() -> None:
    consumer = Refusing(_STATE, 1_000_000)
    began_s = consumer.clock()
    assert not consumer.is_done(timeout_s=1.0)
    assert consumer.clock() - began_s < 1.1


def test_a_seek_that_no_assignment_waits_for_is_not_tried_again() -> None:
    consumer = Refusing(_GONE, 2)
    assert not consumer.is_done(timeout_s=1.0)
    assert consumer.left == 1


@pytest.mark.parametrize(
    ("read", "place"),
    [
        (None, (7, None)),
        (RecordsRead(5, None), (7, None)),
        (RecordsRead(7, 4), (7, 4)),
        (RecordsRead(5, 4), (5, 4)),  # markers follow, and what may be in their place by now
        (RecordsRead(0, 4), (0, 4)),  # this pass has read no record, and would take all from there
    ],
    ids=["nothing", "behind a loss", "record", "markers", "markers alone"],
)
def test_it_goes_on_behind_the_last_record(
    read: RecordsRead | None, place: tuple[int, int | None]
) -> None:
    found = resume_position(split(), 7, read)
    assert (found.offset, found.leader_epoch) == place


def test_it_goes_on_where_it_began_where_no_record_can_be_asked_for() -> None:
    """Records before that would be taken for read."""
    found = resume_position(replace(split(), start_offset=2), 2, RecordsRead(1, 4))
    assert found.offset == 2
    assert found.leader_epoch is None


class Moved(FakeConsumer):
    """Remembers what is assigned besides, and where is sought."""

    def __init__(self, *answers: Sequence[Message], watermarks: tuple[int, int]) -> None:
        super().__init__(*answers, watermarks=watermarks)
        self.besides: list[tuple[int, int | None]] = []

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        super().incremental_assign(places)
        self.besides += self.places


@pytest.mark.parametrize("end", [2, 9], ids=["shorter", "long enough"])
def test_a_follower_whose_position_was_refused_asks_for_its_log(
    monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    """From behind its last record on: markers followed, and others' records may be there by now.
    Read on at its position these would be read by nobody."""
    monkeypatch.setattr(reading, "_STALL_S", 0.0)
    records = [message(0, leader_epoch=4), message(1, leader_epoch=4)]
    refused = message(0, KafkaError(OUT_OF_RANGE, "out of range"))
    consumer = Moved(
        [*records, message(3, KafkaError(END, "end"))],
        [refused],
        [message(2, leader_epoch=5)],
        [],
        watermarks=(0, end),
    )
    consumer.install(monkeypatch)
    follower = KafkaStreamingReader(reader=READER).follow([split()], None)
    batches = [follower.poll() for _ in range(5)]
    assert consumer.besides == consumer.checked == [(2, 4)]
    values = [value for each in batches if each for value in each.column("value").to_pylist()]
    assert values == [b"0", b"1", b"2"]


_ABSENT = KafkaError.UNKNOWN_TOPIC_OR_PART


class _Shortened(Moved):
    """Its log begins at 3 by now: a fetch from below that is out of range."""

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        """See `confluent_kafka.Consumer.consume`."""
        if self.besides and self.besides[-1][0] < 3:
            return [message(0, KafkaError(OUT_OF_RANGE, "out of range"))]
        return super().consume(num_messages, timeout)


def test_markers_that_are_deleted_with_the_last_record_are_no_place_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At 2 is a marker, so the position is 3; the leader would be asked from 2 on, for ever."""
    monkeypatch.setattr(reading, "_STALL_S", 0.0)
    consumer = _Shortened(
        [
            message(0, leader_epoch=4),
            message(1, leader_epoch=4),
            message(3, KafkaError(END, "end")),
        ],
        [message(0, KafkaError(_ABSENT, "absent"))],
        [message(3, leader_epoch=5)],
        [message(4, leader_epoch=5)],
        watermarks=(3, 5),
    )
    consumer.install(monkeypatch)
    follower = KafkaStreamingReader(reader=READER).follow([split()], None)
    batches = [batch for batch in (follower.poll() for _ in range(10)) if batch]
    values = [value for batch in batches for value in batch.column("value").to_pylist()]
    assert values == [b"0", b"1", b"3", b"4"]
    assert consumer.checked[-1] == (3, 4)
