"""Transactions whose requests come late: who sends them is after a proxy, all else beside it."""

import contextlib
import threading
from collections.abc import Callable

from confluent_kafka import KafkaException

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.sink.committer.transaction_requests import (
    TransactionDescription,
    TransactionState,
)
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.runtime.contracts import CommitOutcome
from tests.kit.kafka.proxied_kafka import ProxiedKafka
from tests.kit.kafka.transaction_harness import RealAttempt, RealHarness, committable
from tests.kit.waiting import PATIENCE_S

NOT_COORDINATOR = 16
CONCURRENT_TRANSACTIONS = 51
FENCED = frozenset({47, 90})
"""INVALID_PRODUCER_EPOCH and PRODUCER_FENCED: the broker has changed nothing."""


class LateBed:
    """A broker, a harness beside its proxy, and clients after it. Closed by the fixture."""

    def __init__(self, behind: ProxiedKafka) -> None:
        self.behind = behind
        self.proxy = behind.proxies[1]
        self.harness = RealHarness(behind, behind.level)
        self.committer = KafkaCommitter(self.harness.wire)
        self._far = TransactionWire(KafkaConnection(bootstrap_servers=behind.proxied))
        self.far_committer = KafkaCommitter(self._far)
        self._writers: list[RealAttempt] = []
        self._threads: list[threading.Thread] = []

    def far_writer(self, name: str | None = None) -> RealAttempt:
        """A writer whose every request goes by the proxy."""
        made = RealAttempt(
            self.behind.proxied, self.harness.topic, name or self.harness.name(), 600.0, {}
        )
        self._writers.append(made)
        return made

    def at_once(self, act: Callable[[], object]) -> None:
        """Run it in a thread, as another process would."""
        thread = threading.Thread(target=act)
        thread.start()
        self._threads.append(thread)

    def describe(self, transactional_id: str) -> TransactionDescription:
        """What the coordinator says."""
        found = self.harness.wire.describe([transactional_id], timeout_s=PATIENCE_S)
        one = found[transactional_id]
        assert one is not None
        return one

    def finish(self, transaction: TransactionIdentity) -> None:
        """What the coordinator of a recovery does with what was decided: by the verdict."""
        entry = committable(transaction)
        (report,) = self.committer.commit([entry], timeout_s=PATIENCE_S, after_crash=True)
        assert report.outcome is CommitOutcome.COMMITTED
        assert self.committer.await_visible(timeout_s=PATIENCE_S)

    def discard(self, transaction: TransactionIdentity) -> None:
        """What the sweep does with what no decision names."""
        (report,) = self.committer.abort([committable(transaction)], timeout_s=PATIENCE_S)
        assert report.outcome is CommitOutcome.ABORTED
        self.harness.await_state(transaction, TransactionState.COMPLETE_ABORT)

    def join(self) -> None:
        """Wait for the threads."""
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def close(self) -> None:
        """End clients, then threads."""
        self._far.close()
        self.join()
        self.harness.close()
        for writer in self._writers:
            writer.let_go()

    def commit_natively(self, writer: RealAttempt) -> None:
        """What a task does; reported a refusal, or of nothing at all, it knows nothing."""
        with contextlib.suppress(KafkaException):
            writer.end_natively(commit=True)

    def expect_untouched(self, later: RealAttempt, *, records: int, before: int) -> None:
        """A transaction of ``records`` is open as it was; once decided it is visible, once."""
        described = self.describe(later.transactional_id)
        assert described.state is TransactionState.ONGOING
        assert described.identity == later.identity
        assert described.partitions == ((self.harness.topic, 0),)
        later.produce(1)
        self.finish(later.identity)
        assert self.harness.visible() == before + records + 1
