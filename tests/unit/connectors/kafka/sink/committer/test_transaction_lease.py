"""The lease of a Kafka sink on its prefix, in memory and in Kafka's offset metadata."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.connectors.kafka.client.confluent import KafkaError, TopicPartition
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer import transaction_lease as owner
from sluice.connectors.kafka.sink.committer.kafka_sink_coordinator import KafkaSinkCoordinator
from sluice.connectors.kafka.sink.committer.transaction_lease import KafkaLeaseStore
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionDescription
from sluice.connectors.kafka.sink.committer.wire_answers import STATE_TOPIC
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.runtime.contracts import SinkContext, SweepView
from sluice.runtime.errors import AuthenticationError, FencedError, UnreachableError
from sluice.runtime.ownership.lease import LeaseRecord
from tests.kit.kafka.fake_kafka import FakeWire
from tests.kit.kafka.fake_producer import kafka_error
from tests.kit.kafka.transaction_harness import JOB_UID, FakeHarness
from tests.kit.waiting import PATIENCE_S
from tests.unit.runtime.ownership.test_lease import FakeStore

CONTEXT = SinkContext(
    job_uid=JOB_UID,
    job_name="job",
    operator_id="sink-1",
    checkpoint_uri="file:/a",
    leader_session_id="s",
)
OTHER = LeaseRecord(
    job_uid="other", checkpoint_uri="file:/b", session="t", host="h", renewed_at_ms=0, renewals=1
)


@dataclass
class _Store(FakeStore):
    """Counts how often it is closed, and may be away."""

    closed: int = 0
    is_away: bool = False

    def read(self) -> LeaseRecord | None:
        if self.is_away:
            raise UnreachableError("away", {}, "")
        return super().read()

    def close(self) -> None:
        self.closed += 1


@dataclass
class _Wire(FakeWire):
    """Counts how often it is closed, and may refuse to report a name."""

    closed: int = 0
    refused: str = ""

    def describe(
        self, transactional_ids: Sequence[str], *, timeout_s: float
    ) -> Mapping[str, TransactionDescription | None]:
        self._require(transactional_ids)
        return super().describe(transactional_ids, timeout_s=timeout_s)

    def missing_topics(self, topics: Sequence[str], *, timeout_s: float) -> tuple[str, ...]:
        self._require(topics)
        return super().missing_topics(topics, timeout_s=timeout_s)

    def close(self) -> None:
        self.closed += 1

    def _require(self, names: Sequence[str]) -> None:
        if self.refused in names:
            raise AuthenticationError(f"{self.refused} is refused", {}, "")


class Bench:
    """A sink's coordinator over a store and a broker that are played."""

    def __init__(self) -> None:
        self.harness = FakeHarness(2)
        self.store = _Store()
        self.wires: list[_Wire] = []
        self.sink = KafkaSinkCoordinator(
            KafkaConnection(bootstrap_servers="fake:1"),
            transactional_id_prefix=self.harness.prefix,
            transaction_timeout_s=None,
            topics=(),
            connect=self._connect,
            open_lease_store=lambda *_, **__: self.store,
            clock=lambda: self.store.now_s,
            sleep=self.store.sleep,
        )

    def _connect(self, _: KafkaConnection) -> _Wire:
        self.wires.append(_Wire(self.harness.broker))
        return self.wires[-1]

    def claim(self) -> None:
        self.sink.claim(CONTEXT, timeout_s=1.0)


def test_lease_guards_outputs_a_sink_that_ends_gives_its_name_back_once() -> None:
    bench = Bench()
    bench.claim()
    assert bench.store.record is not None
    assert not bench.store.record.is_ended
    bench.sink.close()
    assert bench.store.record.is_ended
    bench.store.record = OTHER
    bench.sink.close()
    bench.sink.renew()
    assert bench.store.record == OTHER
    assert bench.store.closed == 1
    assert all(wire.closed for wire in bench.wires)


def test_a_sink_whose_name_cannot_be_given_back_closes_all_the_same() -> None:
    """Its record is left, and watched by who comes next."""
    bench = Bench()
    bench.claim()
    bench.store.is_away = True
    bench.sink.close()
    assert bench.store.closed == 1
    assert all(wire.closed for wire in bench.wires)


def test_a_sink_that_never_had_the_name_closes_its_connections() -> None:
    bench = Bench()
    bench.sink.close()
    assert [wire.closed for wire in bench.wires] == [1, 1]
    assert not bench.store.closed


def test_lease_guards_outputs_a_claim_that_is_refused_leaves_no_connection_and_renews_nothing() -> (
    None
):
    bench = Bench()
    bench.store.record = OTHER
    bench.store.on_sleep = lambda: bench.store.write(replace(OTHER, renewals=2))
    with pytest.raises(FencedError, match="another job"):
        bench.claim()
    assert bench.store.closed == 1
    bench.sink.renew()
    assert bench.store.record == replace(OTHER, renewals=2)


def _swept_in_vain() -> tuple[Bench, TransactionIdentity]:
    """An orphan that a sweep could not see: its broker was away, and is back."""
    bench = Bench()
    bench.claim()
    orphan = bench.harness.open(bench.harness.name(attempt_id=1))
    orphan.produce(1)
    swept = bench.wires[1]
    swept.absent, swept.absent_ids = ("b",), frozenset({orphan.identity.transactional_id})
    view = SweepView(job_uid=JOB_UID, attempt_ids={"main": 2}, protected=(), orphans=())
    bench.sink.sweep(view, timeout_s=0.0)
    swept.absent, swept.absent_ids = (), frozenset()
    return bench, orphan.identity


def test_lease_guards_outputs_a_renewal_that_finds_another_owner_sweeps_nothing() -> None:
    bench, _ = _swept_in_vain()
    bench.store.record = OTHER
    with pytest.raises(FencedError):
        bench.sink.renew()
    assert not bench.harness.broker.discarded


def test_wait_for_all_brokers_a_renewal_that_is_not_answered_still_sweeps_what_is_left() -> None:
    bench, orphan = _swept_in_vain()
    bench.store.is_away = True
    bench.sink.renew()
    assert list(bench.harness.broker.discarded) == [orphan]


def test_wait_for_all_brokers_only_the_first_sweep_waits_for_brokers_that_are_away() -> None:
    """A job that runs sweeps again, with the next renewal at the latest."""
    bench = Bench()
    bench.claim()
    bench.wires[1].absent = ("b",)
    view = SweepView(job_uid=JOB_UID, attempt_ids={"main": 2}, protected=(), orphans=())
    waited_s = []
    for _ in range(2):
        began_s = bench.store.now_s
        assert not bench.sink.sweep(view, timeout_s=60.0).is_complete
        waited_s.append(bench.store.now_s - began_s)
    first_s, second_s = waited_s
    assert 0 < first_s <= 5.0
    assert second_s == 0


def test_a_check_asks_for_what_a_recovery_and_a_sweep_will_need() -> None:
    for is_id in (True, False):
        bench = Bench()
        refused = f"{bench.harness.prefix}/check" if is_id else STATE_TOPIC
        bench.wires[0].refused = refused
        with pytest.raises(AuthenticationError, match=refused):
            bench.sink.check(timeout_s=1.0)


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
