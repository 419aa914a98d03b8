"""A broker, a sink, a source and a checkpoint store in memory: remote, shared by all processes.

They keep what outlives a process, so that a test can let one coordinator die and another start.
"""

import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.runtime.contracts import (
    Backlog,
    CommitOutcome,
    CommitReport,
    Committer,
    RegisteredAttempt,
    SinkContext,
    SweepReport,
    SweepView,
)
from sluice.runtime.errors import FencedError, SourceChangedError
from sluice.runtime.model.checkpoint_record import Redistribution, StateEntry
from sluice.runtime.model.splits import BatchKey, SplitKey, SplitRange


class ManualClock:
    """Time that moves only when reported."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds


# --- the broker -----------------------------------------------------------------------------------


class TransactionState(enum.Enum):
    """Of one transaction; the last two are for ever."""

    READY = "ready"  # its id is initialised, it has no record: the broker knows of nothing open
    ONGOING = "ongoing"
    COMMITTED = "committed"
    ABORTED = "aborted"


class FencedWriterError(Exception):
    """The broker refuses a writer whose transaction has ended, or whose id was taken over."""


@dataclass(slots=True)
class Transaction:
    """One transaction of one producer epoch."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: TransactionState = TransactionState.READY

    @property
    def identity(self) -> tuple[str, int, int]:
        """What names it."""
        return self.transactional_id, self.producer_id, self.producer_epoch


@dataclass(slots=True)
class FakeBroker:
    """Partitions with transactional records; what a read_committed reader sees of them.

    Attributes:
        logs: (value, its transaction) by partition.
        transactions: of every identity, newest last by transactional id.
        owners: lease by prefix: (job uid, checkpoint uri, session).
    """

    logs: dict[int, list[tuple[object, Transaction]]] = field(default_factory=dict)
    transactions: dict[tuple[str, int, int], Transaction] = field(default_factory=dict)
    latest: dict[str, Transaction] = field(default_factory=dict)
    owners: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    aborts_of_committed: int = 0

    def init(self, transactional_id: str) -> Transaction:
        """`init_transactions`: aborts what the id had open, fences what it had ready
        (`ids-never-reused`)."""
        old = self.latest.get(transactional_id)
        if old is not None and old.state in (TransactionState.ONGOING, TransactionState.READY):
            old.state = TransactionState.ABORTED
        producer_id = len(self.latest) if old is None else old.producer_id
        epoch = 0 if old is None else old.producer_epoch + 2
        made = Transaction(transactional_id, producer_id, epoch)
        self.transactions[made.identity] = self.latest[transactional_id] = made
        return made

    def append(self, transaction: Transaction, partition: int, value: object) -> None:
        """Write one record; refused once the transaction has ended."""
        if transaction.state is TransactionState.READY:
            transaction.state = TransactionState.ONGOING
        if transaction.state is not TransactionState.ONGOING:
            raise FencedWriterError(transaction.transactional_id)
        self.logs.setdefault(partition, []).append((value, transaction))

    def end(self, identity: tuple[str, int, int], *, commit: bool) -> CommitOutcome:
        """EndTxn with a stored handle, after a look at what became of it
        (`outcome-from-broker`)."""
        found = self.transactions.get(identity)
        if found is None or self.latest[found.transactional_id] is not found:
            return CommitOutcome.UNKNOWN  # a later one of the id hides what became of it
        if found.state is TransactionState.ONGOING:
            found.state = TransactionState.COMMITTED if commit else TransactionState.ABORTED
        elif found.state is TransactionState.COMMITTED and not commit:
            self.aborts_of_committed += 1
        committed = found.state is TransactionState.COMMITTED
        return CommitOutcome.COMMITTED if committed else CommitOutcome.ABORTED

    def read_committed(self, partition: int) -> list[object]:
        """Values up to the last stable offset, aborted ones left out."""
        seen: list[object] = []
        for value, transaction in self.logs.get(partition, []):
            if transaction.state is TransactionState.ONGOING:
                break
            if transaction.state is TransactionState.COMMITTED:
                seen.append(value)
        return seen

    def ongoing(self) -> list[Transaction]:
        """Open transactions: they hold back readers."""
        known = list(self.transactions.values())  # other threads add to it
        return [t for t in known if t.state is TransactionState.ONGOING]


def transactional_id(job_uid: str, batch: BatchKey, owner: str) -> str:
    """As the real sink names them."""
    return f"fake/{job_uid}/{batch.region}.{batch.attempt_id}/{owner}"


