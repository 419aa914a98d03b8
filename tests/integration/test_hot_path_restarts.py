"""Partitions that stop and begin again while their records are in flight; on both paths.

The loss that this excludes: records of an assignment that is over, or that came in between, are
taken for what follows the new position, or are dropped where nobody looks. An earlier native path
forwarded partitions to a queue of its own; librdkafka undoes that when it stops a partition, and
records that came before it was renewed lay in another queue and were never read. Here records come
out of the consumer's own queue alone, by the call that ``consume()`` makes, which leaves outdated
ones out by their version. So after each restart the first record is that of the new position, the
next ones follow without a gap, and the other partitions lose none.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest

from sluice.connectors.kafka.client.client_tuning import HotPath, read_settings
from sluice.connectors.kafka.client.confluent import PARTITION_EOF, TopicPartition
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.native.native_consumer import NativeConsumer
from sluice.connectors.kafka.records.columns import ColumnBuilder, columns_with
from sluice.connectors.kafka.source.reader.consumers import ConsumerPool, PooledConsumer
from sluice.connectors.kafka.source.reader.fetching import Fetcher
from sluice.connectors.kafka.source.reader.range_reader import fetcher_of
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.model.task_memory import TaskMemory
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, await_stable, produce, produce_transaction
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.integration

PARTITIONS = 3
RECORDS = 12_000  # of each partition: more than a batch, so that much is in flight


@dataclass
class Stream:
    """What one partition has given since it began; asserts that nothing is missing."""

    offsets: Sequence[int]  # all that can come
    at: int = 0
    seen: int = 0

    def restart(self, offset: int) -> None:
        self.at = next(i for i, each in enumerate(self.offsets) if each >= offset)
        self.seen = 0

    def take(self, offsets: Sequence[int]) -> None:
        assert list(offsets) == list(self.offsets[self.at : self.at + len(offsets)])
        self.at += len(offsets)
        self.seen += len(offsets)


@dataclass
class Reader:
    """A consumer and its fetcher as the reader has them, and what each slot must give."""

    pooled: PooledConsumer
    topic: str
    streams: list[Stream]
    batch_bytes: int = 16 << 20
    ended: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        keys = [(self.topic, slot) for slot in range(len(self.streams))]
        builder = ColumnBuilder(columns_with(headers=True), keys)
        self.fetcher: Fetcher = fetcher_of(self.pooled, keys, builder, batch_bytes=self.batch_bytes)
        self.pooled.consumer.assign([TopicPartition(*key, 0) for key in keys])

    def restart(self, slot: int, offset: int) -> None:
        """As the reader does after a loss, or where a partition is not there for a while."""
        self.fetcher.forget(slot)
        self.pooled.consumer.incremental_unassign([TopicPartition(self.topic, slot)])
        self.pooled.consumer.incremental_assign([TopicPartition(self.topic, slot, offset)])
        self.streams[slot].restart(offset)
        self.ended.discard(slot)

    def fetch(self, most: int) -> int:
        fetched = self.fetcher.fetch(most, 0.02)
        if fetched is None:
            return 0
        try:
            batch = fetched.batch(None)
            batch.validate(full=True)
            for slot, stream in enumerate(self.streams):
                stream.take(fetched.offsets[fetched.slots == slot].tolist())
            for event in fetched.events:
                assert event.error.code() == PARTITION_EOF, event.error
                assert event.slot is not None
                self.ended.add(event.slot)
            return batch.num_rows
        finally:
            fetched.close()


@pytest.fixture
def pooled(kafka: EmbeddedKafka, hot_path: str) -> Iterator[PooledConsumer]:
    pool = ConsumerPool()
    found = pool.borrow(
        KafkaConnection(bootstrap_servers=kafka.bootstrap),
        read_committed=True,
        settings=read_settings(TaskMemory(), {}),
        follows=True,
        hot_path=HotPath(hot_path),
    )
    assert isinstance(found.consumer, NativeConsumer) == (hot_path == "native")
    yield found
    pool.discard(found)


def _gapped(kafka: EmbeddedKafka, name: str) -> list[Stream]:
    """Partitions with committed records, aborted ones and markers between them."""
    expected: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for round_ in range(4):
        records = [
            Record(value=b"%d" % n, partition=n % PARTITIONS)
            for n in range(RECORDS * PARTITIONS // 4)
        ]
        before = await_stable(kafka.bootstrap, name)
        committed = round_ % 2 == 0
        produce_transaction(kafka.bootstrap, name, records, commit=committed)
        for slot in range(PARTITIONS) if committed else ():
            first = before[slot]
            expected[slot] += range(first, first + RECORDS // 4)
    return [Stream(offsets) for offsets in expected]


def test_read_committed_end_a_partition_that_begins_again_elsewhere_loses_and_doubles_nothing(
    kafka: EmbeddedKafka, topic: TopicFactory, pooled: PooledConsumer
) -> None:
    """Sixty times, forward and back, among aborted records and markers, with all queues full."""
    chance = random.Random(20_261_122)
    name = topic(partitions=PARTITIONS)
    reader = Reader(pooled, name, _gapped(kafka, name))
    wait_for(lambda: reader.fetch(10), what="the first records", poll_s=0)
    for _ in range(60):
        slot = chance.randrange(PARTITIONS)
        reader.restart(slot, chance.choice(reader.streams[slot].offsets))
        for _ in range(chance.randrange(4)):
            reader.fetch(chance.choice([1, 7, 500, 10_000]))
    # Whatever is under way still, each partition continues to its end.
    wait_for(
        lambda: reader.fetch(10_000) == 0 and len(reader.ended) == PARTITIONS,
        what="all ends",
        poll_s=0,
    )
    for stream in reader.streams:
        assert stream.at == len(stream.offsets)


@pytest.mark.parametrize(
    "hot_path",
    ["native", pytest.param("plain", marks=pytest.mark.extended)],  # which takes nothing ahead
    indirect=True,
)
def test_read_committed_end_what_was_taken_ahead_of_a_restart_is_let_go(
    kafka: EmbeddedKafka, topic: TopicFactory, pooled: PooledConsumer
) -> None:
    chance = random.Random(20_261_123)
    name = topic(partitions=2)
    produce(
        kafka.bootstrap, name, [Record(value=b"x" * 100, partition=n % 2) for n in range(4_000)]
    )
    reader = Reader(pooled, name, [Stream(range(2_000)) for _ in range(2)], batch_bytes=2_000)
    wait_for(lambda: reader.fetch(500), what="the first records", poll_s=0)
    for _ in range(10):  # each waits for half a second
        reader.restart(0, chance.randrange(2_000))
        wait_for(lambda: reader.fetch(500) and reader.streams[0].seen, what="records", poll_s=0)
    wait_for(lambda: reader.fetch(500) == 0 and len(reader.ended) == 2, what="both ends", poll_s=0)
    assert [stream.at for stream in reader.streams] == [2_000, 2_000]


def test_a_consumer_is_used_again_and_nothing_of_the_last_read_is_left(
    kafka: EmbeddedKafka, topic: TopicFactory, pooled: PooledConsumer
) -> None:
    """A pooled consumer keeps what it has fetched; its next read must not see it."""
    name = topic(partitions=PARTITIONS)
    streams = _gapped(kafka, name)
    for start in (0, 3, 1):
        reader = Reader(pooled, name, streams)
        for stream in streams:
            stream.restart(0)
        reader.restart(2, streams[2].offsets[start])
        wait_for(partial(_all_began, reader), what="records of all", poll_s=0)
        reader.fetcher.close()
        pooled.consumer.unassign()


def _all_began(reader: Reader) -> bool:
    reader.fetch(500)
    return all(stream.seen for stream in reader.streams)
