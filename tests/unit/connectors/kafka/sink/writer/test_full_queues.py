"""What a full queue of a producer, and a record that is larger than it, do to a writer."""

import itertools
import re

import pyarrow as pa
import pytest

from sluice.connectors.kafka.client.client_tuning import write_settings
from sluice.connectors.kafka.records.rows import RecordColumns
from sluice.connectors.kafka.sink.producers.delivery import DeliveryLog
from sluice.connectors.kafka.sink.writer.sender import RecordSender, flush
from sluice.runtime.errors import ConfigError, DeliveryError, UnreachableError
from sluice.runtime.model.task_memory import TaskMemory
from tests.kit.kafka.fake_producer import FakeClient, FakeCluster, FakeMessage, kafka_error
from tests.unit.connectors.kafka.sink.writer.test_kafka_writer import SCOPE


def sender(cluster: FakeCluster, *, stops_at_errors: bool = True) -> RecordSender:
    return RecordSender(
        FakeClient(cluster, {}),
        DeliveryLog(SCOPE),
        stops_at_errors=stops_at_errors,
        queue_full_timeout_s=180.0,
        clock=itertools.count().__next__,  # a second at each look
    )


def send(cluster: FakeCluster, batch: pa.RecordBatch) -> None:
    sender(cluster).send(batch, RecordColumns.of(batch.schema, "out"))


@pytest.mark.parametrize("room", [1, 3])
def test_a_queue_that_is_empty_once_somebody_looks_is_not_waited_for(room: int) -> None:
    """Its last records were acknowledged between the refusal and the look: there is room."""
    seen: list[FakeMessage] = []
    cluster = FakeCluster(
        refuse=lambda message: seen.append(message), queue_room=room, empties_when_full=True
    )
    values = [b"%d" % number for number in range(20)]
    send(cluster, pa.record_batch({"value": values}))
    assert [message.record_value for message in seen] == values


@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("empties_when_full", [False, True])
def test_a_record_that_an_empty_queue_does_not_take_is_an_error_at_once(
    before: int, empties_when_full: bool
) -> None:
    """It names the record, its size and the option; waiting, and the brokers, would not help."""
    cluster = FakeCluster(queue_bytes=10, empties_when_full=empties_when_full)
    values, keys = [b"12345"] * before + ["é" * 4], ["k" * 5] * (before + 1)
    batch = pa.record_batch(
        {"value": pa.array(values, pa.binary()), "key": pa.array(keys).dictionary_encode()}
    )
    said = f"topic=out.*row={before} record_bytes=13.*kafka.buffer.memory"
    with pytest.raises(DeliveryError, match=said):
        send(cluster, batch)


def test_where_nothing_is_promised_such_a_record_is_left_out_and_the_others_are_written() -> None:
    """As one that the broker refuses; else the task failed again and again."""
    seen: list[FakeMessage] = []
    cluster = FakeCluster(
        refuse=lambda message: seen.append(message), queue_bytes=10, empties_when_full=True
    )
    batch = pa.record_batch({"value": [b"one", b"x" * 20, b"two"]})
    made = sender(cluster, stops_at_errors=False)
    made.send(batch, RecordColumns.of(batch.schema, "out"))
    assert [message.record_value for message in seen] == [b"one", b"two"]


@pytest.mark.parametrize(("queue_kib", "message_bytes"), [(1023, 1 << 20), (9_764, 10_000_000)])
def test_a_queue_below_the_largest_message_is_refused_by_name(
    queue_kib: int, message_bytes: int
) -> None:
    """Where both are given: it would not take what the other allows."""
    options = {"queue.buffering.max.kbytes": str(queue_kib), "message.max.bytes": message_bytes}
    with pytest.raises(ConfigError, match=re.escape("queue.buffering.max.kbytes")):
        write_settings(TaskMemory(), options)


@pytest.mark.parametrize(
    "options",
    [
        {"queue.buffering.max.kbytes": "512"},
        {"queue.buffering.max.kbytes": "512", "message.max.bytes": "524288"},
        # Java's buffer.memory of as many bytes, in KiB.
        {"queue.buffering.max.kbytes": str(10_000_000 // 1024), "message.max.bytes": "10000000"},
    ],
    ids=["given alone", "equal", "equal before it was rounded"],
)
def test_a_queue_that_may_be_large_enough_is_left_alone(options: dict[str, str]) -> None:
    """Nobody has said that a record may be as large as messages are by default."""
    asked = int(options["queue.buffering.max.kbytes"])
    assert write_settings(TaskMemory(), options).queue_kib == asked


class FullClient(FakeClient):
    """Its brokers take nothing: what is queued stays."""

    looks = 0

    def poll(self, timeout: float) -> int:
        del timeout
        self.looks += 1
        assert self.looks < 1_000, "it waits for ever"
        return 0


def test_a_queue_that_stays_full_is_waited_for_as_long_as_a_record_is_kept() -> None:
    """Then it is said; nobody would wake a task that waits for ever."""
    client = FullClient(FakeCluster(queue_room=2), {})
    full = RecordSender(
        client,
        DeliveryLog(SCOPE),
        queue_full_timeout_s=180.0,
        clock=itertools.count().__next__,  # a second at each look
    )
    rows = pa.record_batch({"value": [b"a", b"b", b"c"]})
    with pytest.raises(UnreachableError, match="stayed full"):
        full.send(rows, RecordColumns.of(rows.schema, "out"))
    assert 180 <= client.looks < 200


def test_a_refused_record_is_told_before_the_rest_of_its_partition_has_timed_out() -> None:
    """The client keeps that back; waiting for it would cost an epoch two minutes."""
    cluster = FakeCluster(refuse=lambda _: kafka_error("MSG_SIZE_TOO_LARGE"), never_confirmed=3)
    cluster.answers_at_flush = True
    client, delivery = FakeClient(cluster, {}), DeliveryLog(SCOPE)
    rows = pa.record_batch({"value": [b"a"]})
    writer = RecordSender(client, delivery, queue_full_timeout_s=1.0)
    writer.send(rows, RecordColumns.of(rows.schema, "out"))
    with pytest.raises(DeliveryError, match="MSG_SIZE_TOO_LARGE"):
        flush(client, delivery, timeout_s=120.0, clock=itertools.count().__next__)
