"""A transaction coordinator in memory, with the answers that were measured on Kafka 4.3.1.

`FakeBroker` keeps transactional ids, producer epochs and states, and the records of partitions;
`FakeWire` is `Wire` over it, with answers and requests that can be lost, come
late or come twice. Nothing here waits: markers are written, transactions time out and late requests
arrive when the test says so. `tests/contract` holds it against real brokers.
"""

import contextlib
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sluice.connectors.kafka.sink.committer.transaction_requests import (
    Cluster,
    EndOutcome,
    EndReport,
    ListedTransaction,
    Listing,
    TransactionDescription,
    TransactionState,
)
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.runtime.errors import UnreachableError

_S = TransactionState
_OPEN = frozenset({_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT})


class Fenced(Exception):
    """A producer's own request was refused: a newer epoch exists, or its transaction is gone."""


class Fault(enum.Enum):
    """What happens to the next EndTxn request."""

    LOSE_REQUEST = "the request never arrives"
    LOSE_ANSWER = "it is done, the answer is lost"
    CONCURRENT = "another change is under way: CONCURRENT_TRANSACTIONS, nothing is done"
    LATE = "no answer; it lies in a queue, and arrives when the test says so"
    REPEATED = "it is done and answered; a copy of it arrives when the test says so"


@dataclass(slots=True, eq=False)
class Written:
    """One transaction: what its records are bound to, for ever.

    Attributes:
        identity: at transaction.version 0 a writer that nobody fenced may begin another one of
            the same identity; they are two.
        state: ONGOING, and then as the coordinator's, up to COMPLETE_COMMIT or COMPLETE_ABORT.
        partitions: of the output, that it was added to.
    """

    identity: TransactionIdentity
    state: TransactionState = _S.ONGOING
    partitions: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Id:
    producer_id: int
    epoch: int
    state: TransactionState = _S.EMPTY
    records: int = 0
    timeout_s: float = 60.0
    started_at_s: float = 0.0
    raised_by_end: bool = False  # the epoch was raised by EndTxn version 5, or by who fenced it
    wedged: bool = False
    written: Written | None = None


