"""What the checker is fed with: everything committed, nothing else, byte for byte."""

from pathlib import Path

import pytest

from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.kafka.tools.demo.observer import Observer
from sluice.connectors.kafka.tools.verify.topic_history import (
    await_readable,
    read_records,
    topic_ends,
)
from sluice.runtime.checker import Payload, SpilledPrefix
from sluice.runtime.errors import SourceChangedError, UnreachableError
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import (
    Record,
    abandon_transaction,
    await_stable,
    produce,
    produce_transaction,
)
from tests.kit.kafka.topic_histories import read_history
from tests.kit.memory_checker import check, expect
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

PARTITIONS = 2
RECORDS = 600


def connect(kafka: EmbeddedKafka) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=kafka.bootstrap)


def load(topic: str) -> list[Record]:
    payload = Payload(topic=topic, run="r", partitions=PARTITIONS)
    return [
        Record(key=r.key, value=r.value, headers=r.headers, partition=r.partition)
        for r in payload.records(RECORDS)
    ]


def test_a_topic_is_read_whole_and_byte_for_byte(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    """Nulls, empty values and repeated headers arrive as they were sent."""
    name = topic(partitions=PARTITIONS)
    produce(kafka.bootstrap, name, load(name))
    expected = Payload(topic=name, run="r", partitions=PARTITIONS).records(RECORDS)
    found = sorted(read_records(connect(kafka), name))
    assert [r._replace(timestamp_ms=None) for r in found] == sorted(expected)


def test_aborted_records_are_no_part_of_the_history(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """A partition that ends in control records only is read to its end, too."""
    name = topic(partitions=PARTITIONS)
    produce_transaction(kafka.bootstrap, name, load(name))
    produce_transaction(kafka.bootstrap, name, load(name), commit=False)
    await_stable(kafka.bootstrap, name)
    payload = Payload(topic=name, run="r", partitions=PARTITIONS)
    expected = expect(payload.records(RECORDS), lambda record: [record])
    assert check(expected, read_history(connect(kafka), name)).is_clean
    everything = read_history(connect(kafka), name, read_committed=False)
    assert check(expected, everything).duplicated == RECORDS


def test_an_open_transaction_shows_as_readers_held_back(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    name = topic()
    producer = abandon_transaction(kafka.bootstrap, name, [b"a", b"b"])
    ends = topic_ends(connect(kafka), name)
    assert (ends.stable[0], ends.high[0], ends.is_settled) == (0, 2, False)
    with pytest.raises(UnreachableError, match="blocks"):
        await_readable(connect(kafka), name, timeout_s=0.2)
    assert not list(read_records(connect(kafka), name))
    producer.abort_transaction(PATIENCE_S)
    await_readable(connect(kafka), name, timeout_s=PATIENCE_S)
    assert topic_ends(connect(kafka), name).is_settled


def test_a_missing_topic_is_named(kafka: EmbeddedKafka) -> None:
    with pytest.raises(SourceChangedError, match="no-such-topic"):
        list(read_records(connect(kafka), "no-such-topic"))


def test_an_observer_sees_a_prefix_and_when(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic(partitions=PARTITIONS)
    with SpilledPrefix(tmp_path / "seen", buffered_records=RECORDS) as seen:
        with Observer(connect(kafka), name, seen=seen) as observer:
            produce_transaction(kafka.bootstrap, name, load(name))
            first_s = observer.await_total(RECORDS, timeout_s=PATIENCE_S)
            open_one = abandon_transaction(kafka.bootstrap, name, load(name))
            with pytest.raises(UnreachableError):
                observer.await_total(RECORDS + 1, timeout_s=0.2)
            open_one.commit_transaction(PATIENCE_S)
            assert observer.await_total(2 * RECORDS, timeout_s=PATIENCE_S) > first_s
        verdict = seen.check(read_records(connect(kafka), name))
    assert verdict.is_clean
    assert verdict.seen == verdict.final == 2 * RECORDS
    assert sum(sighting.records for sighting in observer.sightings()) == 2 * RECORDS
