"""Topics that change behind a Kafka source: records lost, topics made again, partitions added."""

import pytest
from confluent_kafka import TopicPartition

from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import DataLostError, SourceChangedError
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import (
    Record,
    add_partitions,
    admin,
    await_stable,
    create_topic,
    delete_topic,
    produce,
    produce_transaction,
    unique,
)
from tests.kit.source.kafka_source_reading import (
    TIMEOUT_S,
    bounds,
    cut,
    rows,
    source,
    start,
    values,
)
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration


# --- losses -------------------------------------------------------------------------------------


def delete_records(kafka: EmbeddedKafka, topic: str, before: int) -> None:
    client = admin(kafka.bootstrap)
    for future in client.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result(PATIENCE_S)


def test_retention_before_the_cut_stops_with_the_exact_range(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka.bootstrap, name, [b"%d" % n for n in range(10)])
    made = source(kafka, name)
    enumerator, positions = start(made)
    delete_records(kafka, name, 4)
    with pytest.raises(DataLostError) as caught:
        cut(enumerator, positions)
    assert f"{name}-0[0,4)" in str(caught.value)
    with pytest.raises(DataLostError):
        made.enumerator("s").restore(positions, timeout_s=TIMEOUT_S)


def test_retention_between_cut_and_read_stops_with_the_exact_range(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Never another position instead: the reader reports what is gone."""
    name = topic()
    produce(kafka.bootstrap, name, [b"%d" % n for n in range(10)])
    made = source(kafka, name)
    enumerator, positions = start(made)
    ranges = cut(enumerator, positions)
    delete_records(kafka, name, 6)
    with pytest.raises(DataLostError) as caught:
        rows(made, ranges)
    assert f"{name}-0[0,6)" in str(caught.value)
    delete_records(kafka, name, 10)
    with pytest.raises(DataLostError) as caught:
        rows(made, ranges)
    assert f"{name}-0[0,10)" in str(caught.value)


def test_loss_is_passed_over_where_allowed(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    name = topic()
    produce(kafka.bootstrap, name, [b"%d" % n for n in range(10)])
    made = source(kafka, name, hot_path=hot_path, options={"failOnDataLoss": "false"})
    enumerator, positions = start(made)
    ranges = cut(enumerator, positions)
    delete_records(kafka, name, 6)
    assert values(rows(made, ranges)) == [b"6", b"7", b"8", b"9"]
    assert bounds(cut(enumerator, positions)) == {0: (6, 10)}
    delete_records(kafka, name, 10)
    assert rows(made, ranges) == []


# --- changes ------------------------------------------------------------------------------------


def test_recreated_topic_stops_with_both_ids(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka.bootstrap, name, [b"old"])
    made = source(kafka, name)
    enumerator, positions = start(made)
    position = cut(enumerator, positions)
    delete_topic(kafka.bootstrap, name)
    create_topic(kafka.bootstrap, name)
    produce(kafka.bootstrap, name, [b"new"] * 5)
    (new,) = start(made)[1]
    assert new.topic_id != position[0].topic_id
    for act in (
        lambda: cut(enumerator, position),
        lambda: made.enumerator("s").restore(position, timeout_s=TIMEOUT_S),
    ):
        with pytest.raises(SourceChangedError) as caught:
            act()
        assert position[0].topic_id in str(caught.value)
        assert new.topic_id in str(caught.value)


def test_deleted_topic_stops_and_a_missing_one_is_named(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    name = topic()
    enumerator, positions = start(source(kafka, name))
    delete_topic(kafka.bootstrap, name)
    with pytest.raises(SourceChangedError, match=name):
        cut(enumerator, positions)
    with pytest.raises(SourceChangedError, match="no-such-topic"):
        source(kafka, "no-such-topic").check(timeout_s=TIMEOUT_S)


def test_added_partitions_are_read_from_their_first_record(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    name = topic()
    made = source(kafka, name, starting_offsets="latest")
    enumerator, positions = start(made)
    add_partitions(kafka.bootstrap, name, total=3)
    produce(kafka.bootstrap, name, [Record(value=b"first", partition=2)])
    new = wait_for(lambda: enumerator.discover(timeout_s=TIMEOUT_S), what="new partitions")
    assert bounds(new) == {1: (0, 0), 2: (0, 0)}
    assert values(rows(made, cut(enumerator, (*positions, *new)))) == [b"first"]


def test_new_topic_of_a_pattern_is_read_from_its_first_record(kafka: EmbeddedKafka) -> None:
    prefix = unique("pattern")
    create_topic(kafka.bootstrap, f"{prefix}-a")
    made = source(kafka, "", pattern=f"{prefix}-.*", starting_offsets="latest")
    enumerator, positions = start(made)
    assert [split.topic for split in positions] == [f"{prefix}-a"]
    create_topic(kafka.bootstrap, f"{prefix}-b")
    produce(kafka.bootstrap, f"{prefix}-b", [b"first"])
    new = wait_for(lambda: enumerator.discover(timeout_s=TIMEOUT_S), what="the new topic")
    assert values(rows(made, cut(enumerator, (*positions, *new)))) == [b"first"]


def test_a_topic_that_a_wider_pattern_takes_in_is_read_from_what_it_holds(
    kafka: EmbeddedKafka,
) -> None:
    """What it lost before the pattern was widened nobody has asked for."""
    prefix = unique("pattern")
    for name in ("a", "b"):
        create_topic(kafka.bootstrap, f"{prefix}-{name}")
        produce(kafka.bootstrap, f"{prefix}-{name}", [b"%d" % n for n in range(10)])
    delete_records(kafka, f"{prefix}-b", 6)
    enumerator, positions = start(source(kafka, "", pattern=f"{prefix}-a"))
    read = cut(enumerator, positions)
    made = source(kafka, "", pattern=f"{prefix}-[ab]")
    wider = made.enumerator("s")
    wider.restore(read, timeout_s=TIMEOUT_S)
    new = wider.discover(timeout_s=TIMEOUT_S)
    assert bounds(new) == {0: (6, 6)}
    assert values(rows(made, cut(wider, (*read, *new)))) == [b"6", b"7", b"8", b"9"]


def test_bounded_source_is_finished_at_the_end_it_found(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    name = topic()
    produce_transaction(kafka.bootstrap, name, [b"a", b"b"])
    end = await_stable(kafka.bootstrap, name)[0]
    made = source(kafka, name, bounded=True)
    enumerator, positions = start(made)
    produce(kafka.bootstrap, name, [b"late"])
    position = cut(enumerator, positions, most=1)
    assert not enumerator.is_finished(position)
    position = cut(enumerator, position)
    assert bounds(position) == {0: (1, end)}
    assert enumerator.is_finished(position)
    assert all(split.is_empty for split in cut(enumerator, position))