@dataclass(slots=True)
class FakeBroker:
    """The coordinator of every id.

    Attributes:
        level: finalised ``transaction.version``.
        hold_markers: PrepareCommit and PrepareAbort last until `write_markers`.
        visible: records that a read_committed reader can see, by transaction.
        discarded: records that no reader will ever see, by transaction.
        requests: every EndTxn that arrived: (transaction, commit, version).
        logs: (value, its transaction) by partition, as `append` wrote them.
        late: requests that lie in a queue; `land_late_request` lets one arrive.
        on_end: reported each transaction whose end is certain now, and of each whose markers are
            written; `Written.state` says which.
    """

    level: int = 2
    hold_markers: bool = False
    now_s: float = 0.0
    ids: dict[str, _Id] = field(default_factory=dict)
    visible: dict[TransactionIdentity, int] = field(default_factory=dict)
    discarded: dict[TransactionIdentity, int] = field(default_factory=dict)
    requests: list[tuple[TransactionIdentity, bool, int]] = field(default_factory=list)
    logs: dict[int, list[tuple[object, Written]]] = field(default_factory=dict)
    late: list[Callable[[], object]] = field(default_factory=list)
    on_end: Callable[[Written], None] = lambda _: None
    _next_producer_id: int = 1000
    _added: dict[TransactionIdentity, set[int]] = field(default_factory=dict)

    # --- what a producer does -------------------------------------------------------------

    def initialise(self, transactional_id: str, *, timeout_s: float = 60.0) -> TransactionIdentity:
        """`init_transactions`: the request, and once more after the abort of what was open under
        the id, whoever made it (`ids-never-reused`)."""
        known = self.ids.get(transactional_id)
        if known is not None and known.state is _S.ONGOING and not known.wedged:
            with contextlib.suppress(Fenced):
                self.init_producer_id(transactional_id)
            self._complete(known)
        return self.init_producer_id(transactional_id, timeout_s=timeout_s)

    def init_producer_id(
        self, transactional_id: str, *, timeout_s: float = 60.0
    ) -> TransactionIdentity:
        """One InitProducerId: what is open under the id it only aborts, and is to be sent again."""
        known = self.ids.get(transactional_id)
        if known is None:
            self._next_producer_id += 1
            known = self.ids[transactional_id] = _Id(self._next_producer_id, -1)
        if known.wedged or known.state in (_S.PREPARE_COMMIT, _S.PREPARE_ABORT):
            raise Fenced("CONCURRENT_TRANSACTIONS")
        if known.state is _S.ONGOING:
            self._abort_and_fence(transactional_id)
            raise Fenced("CONCURRENT_TRANSACTIONS")
        known.epoch += 1
        known.state, known.records, known.timeout_s = _S.EMPTY, 0, timeout_s
        known.raised_by_end = False
        return self._identity(transactional_id)

    def produce(self, transaction: TransactionIdentity, records: int) -> None:
        """Records of a transaction; begins one when none is open."""
        known = self._own(transaction)
        self._begin(known, transaction)
        known.records += records

    def append(self, transaction: TransactionIdentity, partition: int, value: object) -> None:
        """One record; a partition is added to the transaction before its first one.

        A producer adds a partition once: where its transaction was ended after its back, and it
        was not fenced, the partition's leader finds that no transaction is open there.
        """
        known = self._own(transaction)
        added = self._added.setdefault(transaction, set())
        if partition not in added:
            self.add_partitions(transaction, partition)
            added.add(partition)
        written = known.written
        if known.state is not _S.ONGOING or written is None or partition not in written.partitions:
            raise Fenced("INVALID_TXN_STATE")
        known.records += 1
        self.logs.setdefault(partition, []).append((value, written))

    def add_partitions(self, transaction: TransactionIdentity, partition: int) -> None:
        """AddPartitionsToTxn: begins a transaction when none is open, however late it comes."""
        known = self._own(transaction)
        if known.state in (_S.PREPARE_COMMIT, _S.PREPARE_ABORT):
            raise Fenced("CONCURRENT_TRANSACTIONS")
        self._begin(known, transaction).partitions.add(partition)

    def _begin(self, known: _Id, transaction: TransactionIdentity) -> Written:
        if known.state is not _S.ONGOING or known.written is None:
            known.state, known.records, known.started_at_s = _S.ONGOING, 0, self.now_s
            known.written = Written(transaction)
        return known.written

    def end_natively(self, transaction: TransactionIdentity, *, commit: bool) -> None:
        """The producer's own commit or abort: EndTxn below version 5, the epoch stays."""
        known = self._own(transaction)
        if known.state is not _S.ONGOING:
            raise Fenced("INVALID_TXN_STATE")
        self._added.pop(
            transaction, None
        )  # the client's next transaction adds its partitions again
        self._prepare(transaction.transactional_id, commit=commit)

    # --- what time and the broker do ------------------------------------------------------

    def write_markers(self) -> None:
        """Complete every prepared transaction; readers see the committed ones now."""
        for known in self.ids.values():
            self._complete(known)

    def _complete(self, known: _Id) -> None:
        written = known.written
        if written is None or known.state not in (_S.PREPARE_COMMIT, _S.PREPARE_ABORT):
            return
        is_commit = known.state is _S.PREPARE_COMMIT
        known.state = written.state = _S.COMPLETE_COMMIT if is_commit else _S.COMPLETE_ABORT
        ended = self.visible if is_commit else self.discarded
        # A late AddPartitions may have begun another one of the same identity: they are two.
        ended[written.identity] = ended.get(written.identity, 0) + known.records
        self.on_end(written)

    def advance(self, seconds: float) -> None:
        """Let time pass; what is open beyond its timeout is aborted and its writer fenced."""
        self.now_s += seconds
        for transactional_id, known in self.ids.items():
            overdue = self.now_s - known.started_at_s > known.timeout_s
            if known.state is _S.ONGOING and overdue and not known.wedged:
                self.expire(transactional_id)

    def expire(self, transactional_id: str) -> None:
        """An open transaction is aborted for its age, and its writer fenced."""
        self._abort_and_fence(transactional_id)

    def _abort_and_fence(self, transactional_id: str) -> None:
        known = self.ids[transactional_id]
        known.epoch += 1
        known.raised_by_end = True
        self._prepare(transactional_id, commit=False)

    def land_late_request(self, number: int = 0) -> None:
        """Let a request arrive that lay in a queue; nobody waits for its answer any more."""
        self.late.pop(number)()

    def forget(self, transactional_id: str) -> None:
        """The id expires at the coordinator, which forgets how its last transaction ended; readers
        see that for ever. One of `forgettable`: no other expires.
        """
        del self.ids[transactional_id]

    def forgettable(self) -> list[str]:
        """Ids that expire when nobody uses them for long: no transaction is open under them."""
        return [name for name, known in self.ids.items() if known.state not in _OPEN]

    # --- what anybody may ask ---------------------------------------------------------------

    def read_committed(self, partition: int) -> list[object]:
        """Values up to the last stable offset, aborted ones left out."""
        seen: list[object] = []
        for value, written in self.logs.get(partition, []):
            if written.state in _OPEN:
                break
            if written.state is _S.COMPLETE_COMMIT:
                seen.append(value)
        return seen

    def ongoing(self) -> list[TransactionIdentity]:
        """Open transactions: they hold back readers."""
        return [
            known.written.identity
            for known in self.ids.values()
            if known.state is _S.ONGOING and known.written is not None
        ]

    def describe(self, transactional_id: str) -> TransactionDescription | None:
        """DescribeTransactions."""
        known = self.ids.get(transactional_id)
        if known is None:
            return None
        return TransactionDescription(
            transactional_id=transactional_id,
            state=known.state,
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
            timeout_s=known.timeout_s,
        )

    def end(self, transaction: TransactionIdentity, *, commit: bool, version: int) -> str:
        """EndTxn; the name of the error, "" when accepted."""
        self.requests.append((transaction, commit, version))
        known = self.ids.get(transaction.transactional_id)
        if known is None or known.producer_id != transaction.producer_id:
            return "InvalidProducerIdMappingError"
        if known.wedged:
            return "ConcurrentTransactionsError"
        if version >= 5 and self.level == 0:
            known.wedged = known.state is _S.ONGOING
            return "UnsupportedVersionError"
        if version >= 5 and known.raised_by_end and transaction.producer_epoch == known.epoch - 1:
            return self._repeated(known, commit=commit)
        if transaction.producer_epoch != known.epoch:
            return "ProducerFencedError"
        if known.state is not _S.ONGOING and version >= 5:
            return "InvalidTxnStateError" if commit else self._abort_nothing(known)
        if known.state is not _S.ONGOING:
            return self._repeated(known, commit=commit)
        if version >= 5:
            known.epoch += 1
            known.raised_by_end = True
        self._prepare(transaction.transactional_id, commit=commit)
        return ""

    def _abort_nothing(self, known: _Id) -> str:
        """Version 5 begins an abort of nothing after an end that has left the epoch as it was, by
        which a client that does not know where it stands gets another epoch."""
        if known.state in _OPEN:
            return "InvalidTxnStateError"
        known.epoch += 1
        known.raised_by_end = True
        known.state, known.records, known.written = _S.COMPLETE_ABORT, 0, None
        return ""

    @staticmethod
    def _repeated(known: _Id, *, commit: bool) -> str:
        prepared = _S.PREPARE_COMMIT if commit else _S.PREPARE_ABORT
        complete = _S.COMPLETE_COMMIT if commit else _S.COMPLETE_ABORT
        if known.state is prepared:
            return "ConcurrentTransactionsError"
        return "" if known.state is complete else "InvalidTxnStateError"

    def _prepare(self, transactional_id: str, *, commit: bool) -> None:
        known = self.ids[transactional_id]
        known.state = _S.PREPARE_COMMIT if commit else _S.PREPARE_ABORT
        if known.written is not None:
            known.written.state = known.state
            self.on_end(known.written)
        if not self.hold_markers:
            self._complete(known)

    def _own(self, transaction: TransactionIdentity) -> _Id:
        known = self.ids.get(transaction.transactional_id)
        if known is None or known.producer_id != transaction.producer_id:
            raise Fenced("INVALID_PRODUCER_ID_MAPPING")
        if self._identity(transaction.transactional_id) != transaction or known.wedged:
            raise Fenced("PRODUCER_FENCED")
        return known

    def _identity(self, transactional_id: str) -> TransactionIdentity:
        known = self.ids[transactional_id]
        return TransactionIdentity(
            transactional_id=transactional_id,
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
        )


