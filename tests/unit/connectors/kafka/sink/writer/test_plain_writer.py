"""The writer of sinks without transactions, over a fake cluster: what reaches the broker counts."""

from dataclasses import replace
from typing import cast

import pyarrow as pa
import pytest

from sluice.connectors.kafka.client import login_refusals as log_ins
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.producers.plain_producers import PlainProducers
from sluice.connectors.kafka.sink.producers.producer_client import Client
from sluice.connectors.kafka.sink.writer.kafka_writer import (
    Guarantee,
    KafkaWriterFactory,
    PlainWriter,
)
from sluice.runtime.contracts import TaskScope
from sluice.runtime.errors import AuthenticationError, FencedError, UnreachableError
from tests.kit.kafka.fake_producer import FakeClient, FakeCluster, FakeMessage, kafka_error
from tests.unit.connectors.kafka.sink.producers.test_cluster_limits import REFUSED
from tests.unit.connectors.kafka.sink.writer.test_kafka_writer import (
    SCOPE,
    Registry,
    letters,
    records,
    refuse_value,
)


def plain_writer(
    cluster: FakeCluster, guarantee: Guarantee, scope: TaskScope = SCOPE
) -> tuple[PlainWriter, list[str]]:
    dropped: list[str] = []
    client = FakeClient(cluster, {})
    writer = PlainWriter(
        client,
        scope,
        "out",
        guarantee=guarantee,
        partition_count=None,
        drop=lambda: dropped.append("client"),
    )
    return writer, dropped


def test_at_least_once_reports_a_refused_record() -> None:
    """A checkpoint never covers a record that Kafka does not have."""
    cluster = FakeCluster(refuse=lambda _: kafka_error("_MSG_TIMED_OUT"))
    writer, dropped = plain_writer(cluster, Guarantee.AT_LEAST_ONCE)
    with pytest.raises(UnreachableError):
        writer.write(records(b"a"))
    writer.abort()
    assert dropped == ["client"]


def test_an_error_behind_a_barrier_names_what_the_epoch_has_read() -> None:
    """The barrier says it; a continuous epoch begins without."""
    cluster = FakeCluster(refuse=lambda _: kafka_error("_MSG_TIMED_OUT"), answers_at_flush=True)
    writer, _ = plain_writer(cluster, Guarantee.AT_LEAST_ONCE, replace(SCOPE, source_ranges=()))
    writer.write(pa.record_batch({"value": pa.array([b"a"])}))
    with pytest.raises(UnreachableError, match=r"orders-1\[100,200\)") as caught:
        writer.end_epoch(SCOPE.source_ranges, checkpoint_id=41)
    assert caught.value.args[1]["checkpoint_id"] == 41


def test_at_least_once_has_nothing_to_commit() -> None:
    """Its records are visible at once."""
    writer, _ = plain_writer(FakeCluster(), Guarantee.AT_LEAST_ONCE)
    writer.write(records(b"a"))
    assert writer.pre_commit() == []


def test_no_guarantee_goes_on_behind_a_refused_record(caplog: pytest.LogCaptureFixture) -> None:
    """The loss is counted in the log, and the records behind it are written."""
    sent: list[FakeMessage] = []

    def refuse(message: FakeMessage) -> object:
        sent.append(message)
        return kafka_error("_MSG_TIMED_OUT") if message.record_value == b"b" else None

    cluster = FakeCluster(
        refuse=refuse,  # type: ignore[arg-type]
        refuse_at_produce=refuse_value(b"a", "MSG_SIZE_TOO_LARGE"),  # type: ignore[arg-type]
    )
    writer, _ = plain_writer(cluster, Guarantee.NONE)
    writer.write(records(b"a", b"b", b"c"))
    assert writer.pre_commit() == []
    assert [m.record_value for m in sent] == [b"b", b"c"]
    assert "records=2" in caplog.text


