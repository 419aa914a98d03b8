"""EndTxn and AddPartitionsToTxn that reach the broker late, or twice, when their id has gone on.

A proxy before a real broker holds or repeats them (`tests.kit.kafka.kafka_proxy`), at each feature level.
Proves why an id carries one transaction per (producer id, epoch), and that ids which do are safe
(`handle-from-producer`, `ids-never-reused`, `outcome-from-broker` and `abort-by-endtxn`).
"""

import contextlib
from collections.abc import Iterator

import pytest

from sluice.connectors.kafka.kafka_sink import KafkaSink
from sluice.connectors.kafka.sink.committer.kafka_sink_coordinator import KafkaSinkCoordinator
from sluice.connectors.kafka.sink.committer.transaction_requests import TransactionState
from sluice.connectors.kafka.sink.handles import TransactionIdentity
from sluice.runtime.contracts import CommitOutcome, SweepView
from sluice.runtime.errors import TransactionAbortedError
from tests.kit.coordinator.sink_region import Region, no_pools_left, rows
from tests.kit.kafka.kafka_proxy import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
)
from tests.kit.kafka.kafka_releases import OLDER_VERSION, older_kafka_jars
from tests.kit.kafka.proxied_kafka import ProxiedKafka
from tests.kit.kafka.transaction_harness import JOB_UID, committable
from tests.kit.late_requests import CONCURRENT_TRANSACTIONS, FENCED, LateBed
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended]

__all__ = ["no_pools_left"]  # a fixture of every test here


OLDER = f"kafka {OLDER_VERSION}"


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param(level, id=f"transaction.version={level}") for level in (0, 1, 2)),
        pytest.param(OLDER, id=OLDER, marks=pytest.mark.long),
    ],
)
def kafka_behind(request: pytest.FixtureRequest) -> Iterator[ProxiedKafka]:
    """A broker of each feature level in turn, and one of an older release, with its proxy."""
    is_older = request.param == OLDER
    level = 0 if is_older else request.param
    jars = older_kafka_jars() if is_older else None
    with ProxiedKafka(transaction_version=level, jars=jars) as made:
        yield made


@pytest.fixture(params=[2.0, pytest.param(30.0, marks=pytest.mark.long)], ids="{:.0f}s".format)
def late_s(request: pytest.FixtureRequest) -> float:
    """How late a request arrives; the longer one is beyond every client's patience."""
    return float(request.param)


@pytest.fixture
def bed(kafka_behind: ProxiedKafka) -> Iterator[LateBed]:
    made = LateBed(kafka_behind)
    yield made
    made.close()


@pytest.mark.parametrize("who", ["commit by hand", "abort by hand", "native commit"])
def test_outcome_from_broker_an_endtxn_that_was_held_changes_no_later_transaction(
    bed: LateBed, late_s: float, who: str
) -> None:
    is_native = who == "native commit"
    first = bed.far_writer() if is_native else bed.harness.open()
    first.produce(3)
    entry = committable(first.identity)
    held = bed.proxy.hold(END_TXN)
    outcomes: list[CommitOutcome] = []

    def end_by_hand() -> None:
        far = bed.far_committer
        reports = (
            far.abort([entry], timeout_s=PATIENCE_S)
            if who == "abort by hand"
            else far.commit([entry], timeout_s=PATIENCE_S, after_crash=True)
        )
        outcomes.extend(report.outcome for report in reports)

    bed.at_once((lambda: bed.commit_natively(first)) if is_native else end_by_hand)
    held.wait()
    if who == "abort by hand":
        bed.discard(first.identity)
    else:
        bed.finish(first.identity)
    later = bed.harness.open(first.transactional_id)
    later.produce(5)

    held.await_age(late_s)
    held.release()

    assert set(held.errors()) <= FENCED
    before = 0 if who == "abort by hand" else 3
    bed.expect_untouched(later, records=5, before=before)
    bed.join()
    assert len(outcomes) == (0 if is_native else 1)
    if who == "commit by hand":
        assert CommitOutcome.ABORTED not in outcomes, "it would be written twice"
    if who == "abort by hand":
        assert CommitOutcome.COMMITTED not in outcomes


@pytest.mark.parametrize("who", ["commit by hand", "abort by hand", "native commit"])
def test_outcome_from_broker_an_endtxn_that_comes_twice_changes_no_later_transaction(
    bed: LateBed, late_s: float, who: str
) -> None:
    """Answered, and once more long after: while the next transaction is empty, open, and ended."""
    first = bed.far_writer() if who == "native commit" else bed.harness.open()
    first.produce(3)
    noted = bed.proxy.note(END_TXN)
    entry = committable(first.identity)
    if who == "native commit":
        first.end_natively(commit=True)
    elif who == "commit by hand":
        bed.far_committer.commit([entry], timeout_s=PATIENCE_S, after_crash=True)
    else:
        bed.far_committer.abort([entry], timeout_s=PATIENCE_S)
    assert noted.errors() == (0,)
    before = 0 if who == "abort by hand" else 3
    if before:
        assert bed.committer.await_visible(timeout_s=PATIENCE_S)
    later = bed.harness.open(first.transactional_id)
    assert set(noted.repeat()) <= FENCED
    later.produce(5)
    noted.await_age(late_s)

    assert set(noted.repeat()) <= FENCED
    bed.expect_untouched(later, records=5, before=before)
    assert set(noted.repeat()) <= FENCED
    assert bed.harness.visible() == before + 6


