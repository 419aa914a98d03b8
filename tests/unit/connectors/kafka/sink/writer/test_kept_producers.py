"""A writer whose producer lives on: served while it waits, and committing what it wrote."""

import time
from dataclasses import replace

import pyarrow as pa
import pytest

from sluice.connectors.kafka.sink.producers.producer_slots import IDS_PER_TASK
from sluice.connectors.kafka.sink.writer.kafka_writer import TransactionalWriter
from sluice.runtime.errors import DeliveryError
from tests.kit.kafka.fake_producer import FakeClient, FakeMessage, kafka_error
from tests.unit.connectors.kafka.sink.writer.test_kafka_writer import SCOPE, Rig, records


@pytest.fixture
def rig() -> Rig:
    """Each test has its own cluster."""
    return Rig()


def _kept(rig: Rig) -> TransactionalWriter:
    """A writer of a continuous task, whose epoch of one record is pre-committed."""
    writer = TransactionalWriter(rig.pool, SCOPE, rig.registry, "out", keeps_producer=True)
    writer.write(records(b"a"))
    writer.end_epoch([], checkpoint_id=9)
    assert len(writer.pre_commit()) == 1
    return writer


def test_a_kept_transaction_is_committed_by_its_own_producer(rig: Rig) -> None:
    """Which is let go of then, and asked for nothing more."""
    writer = _kept(rig)
    (transaction,) = rig.cluster.transactions
    assert transaction.state == "open"
    assert writer.commit(timeout_s=1)
    assert transaction.state == "committed"
    with pytest.raises(DeliveryError, match="after its release"):
        _ = rig.producers[0].client
    assert not writer.commit(timeout_s=1), "nothing is left that could be told"


@pytest.mark.parametrize("code", ["_TIMED_OUT", "_FENCED", "_STATE"])
def test_outcome_from_broker_a_commit_without_an_acknowledgement_is_not_told_as_one(
    rig: Rig, code: str
) -> None:
    """It may have happened; no error of it ends the task, and the producer is not used again."""
    writer = _kept(rig)
    rig.cluster.commit_error = kafka_error(code, fatal=code == "_FENCED")
    assert not writer.commit(timeout_s=1)
    with pytest.raises(DeliveryError, match="after its release"):
        _ = rig.producers[0].client


def test_outcome_from_broker_what_may_be_begun_again_is_not_committed_by_its_own_producer(
    rig: Rig,
) -> None:
    """That would leave the epoch as it is; the driver's EndTxn raises it."""
    writer = _kept(rig)
    rig.cluster.lost_additions = 1  # and told only now
    assert not writer.commit(timeout_s=1)
    assert rig.cluster.transactions[0].state == "open"


def test_outcome_from_broker_an_epoch_of_which_nothing_was_told_yet_waits_for_its_statistics(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is shorter than their interval: confirmed and decided before they tell that a
    request which begins it was lost and sent again."""
    rig.cluster.lost_additions = 1
    client, told = rig.clients[0], FakeClient.statistics
    monkeypatch.setattr(client, "statistics", lambda: client._told)  # noqa: SLF001
    writer = _kept(rig)
    served = client.poll

    def next_ones(timeout: float) -> int:
        if timeout > 0:
            monkeypatch.setattr(client, "statistics", lambda: told(client))
        return served(timeout)

    monkeypatch.setattr(client, "poll", next_ones)
    assert not writer.commit(timeout_s=1)
    assert rig.cluster.transactions[0].state == "open"


def test_an_epoch_of_which_all_was_told_waits_for_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of several intervals, as epochs are."""
    writer = TransactionalWriter(rig.pool, SCOPE, rig.registry, "out", keeps_producer=True)
    writer.write(records(b"a"))
    client = rig.client
    for _ in range(2):
        client.poll(0.1)
    writer.end_epoch([], checkpoint_id=9)
    writer.pre_commit()
    served = client.poll
    monkeypatch.setattr(
        client, "poll", lambda timeout: served(0) if timeout == 0 else pytest.fail("it waits")
    )
    assert writer.commit(timeout_s=1)


def test_outcome_from_broker_statistics_that_do_not_come_leave_the_commit_to_the_driver(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the time that it has: the driver looks itself then."""
    writer = _kept(rig)
    monkeypatch.setattr(rig.clients[0], "poll", lambda timeout: time.sleep(timeout) or 0)
    began_s = time.monotonic()
    assert not writer.commit(timeout_s=0.1)
    assert time.monotonic() - began_s >= 0.1
    assert rig.cluster.transactions[0].state == "open"


def test_what_a_writer_releases_stays_open(rig: Rig) -> None:
    """Whoever decided it ends it; an abort would lose it."""
    writer = _kept(rig)
    writer.release()
    assert rig.cluster.transactions[0].state == "open"
    assert not writer.commit(timeout_s=1)


def test_outcome_from_broker_an_id_rests_until_its_epoch_is_committed_on_record(rig: Rig) -> None:
    """That its own commit was acknowledged is not enough."""
    writer = _kept(rig)
    (transaction,) = rig.cluster.transactions
    assert writer.commit(timeout_s=1)
    later = replace(
        SCOPE, batch=replace(SCOPE.batch, batch_id=SCOPE.batch.batch_id + 1), committed_batch=-1
    )
    used = set()
    for _ in range(IDS_PER_TASK - 1):
        rig.pool.enter(later)
        lease = rig.pool.take(later, timeout_s=1)
        used.add(lease.producer.transactional_id)
    assert transaction.transactional_id not in used


def test_nobody_else_serves_a_client_while_its_writer_uses_it(rig: Rig) -> None:
    """Reports of delivery come to the writer's thread alone, or while it is elsewhere."""
    alone: list[str] = []

    def serve(where: str) -> None:
        before = rig.client.polls
        assert rig.producers[0].keep_alive()
        if rig.client.polls == before:
            alone.append(where)

    def at_produce(_: FakeMessage) -> None:
        serve("write")

    def at_answer(_: FakeMessage) -> None:
        serve("flush")

    rig.cluster.answers_at_flush = True
    rig.cluster.refuse_at_produce = at_produce
    rig.cluster.refuse = at_answer
    rig.writer.write(records(b"a"))
    assert alone == ["write"]
    serve("between")
    rig.writer.pre_commit()
    assert alone == ["write", "flush"]


def test_an_error_behind_a_barrier_names_what_the_epoch_has_read(rig: Rig) -> None:
    """The barrier says it, and which checkpoint that is; a function may have dropped the source's
    columns, and the epoch began without either."""
    scope = replace(SCOPE, source_ranges=())
    writer = TransactionalWriter(rig.pool, scope, rig.registry, "out", keeps_producer=True)
    rig.cluster.refuse = lambda _: kafka_error("MSG_SIZE_TOO_LARGE")
    rig.cluster.answers_at_flush = True
    writer.write(pa.record_batch({"value": pa.array([b"a"])}))
    with pytest.raises(DeliveryError, match=r"orders-1\[100,200\)") as caught:
        writer.end_epoch(SCOPE.source_ranges, checkpoint_id=41)
    assert caught.value.args[1]["checkpoint_id"] == 41
