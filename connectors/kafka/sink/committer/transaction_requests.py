"""The requests of the committer and the sweep to a Kafka cluster, as values and one protocol.

`wire_client` sends them to a real cluster; tests use a fake one, and one contract suite runs
against both.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.connectors.kafka.sink.handles import TransactionIdentity

__all__ = [
    "Cluster",
    "EndOutcome",
    "EndReport",
    "ListedTransaction",
    "Listing",
    "TransactionDescription",
    "TransactionState",
    "Wire",
]


class TransactionState(enum.Enum):
    """A transaction's state at its coordinator, by the names of Kafka's protocol."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    DEAD = "Dead"
    UNKNOWN = "Unknown"  # a name that this version does not know


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """An id's description from DescribeTransactions; perhaps of a later attempt
    (`handle-from-producer`).

    Attributes:
        transactional_id: of the request.
        state: see `TransactionState`.
        producer_id, producer_epoch: of the described attempt.
        timeout_s: the transaction's own timeout.
        started_at_ms: broker's wall clock, None without an open transaction; for people.
        partitions: (topic, partition) of its records.
    """

    transactional_id: str
    state: TransactionState
    producer_id: int
    producer_epoch: int
    timeout_s: float = 0.0
    started_at_ms: int | None = None
    partitions: tuple[tuple[str, int], ...] = ()

    @property
    def identity(self) -> TransactionIdentity:
        """Of the described attempt."""
        return TransactionIdentity(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
        )


class EndOutcome(enum.Enum):
    """The three answers of a remote write, for EndTxn."""

    DONE = "done"  # accepted: this request, or an equal earlier one, has happened
    REFUSED = "refused"  # certainly without effect; ``error`` says why
    UNKNOWN = "unknown"  # sent; no answer, or an inconclusive one


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReport:
    """The answer to one EndTxn; ``error`` is Kafka's name of it, or "" if done."""

    outcome: EndOutcome
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    """A row of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: TransactionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All transactions that were found (`wait-for-all-brokers`).

    Attributes:
        transactions: of every broker that answered.
        missing: the parts without an answer: ``broker 3``, ``__transaction_state-17``; empty =
            complete.
    """

    transactions: tuple[ListedTransaction, ...]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Facts about a cluster.

    Attributes:
        cluster_id: Kafka's own.
        transaction_version: finalised level of ``transaction.version``; 0 if absent
            (`endtxn-version`).
        max_transaction_timeout_s: the least ``transaction.max.timeout.ms`` of its brokers
            (`transaction-timeout`), None if it cannot be read.
        missing_requests: names of `broker_requests.REQUESTS` that a broker lacks.
    """

    cluster_id: str
    transaction_version: int
    max_transaction_timeout_s: float | None
    missing_requests: tuple[str, ...] = ()


class Wire(Protocol):
    """Transaction requests to a cluster. Driver or command line; thread-safe.

    Every call returns within ``timeout_s`` (and a little). An unreachable coordinator is retried
    until then.
    """

    def describe(
        self, transactional_ids: Sequence[str], *, timeout_s: float
    ) -> Mapping[str, TransactionDescription | None]:
        """State of each id; None = unknown to its coordinator; absent = no answer.

        Raises: AuthenticationError.
        """
        ...

    def end(
        self, transactions: Sequence[TransactionIdentity], *, commit: bool, timeout_s: float
    ) -> list[EndReport]:
        """EndTxn for each, once; report i belongs to transaction i. Never raises."""
        ...

    def list_transactions(
        self, prefix: str, *, timeout_s: float, states: Sequence[TransactionState] = ()
    ) -> Listing:
        """Transactions whose id starts with ``prefix``, in one of ``states``, or in any if none is
        given; raises AuthenticationError."""
        ...

    def cluster(self, *, timeout_s: float) -> Cluster:
        """Facts about the cluster; UnreachableError, AuthenticationError."""
        ...

    def missing_topics(self, topics: Sequence[str], *, timeout_s: float) -> tuple[str, ...]:
        """Those of ``topics`` that do not exist; UnreachableError, AuthenticationError."""
        ...

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float) -> Mapping[str, str | None]:
        """The UUID, as text, of each topic that exists; None if the brokers give none;
        UnreachableError, AuthenticationError."""
        ...

    def close(self) -> None:
        """Release connections; idempotent."""
        ...
