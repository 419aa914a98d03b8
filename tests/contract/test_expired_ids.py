"""Transactional ids that expire (`transactional.id.expiration.ms`), at the model broker and at real
ones: no broker knows then what became of their transactions, so nothing may be guessed.
"""

from collections.abc import Iterator

import pytest

from sluice.connectors.kafka.sink.committer.kafka_committer import KafkaCommitter
from sluice.connectors.kafka.sink.committer.transaction_requests import EndOutcome
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.contracts import CommitOutcome
from tests.kit.kafka.transaction_harness import (
    FakeHarness,
    Harness,
    RealHarness,
    begun,
    committable,
    end_by_hand,
    ended_by_hand,
    ended_natively,
)
from tests.kit.waiting import wait_for

LEVELS = (0, 2)
_UNKNOWN_ID = (EndOutcome.REFUSED, "InvalidProducerIdMappingError")
_FORGETFUL = {
    "transactional.id.expiration.ms": "5000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
}


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param(("fake", level), id=f"fake-{level}") for level in LEVELS),
        *(
            pytest.param(
                ("real", level),
                id=f"real-{level}",
                marks=[pytest.mark.integration, pytest.mark.extended],
            )
            for level in LEVELS
        ),
    ],
)
def broker(request: pytest.FixtureRequest) -> Iterator[tuple[EmbeddedKafka | None, int]]:
    """One that soon forgets, and its level; None: the model."""
    kind, level = request.param
    if kind == "fake":
        yield None, level
        return
    with EmbeddedKafka(transaction_version=level, properties=_FORGETFUL) as made:
        yield made, level


@pytest.fixture
def harness(broker: tuple[EmbeddedKafka | None, int]) -> Iterator[Harness]:
    kafka, level = broker
    if kafka is None:
        yield FakeHarness(level)
        return
    real = RealHarness(kafka, level)
    yield real
    real.close()


def _is_known(harness: Harness, transaction: TransactionIdentity) -> bool:
    name = transaction.transactional_id
    return harness.wire.describe([name], timeout_s=300)[name] is not None


def _expire(harness: Harness, transaction: TransactionIdentity) -> None:
    """Let a broker forget the id, and all others that may expire."""
    if isinstance(harness, FakeHarness):
        for name in harness.broker.forgettable():
            harness.broker.forget(name)
    wait_for(lambda: not _is_known(harness, transaction), what="the id to expire")


def _outcome(harness: Harness, transaction: TransactionIdentity) -> CommitOutcome:
    committer = KafkaCommitter(harness.wire)
    (report,) = committer.commit([committable(transaction)], timeout_s=300, after_crash=True)
    return report.outcome


@pytest.mark.parametrize("commit", [True, False])
def test_outcome_from_broker_nobody_can_tell_what_became_of_the_transaction(
    harness: Harness, commit: bool
) -> None:
    """Rule `outcome-from-broker`: committed or aborted, the answers are the same; what readers see
    stays as it was."""
    ours = ended_by_hand(harness, commit=commit)
    _expire(harness, ours)

    assert _outcome(harness, ours) is CommitOutcome.UNKNOWN
    assert end_by_hand(harness, ours, commit=True) == _UNKNOWN_ID
    assert end_by_hand(harness, ours, commit=False) == _UNKNOWN_ID
    listed = harness.wire.list_transactions(harness.prefix, timeout_s=300)
    assert ours.transactional_id not in [row.transactional_id for row in listed.transactions]
    assert harness.visible() == (2 if commit else 0)


@pytest.mark.parametrize("commit", [True, False])
def test_outcome_from_broker_a_native_end_is_forgotten_like_any_other(
    harness: Harness, commit: bool
) -> None:
    ours = ended_natively(harness, commit=commit)
    _expire(harness, ours)

    assert _outcome(harness, ours) is CommitOutcome.UNKNOWN
    assert harness.visible() == (2 if commit else 0)


def test_outcome_from_broker_an_open_transaction_does_not_expire(harness: Harness) -> None:
    ours = begun(harness).identity
    _expire(harness, ended_by_hand(harness, commit=True))

    assert _outcome(harness, ours) is CommitOutcome.COMMITTED
    assert harness.visible() == 4


def test_outcome_from_broker_who_has_the_id_next_is_another_producer(harness: Harness) -> None:
    ours = ended_by_hand(harness, commit=True)
    _expire(harness, ours)

    later = harness.init_producer_id(ours.transactional_id)
    assert isinstance(later, TransactionIdentity)
    assert (later.producer_id == ours.producer_id, later.producer_epoch) == (False, 0)
    assert harness.add_partitions(later) == ""
    assert harness.add_partitions(ours) == "INVALID_PRODUCER_ID_MAPPING"
    assert end_by_hand(harness, ours, commit=True) == _UNKNOWN_ID
    assert end_by_hand(harness, ours, commit=False) == _UNKNOWN_ID
    assert _outcome(harness, ours) is CommitOutcome.UNKNOWN
    assert end_by_hand(harness, later, commit=False) == (EndOutcome.DONE, "")


def test_an_id_that_was_made_ready_expires_too(harness: Harness) -> None:
    ours = harness.open().identity
    _expire(harness, ours)

    assert harness.add_partitions(ours) == "INVALID_PRODUCER_ID_MAPPING"
    assert end_by_hand(harness, ours, commit=True) == _UNKNOWN_ID
