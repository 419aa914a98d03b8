"""``sluice verify`` reads topics to their ends."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.source.enumerator import topics as described
from sluice.connectors.kafka.tools.verify import topic_history as history
from sluice.connectors.kafka.tools.verify.topic_history import (
    EndWatch,
    TopicEnds,
    await_readable,
    read_records,
    topic_ends,
)
from sluice.runtime.errors import SourceChangedError, StreamError, UnreachableError

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
    return ((1.0, [_message(0, offset)]) for offset in itertools.count())


def test_a_partition_after_its_end_does_not_keep_a_reader_waiting_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bed = _Bed(monkeypatch, _growing())
    with pytest.raises(UnreachableError, match=r"missing=\{1: 3\}"):
        bed.read()
    assert bed.now_s == pytest.approx(_TIMEOUT_S, abs=3)


def test_a_partition_after_its_end_is_not_fetched_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = [(1.0, [_message(1, offset)]) for offset in range(3)]
    bed = _Bed(monkeypatch, [(1.0, [_message(0, 0)]), *rest])
    assert bed.read() == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert bed.paused[:1] == [0]


def test_an_end_of_file_before_the_end_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_error_that_came_late_is_reported_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
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


NO_LEADERS: int = getattr(KafkaError, "_NOENT")  # noqa: B009 - public, underscored
_GONE = object()


class _Admin:
    """One partition that ends at 7.

    Args:
        error: the answer to the first question for offsets.
        leaders: in the first descriptions; after them there is one.
    """

    def __init__(self, error: int | None, *, leaders: Iterable[object] = ()) -> None:
        self._errors = [error]
        self._leaders = iter(leaders)
        self.asked = 0

    def describe_topics(self, topics: Any, **_: object) -> Mapping[str, Future[Any]]:
        leader = next(self._leaders, "a broker")
        if leader is _GONE:
            return {"orders": _answer(None, KafkaError.UNKNOWN_TOPIC_OR_PART)}
        partition = SimpleNamespace(id=0, leader=leader)
        return {"orders": _answer(SimpleNamespace(partitions=[partition]))}

    def list_offsets(self, wanted: Mapping[Any, Any], **_: object) -> Mapping[Any, Future[Any]]:
        self.asked += 1
        error = self._errors.pop() if self._errors else None
        return {at: _answer(SimpleNamespace(offset=7), error) for at in wanted}


def _answer(value: object, error: int | None = None) -> Future[Any]:
    answered: Future[Any] = Future()
    if error is None:
        answered.set_result(value)
    else:
        answered.set_exception(KafkaException(KafkaError(error)))
    return answered


@pytest.mark.parametrize(
    "code",
    [
        NO_LEADERS,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    ],
)
def test_an_election_is_waited_for(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(history, "make_admin", lambda _: _Admin(code))
    assert topic_ends(_CONNECTION, "orders").high == {0: 7}


def test_a_partition_without_a_leader_is_asked_for_no_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """librdkafka would look for it by itself, in a way that crashes."""
    admin = _Admin(None, leaders=["a broker", None, None])
    monkeypatch.setattr(history, "make_admin", lambda _: admin)
    monkeypatch.setattr(described, "_FRESH_S", 0.0)
    ends = EndWatch(_CONNECTION, "orders")
    assert ends.high() == {0: 7}
    assert admin.asked == 1


def test_a_topic_that_is_deleted_meanwhile_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = _Admin(None, leaders=["a broker", _GONE])
    monkeypatch.setattr(history, "make_admin", lambda _: admin)
    monkeypatch.setattr(described, "_FRESH_S", 0.0)
    ends = EndWatch(_CONNECTION, "orders")
    with pytest.raises(SourceChangedError, match="topic=orders"):
        ends.high()
    assert not admin.asked


def test_a_topic_that_stays_without_leaders_is_out_of_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "make_admin", lambda _: _Admin(NO_LEADERS))
    with pytest.raises(UnreachableError, match="topic=orders"):
        topic_ends(_CONNECTION, "orders", timeout_s=-1.0)


@pytest.mark.parametrize("ask", [topic_ends, EndWatch])
def test_servers_that_do_not_answer_are_named(ask: Callable[..., object]) -> None:
    connection = KafkaConnection(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(UnreachableError, match=r"topic=orders servers=127\.0\.0\.1:1"):
        ask(connection, "orders", timeout_s=0.1)


def test_what_ends_an_open_transaction_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose job was killed waits for nothing else."""
    monkeypatch.setattr(history, "make_admin", lambda _: _Admin(KafkaError.LEADER_NOT_AVAILABLE))
    with pytest.raises(UnreachableError, match="open transaction") as caught:
        await_readable(_CONNECTION, "orders", beyond={0: 8}, timeout_s=0)
    for end in ("restart it", "sluice txn abort", "sluice txn list"):
        assert end in str(caught.value)