@dataclass(slots=True)
class FakeWire:
    """`sluice.connectors.kafka.sink.committer.transaction_requests.Wire` over a `FakeBroker`.

    Attributes:
        faults: taken one by one by the EndTxn requests to come.
        unreachable: nothing answers.
        absent: brokers, by name, that ListTransactions cannot ask; their ids are ``absent_ids``.
        end_version: forces a version, as a client would that does not know rule `endtxn-version`.
    """

    broker: FakeBroker
    faults: list[Fault] = field(default_factory=list)
    unreachable: bool = False
    absent: tuple[str, ...] = ()
    absent_ids: frozenset[str] = frozenset()
    end_version: int | None = None
    topics: tuple[str, ...] = ()
    topic_id: str | None = "id"
    max_transaction_timeout_s: float | None = 900.0

    def describe(
        self, transactional_ids: Sequence[str], *, timeout_s: float
    ) -> Mapping[str, TransactionDescription | None]:
        """See `Wire.describe`."""
        if self.unreachable:
            return {}
        return {i: self.broker.describe(i) for i in transactional_ids}

    def end(
        self, transactions: Sequence[TransactionIdentity], *, commit: bool, timeout_s: float
    ) -> list[EndReport]:
        """See `Wire.end`."""
        return [self._end(transaction, commit=commit) for transaction in transactions]

    def _end(self, transaction: TransactionIdentity, *, commit: bool) -> EndReport:
        if self.unreachable:
            return EndReport(outcome=EndOutcome.REFUSED, error="no coordinator was reachable")
        fault = self.next_fault()
        if fault is Fault.LOSE_REQUEST:
            return EndReport(outcome=EndOutcome.UNKNOWN, error="no answer")
        if fault is Fault.CONCURRENT:
            return EndReport(outcome=EndOutcome.REFUSED, error="ConcurrentTransactionsError")
        request = self.request(transaction, commit=commit)
        if fault in (Fault.LATE, Fault.REPEATED):
            self.broker.late.append(request)
            if fault is Fault.LATE:
                return EndReport(outcome=EndOutcome.UNKNOWN, error="no answer")
        error = request()
        if fault is Fault.LOSE_ANSWER:
            return EndReport(outcome=EndOutcome.UNKNOWN, error="no answer")
        return EndReport(outcome=EndOutcome.REFUSED if error else EndOutcome.DONE, error=error)

    def request(self, transaction: TransactionIdentity, *, commit: bool) -> Callable[[], str]:
        """An EndTxn, before it arrives."""
        version = self.end_version or (5 if self.broker.level >= 1 else 4)
        return partial(self.broker.end, transaction, commit=commit, version=version)

    def next_fault(self) -> Fault | None:
        """What happens to the EndTxn that is sent now."""
        return self.faults.pop(0) if self.faults else None

    def list_transactions(
        self, prefix: str, *, timeout_s: float, states: Sequence[TransactionState] = ()
    ) -> Listing:
        """See `Wire.list_transactions`."""
        if self.unreachable:
            return Listing(transactions=(), missing=("the cluster",))
        rows = tuple(
            ListedTransaction(
                transactional_id=name, producer_id=known.producer_id, state=known.state
            )
            for name, known in self.broker.ids.items()
            if name.startswith(prefix)
            and name not in self.absent_ids
            and (known.state in states or not states)
        )
        return Listing(transactions=rows, missing=self.absent)

    def cluster(self, *, timeout_s: float) -> Cluster:
        """See `Wire.cluster`."""
        if self.unreachable:
            raise UnreachableError("the fake cluster cannot be reached", {}, "Make it reachable.")
        return Cluster(
            cluster_id="fake",
            transaction_version=self.broker.level,
            max_transaction_timeout_s=self.max_transaction_timeout_s,
        )

    def missing_topics(self, topics: Sequence[str], *, timeout_s: float) -> tuple[str, ...]:
        """See `Wire.missing_topics`."""
        return tuple(topic for topic in topics if topic not in self.topics)

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float) -> Mapping[str, str | None]:
        """See `Wire.topic_ids`."""
        if self.unreachable:
            raise UnreachableError("the fake cluster cannot be reached", {}, "Make it reachable.")
        return {topic: self.topic_id for topic in topics if topic in self.topics}

    def close(self) -> None:
        """See `Wire.close`."""
