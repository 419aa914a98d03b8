"""The driver's side of a Kafka sink without transactions: it checks, and has nothing to commit."""

from collections.abc import Mapping, Sequence

from connectors.kafka.security import KafkaConnection
from connectors.kafka.transaction_wire import TransactionWire
from runtime.contracts import (
    CommitOutcome,
    CommitReport,
    Committer,
    SinkContext,
    SweepReport,
    SweepView,
)
from runtime.errors import SourceChangedError
from runtime.model import StateEntry

__all__ = ["PlainSinkCoordinator"]

_UNKNOWN = CommitReport(
    outcome=CommitOutcome.UNKNOWN, detail="this sink writes without transactions"
)


class _NothingToCommit:
    """A committable can only come from a time when the sink was exactly-once: hands off."""

    def commit(
        self, committables: Sequence[StateEntry], *, timeout_s: float, after_crash: bool
    ) -> list[CommitReport]:
        """See `Committer.commit`."""
        del timeout_s, after_crash
        return [_UNKNOWN] * len(committables)

    def abort(self, committables: Sequence[StateEntry], *, timeout_s: float) -> list[CommitReport]:
        """See `Committer.abort`."""
        del timeout_s
        return [_UNKNOWN] * len(committables)

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
        self, connection: KafkaConnection, *, topics: tuple[str, ...], guarantee: str
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._guarantee = guarantee
        self.committer = _NothingToCommit()

    def check(self, *, timeout_s: float) -> Mapping[str, str]:
        """See `SinkCoordinator.check`."""
        self._connection.refuse_owned(exactly_once=False)
        wire = TransactionWire(self._connection)
        try:
            cluster = wire.cluster(timeout_s=timeout_s)
            missing = wire.missing_topics(self._topics, timeout_s=timeout_s)
        finally:
            wire.close()
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
