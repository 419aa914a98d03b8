"""Where a topic ends is asked again, while its partitions change their leaders."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.source.enumerator import topics as described
from sluice.connectors.kafka.tools.verify import topic_history as history
from sluice.connectors.kafka.tools.verify.topic_history import (
    EndWatch,
    await_readable,
    topic_ends,
)
from sluice.runtime.errors import SourceChangedError, StreamError, UnreachableError

NO_LEADERS: int = getattr(KafkaError, "_NOENT")  # noqa: B009 - public, underscored
_GONE = object()
_CONNECTION = KafkaConnection(bootstrap_servers="broker:9092")


class _Admin:
    """One partition that ends at 7.

    Args:
        error: the answer to the first question for offsets.
        leaders: in the first descriptions; behind them there is one.
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
    """The next answer counts."""
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


def test_a_topic_that_is_deleted_meanwhile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = _Admin(None, leaders=["a broker", _GONE])
    monkeypatch.setattr(history, "make_admin", lambda _: admin)
    monkeypatch.setattr(described, "_FRESH_S", 0.0)
    ends = EndWatch(_CONNECTION, "orders")
    with pytest.raises(SourceChangedError, match="topic=orders"):
        ends.high()
    assert not admin.asked


def test_another_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, with the topic and the servers that were asked."""
    monkeypatch.setattr(
        history, "make_admin", lambda _: _Admin(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    )
    with pytest.raises(StreamError, match="topic=orders servers=broker:9092"):
        topic_ends(_CONNECTION, "orders")


def test_a_topic_that_stays_without_leaders_is_out_of_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody has to look into a broker's log for that."""
    monkeypatch.setattr(history, "make_admin", lambda _: _Admin(NO_LEADERS))
    with pytest.raises(UnreachableError, match="topic=orders"):
        topic_ends(_CONNECTION, "orders", timeout_s=-1.0)


@pytest.mark.parametrize("ask", [topic_ends, EndWatch])
def test_servers_that_do_not_answer_are_named(ask: Callable[..., object]) -> None:
    connection = KafkaConnection(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(UnreachableError, match=r"topic=orders servers=127\.0\.0\.1:1"):
        ask(connection, "orders", timeout_s=0.1)


def test_what_ends_an_open_transaction_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose job was killed waits for nothing else."""
    monkeypatch.setattr(history, "make_admin", lambda _: _Admin(KafkaError.LEADER_NOT_AVAILABLE))
    with pytest.raises(UnreachableError, match="open transaction") as caught:
        await_readable(_CONNECTION, "orders", beyond={0: 8}, timeout_s=0)
    for end in ("restart it", "sluice txn abort", "sluice txn list"):
        assert end in str(caught.value)
