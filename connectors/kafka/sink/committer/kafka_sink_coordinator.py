"""The driver's side of a Kafka sink: start check, lease, sweep and committer.

The driver's side of a Kafka sink without transactions: it checks, and commits only transactions of
earlier runs that were decided.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from sluice.connectors.kafka.client.broker_requests import EXACTLY_ONCE, IDEMPOTENCE, WRITING
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.output_topics import OutputTopics
from sluice.connectors.kafka.sink.committer.transaction_lease import KafkaLeaseStore
from sluice.connectors.kafka.sink.committer.transaction_requests import Cluster, Wire
from sluice.connectors.kafka.sink.committer.transaction_sweep import Sweeper, SweepResult
from sluice.connectors.kafka.sink.committer.wire_answers import STATE_TOPIC
from sluice.runtime.contracts import (
    Clock,
    CommitReport,
    Committer,
    SinkContext,
    SinkCoordinator,
    SweepReport,
    SweepView,
)
from sluice.runtime.errors import ConfigError, FencedError, SourceChangedError, StreamError
from sluice.runtime.model.checkpoint_record import StateEntry
from sluice.runtime.ownership.lease import Lease, LeasedOutput, LeaseStore

__all__ = [
    "RESTART_BUDGET_S",
    "KafkaSinkCoordinator",
    "OpenLeaseStore",
    "PlainSinkCoordinator",
    "check_transaction_timeout",
]

log = logging.getLogger(__name__)

RESTART_BUDGET_S = 15.0
"""A decided transaction must outlive the restart that commits it."""

_OLDEST_KAFKA = "3.0"  # with DescribeTransactions, ListTransactions and FindCoordinator v4
_OWNER_CALL_S = 10.0
_USUAL_MAXIMUM_S = 900.0  # Kafka's default, which producers use if the brokers' own cannot be read
_FIRST_SWEEP_S = 5.0
_REPEATED_SWEEP_S = 2.0
_TOPICS_S = 2.0
_MOST_ORPHANS = 10_000  # as many as a coordinator remembers


class OpenLeaseStore(Protocol):
    """The lease of a prefix, on a cluster."""

    def __call__(
        self, connection: KafkaConnection, prefix: str, *, timeout_s: float
    ) -> LeaseStore: ...


class _Sweep(Protocol):
    def __call__(
        self, view: SweepView, *, operator_id: str | None, timeout_s: float
    ) -> SweepResult: ...


class KafkaSinkCoordinator(SinkCoordinator):
    """Implements `sluice.runtime.contracts.SinkCoordinator` for transactional Kafka sinks.

    Driver. The committer, the sweep and the lease have a client each, so that a sweep that waits
    for a dead broker delays neither a commit nor a renewal.
    """

    committer: Committer

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        transactional_id_prefix: str,
        transaction_timeout_s: float | None,
        topics: tuple[str, ...],
        restart_budget_s: float = RESTART_BUDGET_S,
        connect: Callable[[KafkaConnection], Wire] = TransactionWire,
        open_lease_store: OpenLeaseStore = KafkaLeaseStore,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._connection = connection
        self._prefix = transactional_id_prefix
        self._timeout_s = transaction_timeout_s
        self._restart_budget_s = restart_budget_s
        self._wire = connect(connection)
        self._sweep_wire = connect(connection)
        self._outputs = OutputTopics(topics)
        self._sweeper = Sweeper(
            self._sweep_wire, prefix=transactional_id_prefix, clock=clock, sleep=sleep
        )
        self._open_lease_store = open_lease_store
        self._clock = clock
        self._sleep = sleep
        self._operator_id: str | None = None
        self._lease: Lease | None = None
        self._has_swept = False
        self._unfinished: SweepView | None = None
        self._sweeping = threading.Lock()
        self.committer = self._committer_of(f"{transactional_id_prefix}/")

    def _committer_of(self, ids: str) -> Committer:
        return KafkaCommitter(self._wire, ids=ids, clock=self._clock, sleep=self._sleep)

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """See `SinkCoordinator.check`. Facts: cluster_id, transaction_version, timeout."""
        self._connection.refuse_owned(exactly_once=True)
        cluster = self._wire.cluster(timeout_s=timeout_s)
        lacking = [name for name in cluster.missing_requests if name in EXACTLY_ONCE]
        if lacking:
            raise ConfigError(
                "the brokers lack requests that an exactly-once sink sends",
                {
                    "missing": ", ".join(lacking),
                    "servers": self._connection.bootstrap_servers,
                },
                f"Use Kafka {_OLDEST_KAFKA} or later. {_works_without(lacking)}",
            )
        missing = self._outputs.find_missing(self._wire, timeout_s=timeout_s)
        if missing:
            raise SourceChangedError(
                "an output topic does not exist",
                {"topics": ",".join(missing), "servers": self._connection.bootstrap_servers},
                "Create it with its partitions, then start again.",
            )
        chosen_s = check_transaction_timeout(
            self._timeout_s, cluster, restart_budget_s=self._restart_budget_s
        )
        # Requests with an unused id check the permissions that a recovery and a sweep need.
        self._wire.describe([f"{self._prefix}/check"], timeout_s=timeout_s)
        self._wire.missing_topics([STATE_TOPIC], timeout_s=timeout_s)
        return {
            "cluster_id": cluster.cluster_id,
            "transaction_version": str(cluster.transaction_version),
            "transaction_timeout_s": f"{chosen_s or _USUAL_MAXIMUM_S:g}",
        }

    def claim(self, context: SinkContext, *, timeout_s: float) -> None:
        """See `SinkCoordinator.claim`. Watching another job's lease takes 15 s."""
        self._operator_id = context.operator_id
        # A prefix may hold slashes: another job's may start with all of ours.
        self.committer = self._committer_of(f"{self._prefix}/{context.job_uid}/")
        store = self._open_lease_store(
            self._connection, self._prefix, timeout_s=min(timeout_s, _OWNER_CALL_S)
        )
        output = LeasedOutput(
            kind="transactional id prefix",
            name=self._prefix,
            remedy="Stop the other job, or give this one its own transactionalIdPrefix.",
        )
        lease = Lease(store, context, output, clock=self._clock, sleep=self._sleep)
        try:
            lease.acquire()
        except StreamError:
            store.close()
            raise
        self._lease = lease

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        """See `SinkCoordinator.sweep`; the first one waits a little for every broker
        (`wait-for-all-brokers`)."""
        with self._sweeping:
            view = self._with_unfinished(view)
            if self._has_swept:
                return self._swept(self._sweeper.sweep, view, timeout_s)
            self._has_swept = True
            return self._swept(self._sweeper.sweep_all, view, min(timeout_s, _FIRST_SWEEP_S))

    def renew(self) -> None:
        """See `SinkCoordinator.renew`; call it every `RENEWAL_INTERVAL_S`.

        An unreachable cluster does not mean a lost lease: the next call tries again. Repeats a
        sweep that missed a broker, so that its readers are unblocked soon after it is back. Warns
        of recreated output topics.
        """
        lease = self._lease
        if lease is not None:
            try:
                lease.renew()
            except FencedError:
                raise
            except StreamError as err:
                log.warning("lease was not renewed: prefix=%s error=%s", self._prefix, err)
            else:
                self._outputs.report_recreated(self._sweep_wire, timeout_s=_TOPICS_S)
        if self._sweeping.acquire(blocking=False):  # otherwise one is running, and repeats it
            try:
                if self._unfinished is not None:
                    self._swept(self._sweeper.sweep, self._unfinished, _REPEATED_SWEEP_S)
            finally:
                self._sweeping.release()

    def _swept(self, sweep: _Sweep, view: SweepView, timeout_s: float) -> SweepReport:
        result = sweep(view, operator_id=self._operator_id, timeout_s=timeout_s)
        # An old view may be swept again: an orphan stays one, and protected or unknown work is left
        # alone.
        is_complete = not (result.missing or result.remaining)
        self._unfinished = None if is_complete else view
        return SweepReport(aborted=result.aborted, is_complete=is_complete)

    def _with_unfinished(self, view: SweepView) -> SweepView:
        """``view``, and the orphans of a sweep that missed a broker.

        Most of them were committed long ago; brokers end forgotten ones by timeout.
        """
        if self._unfinished is None:
            return view
        named = set(view.orphans)
        older = [each for each in self._unfinished.orphans if each not in named]
        return replace(view, orphans=(*older, *view.orphans)[-_MOST_ORPHANS:])

    def close(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                lease.release()
            except StreamError as err:
                log.info("lease was not released: prefix=%s error=%s", self._prefix, err)
        self._wire.close()
        self._sweep_wire.close()


def check_transaction_timeout(
    requested_s: float | None, cluster: Cluster, *, restart_budget_s: float = RESTART_BUDGET_S
) -> float | None:
    """The timeout of transactions: as requested, else the broker's maximum (`transaction-timeout`).

    None if none was requested and the broker's maximum cannot be read.

    Raises:
        ConfigError: beyond the broker's maximum, or too short to outlive a restart.
    """
    limit_s = cluster.max_transaction_timeout_s
    chosen_s = requested_s if requested_s is not None else limit_s
    if chosen_s is None:
        log.warning(
            "the broker's transaction.max.timeout.ms cannot be read, so transactions get Kafka's "
            "default for it, 15 minutes; grant DESCRIBE_CONFIGS or set transactionTimeout"
        )
        return None
    if limit_s is not None and chosen_s > limit_s:
        raise ConfigError(
            "the transaction timeout is beyond the broker's maximum",
            {"transaction_timeout_s": chosen_s, "transaction.max.timeout.ms": int(limit_s * 1000)},
            "Lower it, or raise transaction.max.timeout.ms on the brokers.",
        )
    if chosen_s < restart_budget_s:
        raise ConfigError(
            "the transaction timeout is too short to outlive a restart",
            {"transaction_timeout_s": chosen_s, "restart_budget_s": restart_budget_s},
            "Raise it: a decided transaction that times out before it is committed is lost.",
        )
    return chosen_s


class _LeftoverCommitter(Committer):
    """Implements `Committer` for work in checkpoints of an earlier, exactly-once sink: its run was
    killed between the decision and the commits. Connects for each call that has work, because in a
    run of this sink usually none has.
    """

    def __init__(self, connect: Callable[[], Wire]) -> None:
        self._connect = connect

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        if not committables:
            return []
        with contextlib.closing(self._connect()) as wire:
            return KafkaCommitter(wire).commit(
                committables, timeout_s=timeout_s, after_crash=after_crash
            )

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        if not committables:
            return []
        with contextlib.closing(self._connect()) as wire:
            return KafkaCommitter(wire).abort(committables, timeout_s=timeout_s)

    def await_visible(self, *, timeout_s: float) -> bool:
        """See `Committer.await_visible`: records are visible as soon as they are written."""
        del timeout_s
        return True


def _works_without(missing: Sequence[str]) -> str:
    """A sentence about what these brokers can do."""
    if any(name in WRITING for name in missing):
        return "Without it, these brokers serve sources only."
    if any(name in IDEMPOTENCE for name in missing):
        return "Without it, guarantee=at-least-once works with kafka.enable.idempotence=false."
    return "Without it, guarantee=at-least-once and sources work."


class PlainSinkCoordinator(SinkCoordinator):
    """Implements `SinkCoordinator` for at-least-once and unguaranteed sinks.

    Driver. No lease: without transactional ids two jobs cannot disturb each other.
    """

    committer: Committer

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        topics: tuple[str, ...],
        guarantee: str,
        connect: Callable[[KafkaConnection], Wire] = TransactionWire,
    ) -> None:
        self._connection = connection
        self._connect = partial(connect, connection)
        self._topics = topics
        self._guarantee = guarantee
        self.committer = _LeftoverCommitter(self._connect)

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        self._connection.refuse_owned(exactly_once=False)
        with contextlib.closing(self._connect()) as wire:
            cluster = wire.cluster(timeout_s=timeout_s)
            missing = wire.missing_topics(self._topics, timeout_s=timeout_s)
        self._require_requests(cluster.missing_requests)
        if missing:
            raise SourceChangedError(
                "an output topic does not exist",
                {"topics": ",".join(missing), "servers": self._connection.bootstrap_servers},
                "Create it with its partitions, then start again.",
            )
        return {"cluster_id": cluster.cluster_id, "guarantee": self._guarantee}

    def _require_requests(self, missing: Sequence[str]) -> None:
        is_idempotent = self._guarantee == "at-least-once" and self._connection.is_idempotent
        lacking = [n for n in missing if n in (*WRITING, *(IDEMPOTENCE if is_idempotent else ()))]
        if lacking:
            raise ConfigError(
                "the brokers lack requests that this sink sends",
                {
                    "missing": ", ".join(lacking),
                    "guarantee": self._guarantee,
                    "servers": self._connection.bootstrap_servers,
                },
                f"Use other brokers. {_works_without(lacking)}",
            )

    def claim(self, context: SinkContext, *, timeout_s: float) -> None:
        """Nothing to own."""

    def sweep(self, view: SweepView, *, timeout_s: float) -> SweepReport:
        """Nothing to abort."""
        del view, timeout_s
        return SweepReport(aborted=0)

    def renew(self) -> None:
        """Nothing to renew."""

    def close(self) -> None:
        """Nothing to release."""
