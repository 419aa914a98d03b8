"""The sweep and the lease on a real broker: readers are freed, nobody else is touched."""

import dataclasses
from collections.abc import Iterator

import pytest

from sluice.connectors.kafka.sink.committer.kafka_sink_coordinator import KafkaSinkCoordinator
from sluice.connectors.kafka.sink.committer.transaction_lease import KafkaLeaseStore
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.runtime.contracts import RegisteredAttempt, SinkContext, SweepView
from sluice.runtime.errors import ConfigError, FencedError, SourceChangedError
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.ownership.lease import LeaseRecord
from tests.kit.kafka.kafka_fixture import BrokerByLevel
from tests.kit.kafka.kafka_records import create_topic, delete_topic, unique
from tests.kit.kafka.transaction_harness import JOB_UID, RealHarness, committable

pytestmark = pytest.mark.integration

CONTEXT = SinkContext(
    job_uid=JOB_UID,
    job_name="job",
    operator_id="sink-1",
    checkpoint_uri="file:/checkpoints/a",
    leader_session_id="session-1",
)


@pytest.fixture(params=[0, 1, 2], ids=lambda level: f"transaction.version={level}")
def real(request: pytest.FixtureRequest, kafka_by_level: BrokerByLevel) -> Iterator[RealHarness]:
    harness = RealHarness(kafka_by_level(request.param), request.param)
    yield harness
    harness.close()


@pytest.fixture
def modern(kafka_by_level: BrokerByLevel) -> Iterator[RealHarness]:
    harness = RealHarness(kafka_by_level(2), 2)
    yield harness
    harness.close()


def _coordinator(
    harness: RealHarness,
    *,
    transaction_timeout_s: float | None = None,
    topics: tuple[str, ...] | None = None,
    prefix: str | None = None,
) -> KafkaSinkCoordinator:
    return KafkaSinkCoordinator(
        harness.connection,
        transactional_id_prefix=prefix or harness.prefix,
        transaction_timeout_s=transaction_timeout_s,
        topics=(harness.topic,) if topics is None else topics,
    )


def test_ids_never_reused_the_sweep_frees_readers_and_spares_decided_and_living_work(
    real: RealHarness,
) -> None:
    """Rule `ids-never-reused`: old attempt, declared orphan: aborted. Decided, undecided,
    another job: not."""
    old, decided, declared, undecided = (
        real.open(real.name(attempt_id=attempt_id)) for attempt_id in (1, 1, 2, 2)
    )
    stranger = real.open(real.name(attempt_id=1).replace(JOB_UID, "another-job"))
    for attempt in (old, decided, declared, undecided, stranger):
        attempt.produce(1)
    view = SweepView(
        job_uid=JOB_UID,
        attempt_ids={"main": 2},
        protected=(committable(decided.identity, records=1),),
        orphans=(
            RegisteredAttempt(
                batch=BatchKey(region="main", attempt_id=2, batch_id=4),
                operator_id="sink-1",
                resource=declared.identity.resource,
            ),
        ),
    )
    coordinator = _coordinator(real)

    assert coordinator.sweep(view, timeout_s=60).aborted == 2
    for swept in (old, declared):
        real.await_state(swept.identity, TransactionState.COMPLETE_ABORT)
    assert coordinator.sweep(view, timeout_s=60).aborted == 0

    entries = [committable(a.identity, records=1) for a in (decided, undecided, stranger)]
    coordinator.committer.commit(entries, timeout_s=60, after_crash=True)
    coordinator.close()
    assert real.visible() == 3


def test_a_first_sweep_names_open_transactions_of_another_job(
    real: RealHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a kill, and a start with a new checkpoint directory."""
    left = real.open(real.name(attempt_id=1))
    left.produce(1)
    view = SweepView(job_uid="another-job", attempt_ids={"main": 2}, protected=(), orphans=())
    coordinator = _coordinator(real)

    assert coordinator.sweep(view, timeout_s=60).aborted == 0
    (warning,) = [r.getMessage() for r in caplog.records if "another job" in r.getMessage()]
    assert left.identity.transactional_id in warning
    real.await_state(left.identity, TransactionState.ONGOING)
    coordinator.close()


def test_a_recreated_output_topic_is_reported_once(
    modern: RealHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """Its transactions commit without an error, and what they wrote before is gone."""
    servers = modern.connection.bootstrap_servers
    name = create_topic(servers, partitions=1)
    coordinator = _coordinator(modern, topics=(name,))
    coordinator.check(timeout_s=60)
    coordinator.claim(CONTEXT, timeout_s=300)
    coordinator.renew()
    assert "created again" not in caplog.text

    delete_topic(servers, name)
    create_topic(servers, name, partitions=1)
    for _ in range(2):
        coordinator.renew()
    coordinator.close()
    (warning,) = [r.getMessage() for r in caplog.records if "created again" in r.getMessage()]
    assert f"topic={name} " in warning


def test_lease_guards_outputs_the_lease_lies_in_kafka(modern: RealHarness) -> None:
    """Rule `lease-guards-outputs`: claimed, renewed, given back; a foreign session in it stops the
    holder."""
    coordinator = _coordinator(modern)
    store = KafkaLeaseStore(modern.connection, modern.prefix, timeout_s=300)
    assert store.read() is None

    coordinator.claim(CONTEXT, timeout_s=300)
    first = store.read()
    coordinator.renew()
    second = store.read()
    assert (second.session, second.job_uid) == ("session-1", JOB_UID)
    assert second.renewals == first.renewals + 1

    store.write(dataclasses.replace(second, session="session-2"))
    with pytest.raises(FencedError):
        coordinator.renew()
    coordinator.close()
    assert isinstance(store.read(), LeaseRecord)  # not ours any more, so not given back

    successor = _coordinator(modern)
    successor.claim(dataclasses.replace(CONTEXT, leader_session_id="session-3"), timeout_s=300)
    successor.close()
    left = store.read()
    assert (left.session, left.is_ended) == ("session-3", True)
    store.close()


def test_check_tells_facts_and_changes_nothing(real: RealHarness) -> None:
    """The start check: cluster id, level, and rule `transaction-timeout`'s default timeout, the
    broker's maximum."""
    coordinator = _coordinator(real)
    facts = coordinator.check(timeout_s=60)
    coordinator.close()

    assert facts["transaction_version"] == str(real.level)
    assert facts["transaction_timeout_s"] == "900"
    assert len(facts["cluster_id"]) == 22
    assert real.listing().transactions == ()


@pytest.mark.parametrize("timeout_s", [901.0, 5.0])
def test_transaction_timeout_a_timeout_that_cannot_protect_a_decision_is_refused(
    modern: RealHarness, timeout_s: float
) -> None:
    """Rule `transaction-timeout`: beyond the broker's maximum, or shorter than a restart."""
    coordinator = _coordinator(modern, transaction_timeout_s=timeout_s)
    with pytest.raises(ConfigError):
        coordinator.check(timeout_s=60)
    coordinator.close()


def test_a_missing_output_topic_is_named_before_anything_is_written(modern: RealHarness) -> None:
    """A misspelt topic is not created by the check."""
    absent = unique("absent")
    coordinator = _coordinator(modern, topics=(modern.topic, absent))

    with pytest.raises(SourceChangedError) as caught:
        coordinator.check(timeout_s=60)
    coordinator.close()

    assert caught.value.args[1]["topics"] == absent
    assert modern.wire.missing_topics([absent], timeout_s=300) == (absent,)