def entry_of(transaction: Transaction, *, operator_id: str = "sink") -> StateEntry:
    """A committable for a pre-committed transaction."""
    return StateEntry(
        operator_id=operator_id,
        state_name="committables",
        kind="fake-transaction",
        version=1,
        redistribution=Redistribution.SPLIT,
        payload=json.dumps(transaction.identity).encode(),
    )


def attempt_of(
    transaction: Transaction, batch: BatchKey, *, operator_id: str = "sink"
) -> RegisteredAttempt:
    """What a task registers before its first record."""
    return RegisteredAttempt(
        batch=batch, operator_id=operator_id, resource=json.dumps(transaction.identity)
    )


def identity_of(entry: StateEntry) -> tuple[str, int, int]:
    """The transaction that a committable names."""
    return _identity(entry.payload)


def _identity(text: bytes | str) -> tuple[str, int, int]:
    name, producer_id, epoch = json.loads(text)
    return name, producer_id, epoch


# --- the sink's driver side -----------------------------------------------------------------------


class _FakeCommitter:
    def __init__(self, sink: "FakeSink") -> None:
        self._sink = sink

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        self._sink.calls.append("commit")
        return [self._end(entry, commit=True) for entry in committables]

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        self._sink.calls.append("abort")
        return [self._end(entry, commit=False) for entry in committables]

    def await_visible(self, *, timeout_s: float) -> bool:
        self._sink.calls.append("await_visible")
        return True

    def _end(self, entry: StateEntry, *, commit: bool) -> CommitReport:
        if not self._sink.may_reach():
            return CommitReport(outcome=CommitOutcome.PENDING, detail="not reached")
        outcome = self._sink.broker.end(_identity(entry.payload), commit=commit)
        if not self._sink.is_answered():
            return CommitReport(outcome=CommitOutcome.PENDING, detail="the answer was lost")
        return CommitReport(outcome=outcome)


class FakeSink:
    """A `SinkCoordinator` on a `FakeBroker`, for one process.

    Args:
        broker: shared with other processes.
        may_reach: asked before each request; False: it does not arrive.
        is_answered: asked after each request; False: it happened, the answer is lost.
    """

    def __init__(
        self,
        broker: FakeBroker,
        *,
        may_reach: Callable[[], bool] = lambda: True,
        is_answered: Callable[[], bool] = lambda: True,
    ) -> None:
        self.broker = broker
        self.may_reach = may_reach
        self.is_answered = is_answered
        self.committer: Committer = _FakeCommitter(self)
        self.calls: list[str] = []
        self.closed = False
        self.context: SinkContext | None = None

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """See `SinkCoordinator.check`."""
        self.calls.append("check")
        return {"cluster_id": "fake-cluster", "transaction_timeout_s": "60"}

    def claim(self, context: SinkContext, *, timeout_s: float) -> None:
        """Same uid and same directory: take over; nobody else lives in these tests."""
        self.calls.append("claim")
        self.context = context
        owner = (context.job_uid, context.checkpoint_uri, context.leader_session_id)
        self.broker.owners["fake"] = owner

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        """By the rules of the real one (`ids-never-reused`)."""
        self.calls.append("sweep")
        protected = {_identity(entry.payload)[0] for entry in view.protected}
        declared = {_identity(attempt.resource) for attempt in view.orphans}
        swept = 0
        for transaction in self.broker.ongoing():
            _, job_uid, region, _ = transaction.transactional_id.split("/")
            name, _, attempt_id = region.rpartition(".")
            if job_uid != view.job_uid or transaction.transactional_id in protected:
                continue
            is_old = view.is_attempt_over(name, int(attempt_id))
            if is_old or transaction.identity in declared:
                transaction.state = TransactionState.ABORTED
                swept += 1
        return SweepReport(aborted=swept)

    def renew(self) -> None:
        """FencedError when another session is in the record."""
        self.calls.append("renew")
        owner = self.broker.owners.get("fake")
        session = None if self.context is None else self.context.leader_session_id
        if session is not None and owner is not None and owner[2] != session:
            raise FencedError("another session owns the prefix", {}, "Stop.")

    def close(self) -> None:
        """See `SinkCoordinator.close`."""
        self.closed = True


# --- the source's driver side ---------------------------------------------------------------------


