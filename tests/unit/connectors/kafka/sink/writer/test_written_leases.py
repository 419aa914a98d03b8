"""What a writer leaves behind of its producer, and where its dead letters go."""

import pyarrow as pa
import pytest

from sluice.connectors.kafka.sink.writer.kafka_writer import TransactionalWriter
from sluice.runtime.errors import DeliveryError, FencedError
from tests.kit.kafka.fake_producer import FakeMessage, kafka_error
from tests.unit.connectors.kafka.sink.writer.test_kafka_writer import SCOPE, Rig, letters, records


@pytest.fixture
def rig() -> Rig:
    """Each test has its own cluster."""
    return Rig()


def test_a_pre_commit_lets_go_of_its_producer(rig: Rig) -> None:
    """Nobody asks it to commit; a task of many batches would keep one for each."""
    rig.writer.write(records(b"a"))
    rig.writer.pre_commit()
    with pytest.raises(DeliveryError, match="after its release"):
        _ = rig.producers[0].client
    assert rig.cluster.transactions[0].state == "open"


def test_a_producer_whose_batch_is_not_wanted_is_given_back_unused(rig: Rig) -> None:
    """Nothing was begun under its id, which the next writer of the batch may have."""
    refusal, rig.registry.refusal = rig.registry.refusal, FencedError("over", {}, "")
    for _ in range(5):
        writer = TransactionalWriter(rig.pool, SCOPE, rig.registry, "out")
        with pytest.raises(FencedError):
            writer.write(records(b"a"))
    assert len(rig.pool) <= 2, "one is taken while the next is made ready"
    rig.registry.refusal = refusal
    writer.write(records(b"a"))
    assert len(writer.pre_commit()) == 1


def test_dead_letters_are_partitioned_as_their_own_topic_is(rig: Rig) -> None:
    """By the client, which knows it: the output's number of partitions says nothing of it."""
    for producer in rig.producers:
        producer.partition_count = 1_000
    rig.writer.write(records(b"a"))
    keys = pa.array([str(number).encode() for number in range(50)], pa.binary())
    rig.writer.write_dead_letters("dead", letters(*[b"x"] * 50).set_column(0, "key", keys))
    rig.writer.pre_commit()
    (transaction,) = rig.cluster.transactions
    dead = [m.record_partition for m in transaction.records if m.record_topic == "dead"]
    assert dead == [-1] * 50


def test_a_writer_whose_epoch_fails_elsewhere_lets_go_of_what_it_has_kept(rig: Rig) -> None:
    """Another sink's pre-commit has failed. The sweep ends it, which knows that nobody decides."""
    writer = TransactionalWriter(rig.pool, SCOPE, rig.registry, "out", keeps_producer=True)
    writer.write(records(b"a"))
    writer.end_epoch([], checkpoint_id=9)
    writer.pre_commit()
    writer.abort()
    with pytest.raises(DeliveryError, match="after its release"):
        _ = rig.producers[0].client
    assert rig.cluster.transactions[0].state == "open"


def test_pre_commit_confirmed_what_the_client_says_behind_its_flush_ends_the_epoch_too(
    rig: Rig,
) -> None:
    """All is acknowledged, and the transaction looks open; its client has given up."""
    rig.writer.write(records(b"a"))
    client = rig.client
    flush = client.flush

    def flushed(timeout: float) -> int:
        left = flush(timeout)

        def poll(timeout: float) -> int:
            del timeout
            client._on_error(kafka_error("_FENCED", fatal=True))  # noqa: SLF001
            return 0

        client.poll = poll  # type: ignore[method-assign]
        return left

    client.flush = flushed  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        rig.writer.pre_commit()


def test_nobody_else_serves_a_client_while_dead_letters_are_written(rig: Rig) -> None:
    """Its callbacks run in one thread at a time."""
    held: list[bool] = []

    def at_produce(_: FakeMessage) -> None:
        held.append(rig.producers[0]._used.locked())  # noqa: SLF001

    rig.cluster.refuse_at_produce = at_produce
    rig.writer.write_dead_letters("dead", letters(b"x"))
    assert held == [True]
