"""The driver's side of a Kafka sink without transactions: it checks, and has nothing to commit, but
for what it has decided when it had some."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from connectors.kafka.committer import KafkaCommitter
from connectors.kafka.security import KafkaConnection
from connectors.kafka.transaction_wire import TransactionWire
from connectors.kafka.wire import Wire
from runtime.contracts import (
    CommitReport,
    Committer,
    SinkContext,
    SweepReport,
    SweepView,
)
from runtime.errors import SourceChangedError
from runtime.model import StateEntry

__all__ = ["PlainSinkCoordinator"]


class _LeftoverCommitter:
    """Implements `runtime.contracts.Committer` for what a checkpoint names from a time when the
    sink was exactly-once: its run was killed between the decision and the commits. Connected for
    each call that has any, for in a run of this sink none has.
    """

    def __init__(self, connect: Callable[[], Wire]) -> None:
        self._connect = connect

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        """See `Committer.commit`."""
        if not committables:
            return []
        with contextlib.closing(self._connect()) as wire:
            return KafkaCommitter(wire).commit(
                committables, timeout_s=timeout_s, after_crash=after_crash
            )

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        """See `Committer.abort`."""
        if not committables:
            return []
        with contextlib.closing(self._connect()) as wire:
            return KafkaCommitter(wire).abort(committables, timeout_s=timeout_s)

    def await_visible(self, *, timeout_s: float) -> bool:
        """See `Committer.await_visible`: records are visible as soon as they are written."""
        del timeout_s
        return True


class PlainSinkCoordinator:
    """Implements `runtime.contracts.SinkCoordinator` for at-least-once and unguaranteed sinks.

    Driver. No owner record: without transactional ids there is nothing that two jobs could take
    from each other.
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
        """See `SinkCoordinator.check`."""
        self._connection.refuse_owned(exactly_once=False)
        with contextlib.closing(self._connect()) as wire:
            cluster = wire.cluster(timeout_s=timeout_s)
            missing = wire.missing_topics(self._topics, timeout_s=timeout_s)
        if missing:
            raise SourceChangedError(
                "an output topic does not exist",
                {"topics": ",".join(missing), "servers": self._connection.bootstrap_servers},
                "Create it with the partitions that it shall have, then start again.",
            )
        return {"cluster_id": cluster.cluster_id, "guarantee": self._guarantee}

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
