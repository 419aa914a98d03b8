"""The model Kafka as a simulated process reaches it: requests that get lost, come late, come twice.

What sits on it is production code: committer, verdicts, sweep and owner claim.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_sink_coordinator import KafkaSinkCoordinator
from sluice.connectors.kafka.sink.committer.transaction_requests import (
    EndOutcome,
    EndReport,
    Listing,
    TransactionDescription,
    TransactionState,
    Wire,
)
from sluice.connectors.kafka.sink.handles import (
    COMMITTABLE_KIND,
    SourceRange,
    TransactionHandle,
    TransactionIdentity,
    decode_handle,
    encode_handle,
)
from sluice.runtime.contracts import RegisteredAttempt
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.model.splits import BatchKey, SplitRange
from sluice.runtime.ownership.lease import LeaseRecord, LeaseStore
from tests.kit.files.fake_file_system import SimulatedCrashError
from tests.kit.kafka.fake_kafka import FakeWire, Fault

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

PREFIX = "simulated"
"""Of every transactional id."""
_TOPIC = "output"
_COMMITTED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
_TORN = "a coordinator dies in the middle of its commits"
CONNECTION = KafkaConnection(bootstrap_servers="model:1")


class _Wire(FakeWire):
    """Of one process, or of a command."""

    def __init__(self, world: "World", process: "Process | None") -> None:
        super().__init__(world.broker, topics=(_TOPIC,))
        self._process = process
        self._world = world
        self._back_at_s = 0.0

    def _is_away(self) -> bool:
        world = self._world
        if world.clock() < self._back_at_s and not world.calm:
            return True
        if world.fault(world.profile.unreached, "the broker does not answer"):
            self._back_at_s = world.clock() + world.random.choice((0.0, 0.1, 1.0))
            return True
        return False

    def next_fault(self) -> Fault | None:
        """See `FakeWire.next_fault`."""
        world, profile = self._world, self._world.profile
        if self._is_away():
            return Fault.LOSE_REQUEST
        if world.fault(profile.unanswered, "EndTxn is not answered"):
            return Fault.LOSE_ANSWER
        if world.fault(profile.late, "EndTxn comes late"):
            return Fault.LATE
        if world.fault(profile.late, "EndTxn will come once more"):
            return Fault.REPEATED
        return None

    def end(
        self, transactions: Sequence[TransactionIdentity], *, commit: bool, timeout_s: float
    ) -> list[EndReport]:
        """See `Wire.end`. Its requests arrive one after another, others do something between them,
        and who sends them may die in the middle: then some of the rest come late, others never."""
        reports = []
        for at, transaction in enumerate(transactions):
            if commit and self._world.fault(self._world.profile.torn, _TORN):
                on_their_way = [t for t in transactions[at:] if self._world.random.random() < 0.3]
                self.broker.late += [self.request(t, commit=commit) for t in on_their_way]
                raise SimulatedCrashError
            (report,) = super().end([transaction], commit=commit, timeout_s=timeout_s)
            if commit and report.outcome is EndOutcome.DONE:
                self._world.watch.tells_committed(transaction)
            reports.append(report)
            self._world.meanwhile(self._process)
        return reports

    def describe(
        self, transactional_ids: Sequence[str], *, timeout_s: float
    ) -> Mapping[str, TransactionDescription | None]:
        """See `Wire.describe`."""
        self._world.meanwhile(self._process)
        if self._is_away():
            return {}
        found = super().describe(transactional_ids, timeout_s=timeout_s)
        for described in filter(None, found.values()):
            if described.state in _COMMITTED:
                ours = described.identity  # EndTxn version 5 raises the epoch
                for epoch in (ours.producer_epoch, max(0, ours.producer_epoch - 1)):
                    self._world.watch.tells_committed(replace(ours, producer_epoch=epoch))
        return found

    def list_transactions(
        self, prefix: str, *, timeout_s: float, states: Sequence[TransactionState] = ()
    ) -> Listing:
        """See `Wire.list_transactions`."""
        found = super().list_transactions(prefix, timeout_s=timeout_s, states=states)
        if self._world.fault(self._world.profile.unreached, "a broker is missing in a sweep"):
            return Listing(transactions=found.transactions[1:], missing=("broker 2",))
        return found


class _OwnerStore:
    """The lease, in the world's memory."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def read(self) -> LeaseRecord | None:
        """See `LeaseStore.read`."""
        self._ask()
        return self._world.owner

    def write(self, record: LeaseRecord) -> None:
        """See `LeaseStore.write`."""
        self._ask()
        self._world.owner = record

    def close(self) -> None:
        """See `LeaseStore.close`."""

    def _ask(self) -> None:
        if self._world.fault(self._world.profile.unreached / 4, "the lease is out of reach"):
            raise UnreachableError("the lease is out of reach", {}, "Ask again.")


def open_lease_store(world: "World") -> LeaseStore:
    """Where the lease lies."""
    return _OwnerStore(world)


def make_wire(world: "World") -> Wire:
    """As a command reaches the broker."""
    return _Wire(world, None)


def make_sink(process: "Process") -> KafkaSinkCoordinator:
    """The driver's side of the sink, for one process."""
    world = process.world
    return KafkaSinkCoordinator(
        CONNECTION,
        transactional_id_prefix=PREFIX,
        transaction_timeout_s=None,
        topics=(_TOPIC,),
        connect=lambda _: _Wire(world, process),
        open_lease_store=lambda *_, **__: open_lease_store(world),
        clock=world.clock,
        sleep=world.nap,
    )


def entry_of(
    transaction: TransactionIdentity, checkpoint_id: int, splits: Sequence[SplitRange]
) -> StateEntry:
    """The committable of a pre-committed transaction."""
    ranges = [split for split in splits if not split.is_empty]
    handle = TransactionHandle(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        checkpoint_id=checkpoint_id,
        record_count=sum(split.end_offset - split.start_offset for split in ranges),
        sources=tuple(
            SourceRange(
                topic=split.topic,
                partition=split.partition,
                start_offset=split.start_offset,
                end_offset=split.end_offset,
            )
            for split in ranges
        ),
    )
    return encode_handle(handle, operator_id="sink")


@lru_cache(maxsize=10_000)  # the watch asks the same again and again
def identity_of(entry: StateEntry) -> TransactionIdentity:
    """The transaction that a committable names."""
    return decode_handle(entry).identity


def identities_of(entries: Iterable[StateEntry]) -> list[TransactionIdentity]:
    """The transactions among committables."""
    return [identity_of(entry) for entry in entries if entry.kind == COMMITTABLE_KIND]


def attempt_of(transaction: TransactionIdentity, batch: BatchKey) -> RegisteredAttempt:
    """What a task registers before its first record."""
    return RegisteredAttempt(batch=batch, operator_id="sink", resource=transaction.resource)
