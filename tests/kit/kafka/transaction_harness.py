"""Transactions made and left, on the fake broker or a real one, by one interface.

Contract suites are written once against `Harness` and run against both.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import Producer

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import (
    EndOutcome,
    Listing,
    TransactionState,
    Wire,
)
from sluice.connectors.kafka.sink.handles import (
    SourceRange,
    TransactionalId,
    TransactionHandle,
    TransactionIdentity,
    encode_handle,
)
from sluice.runtime.model.checkpoint_record import StateEntry
from tests.kit.kafka.fake_kafka import FakeBroker, FakeWire, Fenced
from tests.kit.kafka.kafka_records import await_stable, create_topic, read, unique
from tests.kit.kafka.raw_requests import add_partitions, init_producer_id
from tests.kit.waiting import wait_for


class Reachable(Protocol):
    """A broker, or a cluster of them."""

    @property
    def bootstrap(self) -> str:
        """``host:port`` of one or several."""
        ...


class Attempt(Protocol):
    """One producer of one id, as a task would use it."""

    @property
    def identity(self) -> TransactionIdentity:
        """From the producer itself (`handle-from-producer`)."""
        ...

    def produce(self, records: int) -> None:
        """Write and flush records; begins a transaction if none is open."""
        ...

    def end_natively(self, *, commit: bool) -> None:
        """The producer's own commit or abort."""
        ...


class Harness(Protocol):
    """A broker with a place to write to."""

    level: int
    prefix: str

    @property
    def wire(self) -> Wire:
        """Requests to the broker."""
        ...

    def name(self, *, region: str = "main", attempt_id: int = 1, slot: int = 0) -> str:
        """A transactional id of this harness's prefix, with a new owner."""
        ...

    def open(self, transactional_id: str | None = None, *, timeout_s: float = 600.0) -> Attempt:
        """Initialise an id."""
        ...

    def await_state(self, transaction: TransactionIdentity, state: TransactionState) -> None:
        """Wait until the coordinator describes the id so; in the fake, make it happen."""
        ...

    def visible(self) -> int:
        """Records that a read_committed reader finds, once nothing is open."""
        ...

    def readable(self) -> int:
        """Records that it finds now, up to the last stable offset."""
        ...

    def add_partitions(self, transaction: TransactionIdentity) -> str:
        """An AddPartitionsToTxn of a producer that sent it long ago; the error, "" if accepted."""
        ...

    def init_producer_id(self, transactional_id: str) -> TransactionIdentity | str:
        """An InitProducerId that nobody waits for any more; what it was given, or the error."""
        ...


# What nobody polls for piles up, and librdkafka walks past all of it to add the next: at 10 ms some
# producers left took both cores of a machine within a minute.
_STATISTICS_MS = 100

JOB_UID = "5b2f9b1e-0000-4000-8000-000000000001"


def handle_of(
    transaction: TransactionIdentity, *, records: int = 3, checkpoint_id: int = 7
) -> TransactionHandle:
    """The handle a task would return."""
    return TransactionHandle(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        checkpoint_id=checkpoint_id,
        record_count=records,
        sources=(SourceRange(topic="in", partition=0, start_offset=10, end_offset=13),),
    )


def committable(transaction: TransactionIdentity, *, records: int = 3) -> StateEntry:
    """The entry a task would return."""
    return encode_handle(handle_of(transaction, records=records), operator_id="sink-1")


def begun(harness: Harness, records: int = 2, *, timeout_s: float = 600.0) -> Attempt:
    """One with these records, left open."""
    attempt = harness.open(timeout_s=timeout_s)
    attempt.produce(records)
    return attempt


def end_by_hand(
    harness: Harness, transaction: TransactionIdentity, *, commit: bool
) -> tuple[EndOutcome, str]:
    """One EndTxn, of the version that the broker's level asks for."""
    (report,) = harness.wire.end([transaction], commit=commit, timeout_s=300)
    return report.outcome, report.error


