"""A follower continues in the log that it has read, or says that it is another one.

By librdkafka's own mock cluster, whose leaders change as they are reported.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition

from sluice.connectors.kafka.client.client_tuning import HotPath
from sluice.connectors.kafka.client.confluent import LOG_TRUNCATION
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.client.retry import Deadline
from sluice.connectors.kafka.records.columns import ColumnBuilder
from sluice.connectors.kafka.source.reader.consumers import PooledConsumer, process_pool
from sluice.connectors.kafka.source.reader.fetching import Fetcher
from sluice.connectors.kafka.source.reader.range_reader import KafkaSplitReader, fetcher_of
from sluice.connectors.kafka.source.reader.seek import seek_with_retries
from sluice.connectors.kafka.source.reader.streaming_reader import (
    KafkaRecordStream,
    KafkaStreamingReader,
)
from sluice.runtime.contracts import RecordsRead
from sluice.runtime.errors import UnreachableError
from sluice.runtime.model.splits import SplitRange
from tests.kit.kafka.mock_cluster import MockCluster
from tests.kit.waiting import wait_for

_TOPIC = "orders"
_FETCH = 1  # of the protocol's requests
_OUT_OF_RANGE: int = KafkaError.OFFSET_OUT_OF_RANGE


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    """Three records of a first leader, seven of a second one after them."""
    with MockCluster.running(2) as made:
        made.make_topic(_TOPIC)
        made.lead(_TOPIC, 1)
        produce(made, b"first", 3)
        made.lead(_TOPIC, 2)
        produce(made, b"second", 7)
        yield made


def produce(cluster: MockCluster, value: bytes, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for _ in range(count):
        producer.produce(_TOPIC, value, partition=0)
    assert producer.flush(60) == 0


def reader(cluster: MockCluster, hot_path: str) -> KafkaSplitReader:
    return KafkaSplitReader(
        connection=KafkaConnection(bootstrap_servers=cluster.bootstrap),
        columns=("value",),
        read_committed=False,
        hot_path=HotPath(hot_path),
    )


def split(start: int) -> SplitRange:
    return SplitRange(
        source_id="s",
        topic=_TOPIC,
        topic_id="id",
        partition=0,
        start_offset=start,
        end_offset=start,
    )


def borrowed(cluster: MockCluster, hot_path: str) -> PooledConsumer:
    asked = reader(cluster, hot_path)
    return process_pool.borrow(
        asked.connection,
        read_committed=False,
        settings=asked.settings,
        follows=True,
        hot_path=asked.hot_path,
    )


def followed(follower: KafkaRecordStream, count: int) -> list[bytes]:
    found: list[bytes] = []

    def has_come() -> bool:
        batch = follower.poll()
        found.extend([] if batch is None else batch.column("value").to_pylist())
        return len(found) >= count

    wait_for(has_come, poll_s=0.01)
    return found


def test_nothing_is_read_of_another_log_after_an_assignment(
    cluster: MockCluster, hot_path: str
) -> None:
    pooled = borrowed(cluster, hot_path)
    consumer, place = pooled.consumer, TopicPartition(_TOPIC, 0, 5, leader_epoch=1)
    keys = [(_TOPIC, 0)]
    fetcher = fetcher_of(pooled, keys, ColumnBuilder(("value",), keys), batch_bytes=1 << 20)
    for turn in range(6):
        consumer.incremental_assign([place])
        if turn == 0:
            # Metadata may arrive before a seek. librdkafka then checks the log by itself, ends the
            # partition's fetch, and refuses each seek.
            consumer.list_topics(_TOPIC, 60.0)
            expect_truncation(fetcher)
            assert not seek_with_retries(consumer, place, deadline=Deadline(0.0))
        else:
            assert seek_with_retries(consumer, place, deadline=Deadline(60.0))
            expect_truncation(fetcher)
        fetcher.forget(0)
        consumer.incremental_unassign([place])
    fetcher.close()
    process_pool.discard(pooled)


def expect_truncation(fetcher: Fetcher) -> None:
    """The first that comes is the report of another log, without a record."""
    found = wait_for(lambda: fetcher.fetch(100, 0.1), poll_s=0.001)
    assert found is not None
    assert not len(found.slots)
    assert LOG_TRUNCATION in found.events[0].error.str()
    found.close()


def test_a_follower_whose_position_was_refused_finds_another_log(
    cluster: MockCluster, hot_path: str
) -> None:
    """It has grown again, beyond the position: what lies before that would never be read."""
    follower = KafkaStreamingReader(reader=reader(cluster, hot_path)).follow([split(0)], None)
    followed(follower, 10)
    made = follower._reading  # noqa: SLF001 - a log that was longer the mock cannot play
    made._read[0] = RecordsRead(10, 1)  # noqa: SLF001 - by the first leader, whose log ends at 3
    cluster.answer(_FETCH, _OUT_OF_RANGE)
    produce(cluster, b"third", 5)
    with pytest.raises(UnreachableError, match=r"lacks records.*orders-0"):
        followed(follower, 5)
    follower.close()


def test_a_follower_whose_position_was_refused_continues_in_the_same_log(
    cluster: MockCluster, hot_path: str
) -> None:
    follower = KafkaStreamingReader(reader=reader(cluster, hot_path)).follow([split(0)], None)
    assert followed(follower, 10) == [b"first"] * 3 + [b"second"] * 7
    cluster.answer(_FETCH, _OUT_OF_RANGE)
    produce(cluster, b"third", 5)
    assert followed(follower, 5) == [b"third"] * 5
    follower.restart_at([replace(split(0), start_offset=15, end_offset=15)])
    produce(cluster, b"fourth", 2)
    assert followed(follower, 2) == [b"fourth"] * 2
    follower.close()