def test_outcome_from_broker_why_a_producer_carries_one_transaction_only(bed: LateBed) -> None:
    producer = bed.far_writer()
    producer.produce(3)
    noted = bed.proxy.note(END_TXN)
    producer.end_natively(commit=True)
    identity = producer.identity
    producer.produce(5)
    assert producer.identity == identity

    assert noted.repeat() == (0,)

    bed.harness.await_state(identity, TransactionState.COMPLETE_COMMIT)
    assert bed.harness.visible() == 8


@pytest.mark.parametrize("who", ["commit by hand", "native commit"])
def test_outcome_from_broker_a_commit_whose_answer_is_lost_is_committed_once(
    bed: LateBed, who: str
) -> None:
    writer = bed.far_writer() if who == "native commit" else bed.harness.open()
    writer.produce(3)
    entry = committable(writer.identity)
    lost = bed.proxy.lose_answer(END_TXN)
    if who == "native commit":
        bed.at_once(lambda: bed.commit_natively(writer))
    else:
        (report,) = bed.far_committer.commit([entry], timeout_s=PATIENCE_S, after_crash=False)
        assert report.outcome is CommitOutcome.COMMITTED
    assert lost.errors() == (0,)
    bed.finish(writer.identity)
    bed.join()
    assert bed.harness.visible() == 3


def test_handle_from_producer_an_addpartitions_that_comes_twice_adds_nothing_to_a_later_transaction(
    bed: LateBed, late_s: float
) -> None:
    """Repeated while the next transaction of the id is empty, and while it is open."""
    first = bed.far_writer()
    noted = bed.proxy.note(ADD_PARTITIONS_TO_TXN)
    first.produce(3)
    bed.finish(first.identity)
    later = bed.harness.open(first.transactional_id)
    empty = bed.describe(later.transactional_id)
    assert set(noted.repeat()) <= FENCED
    assert bed.describe(later.transactional_id) == empty
    later.produce(5)
    noted.await_age(late_s)

    assert set(noted.repeat()) <= FENCED
    bed.expect_untouched(later, records=5, before=3)


def test_outcome_from_broker_an_addpartitions_after_a_native_commit_loses_and_doubles_nothing(
    bed: LateBed,
) -> None:
    writer = bed.far_writer()
    noted = bed.proxy.note(ADD_PARTITIONS_TO_TXN)
    writer.produce(3)
    writer.end_natively(commit=True)
    bed.harness.await_state(writer.identity, TransactionState.COMPLETE_COMMIT)

    assert noted.repeat() == (0,)
    assert bed.describe(writer.transactional_id).state is TransactionState.ONGOING

    bed.finish(writer.identity)
    assert bed.harness.visible() == 3


def test_outcome_from_broker_a_transaction_that_may_begin_again_after_its_commit_is_never_pre_committed(
    bed: LateBed, late_s: float
) -> None:
    """The client gives the request up and sends it again, and the flush is done. If it were
    committed then, and its epoch begun again by what comes late, the broker would describe it as
    aborted once that has timed out: lost, to be written again, and visible."""
    sink = KafkaSink(
        bootstrap_servers=bed.behind.proxied,
        topic=bed.harness.topic,
        transactional_id_prefix=bed.harness.prefix,
        options={"kafka.socket.timeout.ms": "1000"},
    )
    region = Region(sink.writer_factory(), job_uid=JOB_UID)
    held = bed.proxy.hold(ADD_PARTITIONS_TO_TXN)

    with pytest.raises(TransactionAbortedError, match="may still arrive"):
        region.write(rows(value=[b"a", b"b"]))

    [attempt] = region.attempts
    held.await_age(late_s)
    held.release()
    assert set(held.errors()) <= FENCED | {0, CONCURRENT_TRANSACTIONS}
    bed.discard(TransactionIdentity.parse(attempt.resource))
    assert bed.harness.visible() == 0


def test_ids_never_reused_a_transaction_that_begins_when_its_writer_is_dead_is_swept(
    bed: LateBed, late_s: float
) -> None:
    writer = bed.far_writer()
    held = bed.proxy.hold(ADD_PARTITIONS_TO_TXN)
    transaction = writer.identity
    writer.begin(3)
    held.wait()
    writer.let_go()
    sweeper = KafkaSinkCoordinator(
        bed.harness.connection,
        transactional_id_prefix=bed.harness.prefix,
        transaction_timeout_s=None,
        topics=(),
    )
    view = SweepView(job_uid=JOB_UID, attempt_ids={"main": 2}, protected=(), orphans=())
    with contextlib.closing(sweeper):
        assert sweeper.sweep(view, timeout_s=PATIENCE_S).aborted == 0
        alive = bed.harness.open(bed.harness.name(attempt_id=2))
        alive.produce(4)

        held.await_age(late_s)
        held.release()
        assert held.errors() == (0,)

        def is_ended() -> bool:
            sweeper.sweep(view, timeout_s=PATIENCE_S)
            found = bed.describe(transaction.transactional_id)
            return found.state is TransactionState.COMPLETE_ABORT

        wait_for(is_ended, what="the ownerless transaction is swept")
    bed.finish(alive.identity)
    assert bed.harness.visible() == 4