def done_state(*, commit: bool) -> TransactionState:
    """How a transaction that was ended so is described."""
    return TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT


def ended_by_hand(harness: Harness, *, commit: bool) -> TransactionIdentity:
    """One of two records, as the coordinator ends one."""
    ours = begun(harness).identity
    assert end_by_hand(harness, ours, commit=commit) == (EndOutcome.DONE, "")
    harness.await_state(ours, done_state(commit=commit))
    return ours


def ended_natively(
    harness: Harness, *, commit: bool, timeout_s: float = 600.0
) -> TransactionIdentity:
    """One of two records, ended by the client that wrote them."""
    attempt = begun(harness, timeout_s=timeout_s)
    ours = attempt.identity
    attempt.end_natively(commit=commit)
    harness.await_state(ours, done_state(commit=commit))
    return ours


def _name(prefix: str, region: str, attempt_id: int, slot: int) -> str:
    return str(
        TransactionalId(
            prefix=prefix,
            job_uid=JOB_UID,
            region=region,
            attempt_id=attempt_id,
            owner=unique("owner"),
            slot=slot,
        )
    )


@dataclass
class FakeAttempt:
    """An attempt on the fake broker."""

    broker: FakeBroker
    identity: TransactionIdentity

    def produce(self, records: int) -> None:
        """See `Attempt.produce`."""
        for number in range(records):
            self.broker.append(self.identity, 0, number)

    def end_natively(self, *, commit: bool) -> None:
        """See `Attempt.end_natively`."""
        self.broker.end_natively(self.identity, commit=commit)