def test_a_task_of_the_past_leaves_the_client_of_a_later_attempt_alone() -> None:
    """Its records are another task's: neither an abort throws them away, nor a late start."""
    producers, cluster = PlainProducers(), FakeCluster()
    past, present = (
        replace(SCOPE, batch=replace(SCOPE.batch, attempt_id=number)) for number in (3, 4)
    )

    def make() -> FakeClient:
        return FakeClient(cluster, {})

    old = producers.client(past, make)
    new = producers.client(present, make)
    assert new is not old
    queue(new, b"a")
    producers.drop(past)
    with pytest.raises(FencedError, match="attempt_id=3"):
        producers.client(past, make)
    assert len(new) == 1
    assert producers.client(present, make) is new
    producers.drop(present)
    assert len(new) == 0
    assert producers.client(present, make) is not new


def test_a_refused_log_in_lasts_over_the_tries_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try asks once what the cluster accepts, and none of them waits for long by itself."""
    monkeypatch.setattr(log_ins, "LASTING_S", 0.3)
    monkeypatch.setattr(
        "sluice.connectors.kafka.sink.writer.kafka_writer.fetch_limits", lambda *_, **__: REFUSED
    )
    factory = KafkaWriterFactory(
        connection=KafkaConnection(
            bootstrap_servers="nowhere:9092", options={"message.timeout.ms": "30000"}
        ),
        topic="out",
        guarantee=Guarantee.AT_LEAST_ONCE,
    )
    with pytest.raises(AuthenticationError):
        factory.open(SCOPE, Registry(FakeCluster()))


def queue(client: Client, value: bytes) -> None:
    """A record that is not sent yet."""
    cast(FakeClient, client).produce("out", value, None, -1, lambda *_: None, None, 0, None)


def keyed_writer(
    *, partition_count: int | None, dead_letters_only: bool = False
) -> tuple[PlainWriter, list[FakeMessage]]:
    """A writer that knows how many partitions its topic has; and what reaches the cluster."""
    cluster = FakeCluster()
    seen: list[FakeMessage] = []
    cluster.refuse = lambda message: seen.append(message)
    writer = PlainWriter(
        FakeClient(cluster, {}),
        SCOPE,
        "out",
        guarantee=Guarantee.AT_LEAST_ONCE,
        partition_count=partition_count,
        drop=lambda: None,
        dead_letters_only=dead_letters_only,
    )
    return writer, seen


def test_produce_order_dead_letters_keep_their_order_and_leave_partitions_to_the_client() -> None:
    """The output's partitions, by which keyed records are put together, are not theirs."""
    writer, seen = keyed_writer(partition_count=2)
    given = letters(*(b"%d" % n for n in range(50)))
    keys = pa.array([b"%d" % (n % 7) for n in range(50)], pa.binary())
    writer.write_dead_letters("dead", given.set_column(0, "key", keys))
    writer.pre_commit()
    assert [m.record_value for m in seen] == [b"%d" % n for n in range(50)]
    assert {m.record_partition for m in seen} == {-1}


def test_a_sink_without_transactions_writes_dead_letters_as_it_writes_the_rest() -> None:
    """At once, and checked as the rest is."""
    writer, seen = keyed_writer(partition_count=None)
    writer.write(records(b"a"))
    writer.write_dead_letters("dead", letters(b"x"))
    assert writer.pre_commit() == []
    assert [(m.record_topic, m.record_value) for m in seen] == [("out", b"a"), ("dead", b"x")]


def test_a_plain_writer_of_dead_letters_alone_ignores_other_records() -> None:
    writer, seen = keyed_writer(partition_count=None, dead_letters_only=True)
    writer.write(pa.RecordBatch.from_pydict({"amount": [1, 2]}))
    writer.write_dead_letters("dead", letters(b"x"))
    assert writer.pre_commit() == []
    assert [(m.record_topic, m.record_value) for m in seen] == [("dead", b"x")]
