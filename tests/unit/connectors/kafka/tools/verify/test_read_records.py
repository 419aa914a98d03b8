"""Reading a topic to its end: what counts as progress, and what is given up."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.verify import topic_history as history
from sluice.connectors.kafka.tools.verify.topic_history import TopicEnds, read_records
from sluice.runtime.errors import StreamError, UnreachableError

_CONNECTION = KafkaConnection(bootstrap_servers="broker:9092")
_TIMEOUT_S = 60.0

Batches = Iterable[tuple[float, Sequence[Message]]]


class _Bed:
    """A topic of two partitions that end at 1 and 3; both the consumer and the clock.

    Each question takes as long as its batch says. More than 200 are a reader that waits for ever.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, batches: Batches) -> None:
        self.now_s = 0.0
        self.paused: list[int] = []
        self.batches: Iterator[tuple[float, Sequence[Message]]] = itertools.islice(batches, 200)
        ends = TopicEnds(stable={0: 1, 1: 3}, high={0: 1, 1: 3})
        monkeypatch.setattr(history, "topic_ends", lambda *_, **__: ends)
        monkeypatch.setattr(history, "reading_consumer", self._made)

    def read(self, *, taking_s: float = 0.0) -> list[tuple[int, int]]:
        """Partition and offset of each record; ``taking_s`` is spent on each of them."""
        found = []
        records = read_records(_CONNECTION, "t", timeout_s=_TIMEOUT_S, clock=lambda: self.now_s)
        for record in records:
            self.now_s += taking_s
            found.append((record.partition, record.offset))
        return found

    def _made(self, *_: object, statistics: Callable[[str], None], **__: object) -> "_Bed":
        self.tell = statistics
        return self

    def assign(self, partitions: Sequence[Any]) -> None:
        assert {one.partition for one in partitions} == {0, 1}

    def consume(self, *_: object) -> Sequence[Message]:
        took_s, messages = next(self.batches)
        self.now_s += took_s
        return messages

    def pause(self, partitions: Sequence[Any]) -> None:
        self.paused += [one.partition for one in partitions]

    def close(self) -> None:
        """Nothing to close."""


def _message(partition: int, offset: int, error: int | None = None) -> Message:
    told = None if error is None else KafkaError(error)
    return Message(topic="t", partition=partition, offset=offset, timestamp=(1, 5), error=told)


def _growing() -> Batches:
    """Partition 0, which somebody goes on writing to behind its end."""
    return ((1.0, [_message(0, offset)]) for offset in itertools.count())


def test_a_partition_behind_its_end_does_not_keep_a_reader_waiting_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bed = _Bed(monkeypatch, _growing())
    with pytest.raises(UnreachableError, match=r"missing=\{1: 3\}"):
        bed.read()
    assert bed.now_s == pytest.approx(_TIMEOUT_S, abs=3)


def test_a_partition_behind_its_end_is_not_fetched_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it takes the place of the others in the queue."""
    rest = [(1.0, [_message(1, offset)]) for offset in range(3)]
    bed = _Bed(monkeypatch, [(1.0, [_message(0, 0)]), *rest])
    assert bed.read() == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert bed.paused[:1] == [0]


def test_an_end_of_file_before_the_end_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind an unclean election: it may be told again and again."""
    end = _message(1, 1, KafkaError._PARTITION_EOF)  # noqa: SLF001 - confluent's name for it
    bed = _Bed(
        monkeypatch, itertools.chain([(1.0, [_message(0, 0)])], itertools.repeat((1.0, [end])))
    )
    with pytest.raises(UnreachableError, match=r"missing=\{1: 3\}"):
        bed.read()


def test_a_slow_partition_is_waited_for_as_long_as_it_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = [(_TIMEOUT_S - 1, [_message(1, offset)]) for offset in range(3)]
    bed = _Bed(monkeypatch, [(1.0, [_message(0, 0)]), *slow])
    assert bed.read()[-1] == (1, 2)


def test_what_a_caller_does_with_a_record_is_no_time_without_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = [(1.0, [_message(0, 0), _message(1, 0)]), (1.0, [])]
    bed = _Bed(monkeypatch, [*first, (1.0, [_message(1, 1), _message(1, 2)])])
    assert len(bed.read(taking_s=_TIMEOUT_S)) == 4


def test_an_error_that_came_late_is_told_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = _message(1, 0, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    bed = _Bed(monkeypatch, [(_TIMEOUT_S + 1, [refused])])
    with pytest.raises(StreamError, match="partition=1") as caught:
        bed.read()
    assert not isinstance(caught.value, UnreachableError)


def _fetching(bed: _Bed, partition: int, offsets: Iterable[int]) -> Batches:
    """No records, and what the client says of how far it has fetched."""
    for offset in offsets:
        partitions = {str(partition): {"next_offset": offset}, "-1": {"next_offset": -1001}}
        bed.tell(json.dumps({"brokers": {}, "topics": {"t": {"partitions": partitions}}}))
        yield _TIMEOUT_S - 1, []


def test_what_is_passed_over_because_it_was_aborted_is_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gigabytes of it give no record for as long as fetching them takes."""
    bed = _Bed(monkeypatch, [])
    rest = [(1.0, [_message(0, 0), _message(1, 2)])]
    bed.batches = itertools.chain(_fetching(bed, 1, [0, 1, 2]), rest)
    assert bed.read() == [(0, 0), (1, 2)]


@pytest.mark.parametrize(("partition", "offsets"), [(1, [1] * 9), (0, range(9))])
def test_what_is_fetched_where_nothing_is_wanted_is_no_progress(
    monkeypatch: pytest.MonkeyPatch, partition: int, offsets: Iterable[int]
) -> None:
    """A position that stands, and one of a partition that has been read."""
    bed = _Bed(monkeypatch, [])
    first = [(1.0, [_message(0, 0)])]
    bed.batches = itertools.chain(first, _fetching(bed, partition, offsets))
    with pytest.raises(UnreachableError, match=r"missing=\{1: 3\}"):
        bed.read()
