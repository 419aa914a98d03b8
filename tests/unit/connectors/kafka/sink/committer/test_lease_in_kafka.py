"""The lease in Kafka's offset metadata, as the group's coordinator answers."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.connectors.kafka.client.confluent import KafkaError, TopicPartition
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer import transaction_lease as owner
from sluice.connectors.kafka.sink.committer.transaction_lease import KafkaLeaseStore
from sluice.runtime.errors import AuthenticationError, UnreachableError
from sluice.runtime.ownership.lease import LeaseRecord
from tests.kit.kafka.fake_producer import kafka_error
from tests.kit.waiting import PATIENCE_S


def _record(session: str, *, renewals: int = 3) -> LeaseRecord:
    return LeaseRecord(
        job_uid="u1",
        checkpoint_uri="file:/a",
        session=session,
        host="h",
        renewed_at_ms=1,
        renewals=renewals,
    )


class FakeConsumer:
    """The group's coordinator as a consumer sees it: it answers what it is reported to, in turn."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._told: Callable[[KafkaError | None, list[TopicPartition]], None] = config["on_commit"]
        self.answers: list[KafkaError | None] = []
        self._late: list[TopicPartition] = []
        self.metadata: str | None = None
        self._asked: TopicPartition | None = None

    def committed(self, places: list[TopicPartition], timeout: float) -> list[Any]:
        """A place with an error of its own, or the metadata."""
        del timeout
        error = self.answers.pop(0) if self.answers else None
        return [SimpleNamespace(error=error, metadata=self.metadata) for _ in places]

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        """Its answer comes with `poll`; that of one that had none yet, before it."""
        assert asynchronous
        self._late += [self._asked] if self._asked is not None else []
        (self._asked,) = offsets

    def poll(self, timeout: float) -> None:
        """Without an answer left: silence."""
        del timeout
        if self._late:
            self._told(None, [self._late.pop(0)])
        elif self.answers:
            assert self._asked is not None
            error = self.answers.pop(0)
            if error is None:
                self.metadata = self._asked.metadata
            asked, self._asked = self._asked, None
            self._told(error, [asked])


Opened = Callable[[float], tuple[KafkaLeaseStore, FakeConsumer]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Makes the store for a real cluster, with so much patience, over a consumer of ours."""
    made: list[FakeConsumer] = []

    def make(config: dict[str, Any]) -> FakeConsumer:
        made.append(FakeConsumer(config))
        return made[-1]

    def store(timeout_s: float) -> tuple[KafkaLeaseStore, FakeConsumer]:
        connection = KafkaConnection(bootstrap_servers="h:1")
        return KafkaLeaseStore(connection, "orders", timeout_s=timeout_s), made[-1]

    monkeypatch.setattr(owner, "make_consumer", make)
    return store


def test_lease_guards_outputs_a_coordinator_that_loads_is_asked_again_until_it_answers(
    opened: Opened,
) -> None:
    """A place that cannot be read yet is not a place without an owner."""
    store, consumer = opened(PATIENCE_S)
    record = _record("s1")
    consumer.answers = [kafka_error("COORDINATOR_LOAD_IN_PROGRESS", retriable=True), None]
    store.write(record)
    consumer.answers = [kafka_error("COORDINATOR_LOAD_IN_PROGRESS", retriable=True)]
    assert store.read() == record


def test_lease_guards_outputs_who_may_not_use_the_group_is_reported_at_once(opened: Opened) -> None:
    """No time makes it better; and the record counts neither as read nor as written."""
    store, consumer = opened(PATIENCE_S)
    for ask in (store.read, lambda: store.write(_record("s1"))):
        consumer.answers = [kafka_error("GROUP_AUTHORIZATION_FAILED")]
        with pytest.raises(AuthenticationError):
            ask()
    assert consumer.metadata is None


def test_lease_guards_outputs_a_record_that_is_not_confirmed_in_time_is_not_written(
    opened: Opened,
) -> None:
    store, consumer = opened(0.3)
    with pytest.raises(UnreachableError, match="did not confirm the lease in time"):
        store.write(_record("s1"))
    consumer.answers = [kafka_error("COORDINATOR_NOT_AVAILABLE", retriable=True)] * 100
    with pytest.raises(UnreachableError):
        store.read()


def test_lease_guards_outputs_the_late_answer_to_an_earlier_record_is_none_to_the_next(
    opened: Opened,
) -> None:
    """Else a name would count as given back that is not: the program ends, and the next job watches
    the record that stayed."""
    store, consumer = opened(0.3)
    with pytest.raises(UnreachableError, match="did not confirm the lease in time"):
        store.write(_record("s1", renewals=3))
    consumer.answers = [kafka_error("GROUP_AUTHORIZATION_FAILED")]
    with pytest.raises(AuthenticationError):
        store.write(_record("s1", renewals=4))