class FakeHarness:
    """`Harness` over `FakeBroker`."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.broker = FakeBroker(level=level)
        self.wire = FakeWire(self.broker)
        self.prefix = unique("prefix")

    def name(self, *, region: str = "main", attempt_id: int = 1, slot: int = 0) -> str:
        """See `Harness.name`."""
        return _name(self.prefix, region, attempt_id, slot)

    def open(self, transactional_id: str | None = None, *, timeout_s: float = 600.0) -> FakeAttempt:
        """See `Harness.open`."""
        name = transactional_id or self.name()
        return FakeAttempt(self.broker, self.broker.initialise(name, timeout_s=timeout_s))

    def await_state(self, transaction: TransactionIdentity, state: TransactionState) -> None:
        """See `Harness.await_state`."""
        if state is TransactionState.COMPLETE_ABORT:
            self.broker.advance(1000.0)
        self.broker.write_markers()
        described = self.broker.describe(transaction.transactional_id)
        assert described.state is state

    def visible(self) -> int:
        """See `Harness.visible`."""
        return sum(self.broker.visible.values())

    def readable(self) -> int:
        """See `Harness.readable`."""
        return len(self.broker.read_committed(0))

    def add_partitions(self, transaction: TransactionIdentity) -> str:
        """See `Harness.add_partitions`."""
        try:
            self.broker.add_partitions(transaction, 0)
        except Fenced as err:
            return str(err)
        return ""

    def init_producer_id(self, transactional_id: str) -> TransactionIdentity | str:
        """See `Harness.init_producer_id`."""
        try:
            return self.broker.init_producer_id(transactional_id)
        except Fenced as err:
            return str(err)


@dataclass
class RealAttempt:
    """An attempt on a real broker: a librdkafka producer that may be left."""

    bootstrap: str
    topic: str
    transactional_id: str
    timeout_s: float
    options: dict[str, Any]
    _eos: dict[str, Any] = field(default_factory=dict)
    _began: bool = False

    def __post_init__(self) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": int(self.timeout_s * 1000),
                "statistics.interval.ms": _STATISTICS_MS,
                "stats_cb": self._take,
                "log_level": 0,
                "linger.ms": 0,
                **self.options,
            }
        )
        self._producer.init_transactions(60)

    def _take(self, text: str) -> None:
        self._eos = json.loads(text).get("eos", {})

    @property
    def identity(self) -> TransactionIdentity:
        """See `Attempt.identity`."""

        def known() -> bool:
            self._producer.poll(0.01)
            return int(self._eos.get("producer_id", -1)) >= 0

        wait_for(known, what="the producer's own statistics")
        return TransactionIdentity(
            transactional_id=self.transactional_id,
            producer_id=self._eos["producer_id"],
            producer_epoch=self._eos["producer_epoch"],
        )

    def produce(self, records: int) -> None:
        """See `Attempt.produce`."""
        self.begin(records)
        # In short steps: after a fatal error, which it raises at its end, a longer flush calls
        # back with statistics, and Python makes a SystemError of that.
        wait_for(lambda: self._producer.flush(0.1) == 0, what="all records acknowledged")

    def begin(self, records: int) -> None:
        """As `produce`, without waiting for any answer."""
        if not self._began:
            self._producer.begin_transaction()
            self._began = True
        for number in range(records):
            self._producer.produce(self.topic, b"record %d" % number)

    def end_natively(self, *, commit: bool) -> None:
        """See `Attempt.end_natively`."""
        (self._producer.commit_transaction if commit else self._producer.abort_transaction)(60)
        self._began = False

    def let_go(self) -> None:
        """End the client as its process's end would: what is open stays open at the broker.

        It holds its callback and so this attempt, which holds it: by itself it ended whenever the
        collector came by, and continued making statistics until then.
        """
        self.__dict__.pop("_producer", None)


class RealHarness:
    """`Harness` over a real broker and a topic of its own."""

    def __init__(
        self,
        broker: Reachable,
        level: int,
        *,
        connection: KafkaConnection | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.level = level
        self.prefix = unique("prefix")
        self._plain = broker.bootstrap
        self._topic = create_topic(broker.bootstrap)
        self._options = options or {}
        self._left_behind: list[RealAttempt] = []
        self.connection = connection or KafkaConnection(bootstrap_servers=broker.bootstrap)
        self.wire: Wire = TransactionWire(self.connection)

    @property
    def topic(self) -> str:
        """Where attempts write."""
        return self._topic

    def name(self, *, region: str = "main", attempt_id: int = 1, slot: int = 0) -> str:
        """See `Harness.name`."""
        return _name(self.prefix, region, attempt_id, slot)

    def open(self, transactional_id: str | None = None, *, timeout_s: float = 600.0) -> RealAttempt:
        """See `Harness.open`. The producer lives as long as the harness, like a zombie would."""
        made = RealAttempt(
            self.connection.bootstrap_servers,
            self._topic,
            transactional_id or self.name(),
            timeout_s,
            self._options,
        )
        self._left_behind.append(made)
        return made

    def await_state(self, transaction: TransactionIdentity, state: TransactionState) -> None:
        """See `Harness.await_state`."""

        def described() -> TransactionState | None:
            found = self.wire.describe([transaction.transactional_id], timeout_s=120)
            one = found.get(transaction.transactional_id)
            return one.state if one is not None else None

        wait_for(lambda: described() is state, what=f"state {state.value}")

    def visible(self) -> int:
        """See `Harness.visible`."""
        await_stable(self._plain, self._topic)
        return len(read(self._plain, self._topic))

    def readable(self) -> int:
        """See `Harness.readable`."""
        return len(read(self._plain, self._topic))

    def add_partitions(self, transaction: TransactionIdentity) -> str:
        """See `Harness.add_partitions`."""
        return add_partitions(self._plain, transaction, self._topic, 0)

    def init_producer_id(self, transactional_id: str) -> TransactionIdentity | str:
        """See `Harness.init_producer_id`."""
        return init_producer_id(self._plain, transactional_id)

    def listing(self) -> Listing:
        """Everything under this harness's prefix."""
        return self.wire.list_transactions(self.prefix, timeout_s=120)

    def close(self) -> None:
        """Close the connection and end every producer."""
        self.wire.close()
        while self._left_behind:
            self._left_behind.pop().let_go()
