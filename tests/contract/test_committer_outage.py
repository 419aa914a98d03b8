"""Commits and sweeps over a broker that dies, hangs and comes back."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.committer.kafka_sink_coordinator import KafkaSinkCoordinator
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.contracts import CommitOutcome, CommitReport, SweepView
from sluice.runtime.model.checkpoint_record import StateEntry
from tests.kit.kafka.transaction_harness import JOB_UID, RealHarness, committable
from tests.kit.waiting import join, wait_for

pytestmark = pytest.mark.integration


@pytest.fixture
def broker() -> Iterator[EmbeddedKafka]:
    """A broker of this test's own, which it may kill."""
    with EmbeddedKafka() as own:
        yield own


@pytest.fixture
def harness(broker: EmbeddedKafka) -> Iterator[RealHarness]:
    made = RealHarness(broker, 2)
    yield made
    made.close()


class _Committing:
    """A commit in a thread of its own."""

    def __init__(
        self, committer: KafkaCommitter, entries: Sequence[StateEntry], *, timeout_s: float
    ) -> None:
        self.reports: list[CommitReport] = []
        self._thread = threading.Thread(
            target=lambda: self.reports.extend(
                committer.commit(entries, timeout_s=timeout_s, after_crash=True)
            )
        )
        self._thread.start()

    def outcomes(self, timeout_s: float) -> set[CommitOutcome]:
        join(self._thread, timeout_s=timeout_s)
        return {report.outcome for report in self.reports}


@pytest.mark.parametrize(
    ("fail", "mend"),
    [
        pytest.param(EmbeddedKafka.kill, EmbeddedKafka.restart, id="killed"),
        pytest.param(
            *(EmbeddedKafka.pause, EmbeddedKafka.resume), id="hung", marks=pytest.mark.extended
        ),
    ],
)
def test_a_commit_outlasts_a_broker_that_dies_or_hangs(
    broker: EmbeddedKafka,
    harness: RealHarness,
    fail: Callable[[EmbeddedKafka], object],
    mend: Callable[[EmbeddedKafka], object],
) -> None:
    """Pending while it is away, committed once it is back, by the same committer and client."""
    attempts = [harness.open() for _ in range(3)]
    for attempt in attempts:
        attempt.produce(2)
    entries = [committable(attempt.identity) for attempt in attempts]
    committer = KafkaCommitter(harness.wire)
    warm = harness.wire.describe([attempts[0].identity.transactional_id], timeout_s=120)
    assert warm

    fail(broker)
    started = time.monotonic()
    reports = committer.commit(entries, timeout_s=2, after_crash=True)
    assert {report.outcome for report in reports} == {CommitOutcome.PENDING}
    assert time.monotonic() - started < 300
    committing = _Committing(committer, entries, timeout_s=600)
    mend(broker)

    assert committing.outcomes(600) == {CommitOutcome.COMMITTED}
    assert harness.visible() == 6


@pytest.mark.extended
def test_a_commit_truncated_in_the_middle_is_finished_after_the_brokers_restart(
    broker: EmbeddedKafka, harness: RealHarness
) -> None:
    """Answers are lost while the broker dies: whatever had happened, all is visible once."""
    attempts = [harness.open() for _ in range(20)]
    for attempt in attempts:
        attempt.produce(1)
    entries = [committable(attempt.identity) for attempt in attempts]
    committing = _Committing(KafkaCommitter(harness.wire), entries, timeout_s=600)
    broker.kill()
    broker.restart()

    assert committing.outcomes(600) == {CommitOutcome.COMMITTED}
    assert harness.visible() == 20


@pytest.mark.extended
def test_wait_for_all_brokers_an_orphan_is_swept_when_its_broker_is_back(
    broker: EmbeddedKafka, harness: RealHarness
) -> None:
    """Rule `wait-for-all-brokers`: a sweep during the outage is no error; a renewal after it frees
    the readers."""
    orphan = harness.open(harness.name(attempt_id=1))
    orphan.produce(1)
    identity = orphan.identity
    coordinator = KafkaSinkCoordinator(
        harness.connection,
        transactional_id_prefix=harness.prefix,
        transaction_timeout_s=None,
        topics=(),
    )
    view = SweepView(job_uid=JOB_UID, attempt_ids={"main": 2}, protected=(), orphans=())
    broker.kill()

    assert coordinator.sweep(view, timeout_s=1).aborted == 0
    broker.restart()

    def swept() -> bool:
        coordinator.renew()
        found = harness.wire.describe([identity.transactional_id], timeout_s=300)
        one = found.get(identity.transactional_id)
        return one is not None and one.state is TransactionState.COMPLETE_ABORT

    wait_for(swept, what="the orphan is aborted")
    coordinator.close()
    assert harness.visible() == 0