@dataclass(slots=True)
class FakeSource:
    """A `SplitEnumerator` over growing logs; offsets are positions, all of them hold a record.

    Attributes:
        ends: end offset by partition; a test raises them.
        bounded: ends are final.
        first: offset of the first record that is still there, by partition; 0 unless set.
        group: offsets reported by `committed`, by partition.
    """

    source_id: str
    ends: dict[int, int]
    bounded: bool = False
    first: dict[int, int] = field(default_factory=dict)
    group: dict[int, int] = field(default_factory=dict)
    restored: list[SplitRange] = field(default_factory=list)
    known: set[int] = field(default_factory=set)
    error: Exception | None = None
    changed: SourceChangedError | None = None
    discovery_error: Exception | None = None
    limits: list[int | None] = field(default_factory=list)
    closed: bool = False

    def _split(self, partition: int, start: int, end: int) -> SplitRange:
        return SplitRange(
            source_id=self.source_id,
            topic="input",
            topic_id="topic-uuid",
            partition=partition,
            start_offset=start,
            end_offset=end,
        )

    def resolve_start(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        """From the beginning."""
        self.known = set(self.ends)
        return tuple(self._split(partition, 0, 0) for partition in sorted(self.ends))

    def restore(self, positions: Sequence[SplitRange], *, timeout_s: float) -> None:
        """See `SplitEnumerator.restore`."""
        if self.changed is not None:
            raise self.changed
        self.restored = list(positions)
        self.known = {split.partition for split in positions}

    def adopt(self, positions: Sequence[SplitRange], *, timeout_s: float) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.adopt`."""
        if self.changed is not None:
            raise self.changed
        return tuple(replace(split, topic_id="topic-uuid") for split in positions)

    def readable(self, ranges: Sequence[SplitRange], *, timeout_s: float) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.readable`."""
        if self.changed is not None:
            raise self.changed
        return tuple(split for split in ranges if split.partition in self.ends)

    def replayable(
        self,
        ranges: Sequence[SplitRange],
        *,
        timeout_s: float,
        pause: Callable[[float], object] | None = None,
    ) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.replayable`: without what lies after the ends of now."""
        if self.error is not None:
            raise self.error
        ends = self.ends
        return tuple(
            replace(s, end_offset=min(s.end_offset, max(s.start_offset, ends[s.partition])))
            for s in self.readable(ranges, timeout_s=timeout_s)
        )

    def discover(self, *, timeout_s: float) -> tuple[SplitRange, ...]:
        """See `SplitEnumerator.discover`."""
        if self.discovery_error is not None:
            raise self.discovery_error
        if self.ends.keys() <= self.known:
            return ()
        new = sorted(set(self.ends) - self.known)
        self.known |= set(new)
        return tuple(self._split(partition, 0, 0) for partition in new)

    def cut(
        self, positions: Sequence[SplitRange], *, max_records: int | None, timeout_s: float
    ) -> tuple[SplitRange, ...]:
        """Everything there is, or ``max_records`` of each split."""
        self.limits.append(max_records)
        if self.error is not None:
            raise self.error
        return tuple(
            self._split(
                split.partition,
                split.end_offset,
                min(
                    self.ends[split.partition],
                    split.end_offset + (10**9 if max_records is None else max_records),
                ),
            )
            for split in positions
        )

    def is_finished(self, positions: Sequence[SplitRange]) -> bool:
        """See `SplitEnumerator.is_finished`."""
        return self.bounded and all(
            split.end_offset >= self.ends[split.partition] for split in positions
        )

    def fixed_ends(self) -> Mapping[SplitKey, int] | None:
        """See `SplitEnumerator.fixed_ends`."""
        if not self.bounded:
            return None
        return {(self.source_id, "input", partition): end for partition, end in self.ends.items()}

    def committed(self, positions: Sequence[SplitRange]) -> None:
        """See `SplitEnumerator.committed`."""
        self.group |= {split.partition: split.end_offset for split in positions}

    def lag_records(self, positions: Sequence[SplitRange]) -> int | None:
        """See `SplitEnumerator.lag_records`."""
        return sum(self.ends[split.partition] - split.end_offset for split in positions)

    def measure(
        self, positions: Sequence[SplitRange], *, timeout_s: float
    ) -> Mapping[SplitKey, Backlog]:
        """See `SplitEnumerator.measure`."""
        if self.error is not None:
            raise self.error
        return {
            split.key: Backlog(
                records=self.ends[split.partition] - split.end_offset,
                lost_records=max(0, self.first.get(split.partition, 0) - split.end_offset),
            )
            for split in positions
        }

    def close(self) -> None:
        """See `SplitEnumerator.close`."""
        self.closed = True
