"""The Kafka source against a real broker: what it reads, where it starts, gaps."""

import dataclasses
import logging
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.embedded.ports import free_ports
from sluice.runtime.errors import AuthenticationError, DataLostError, UnreachableError
from sluice.runtime.model.splits import SplitRange
from tests.kit.kafka.kafka_fixture import SecureKafka, TopicFactory
from tests.kit.kafka.kafka_records import (
    Record,
    abandon_transaction,
    admin,
    await_stable,
    create_topic,
    end_offsets,
    produce,
    produce_transaction,
    unique,
)
from tests.kit.source.kafka_source_reading import (
    TIMEOUT_S,
    all_rows,
    bounds,
    cut,
    rows,
    source,
    start,
    values,
)
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration


# --- what is read -------------------------------------------------------------------------------


def test_records_are_kept_byte_for_byte(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """Null keys, null and empty values, repeated headers, and timestamps as they were written."""
    name = topic()
    written = [
        Record(value=None, key=b"k", timestamp_ms=1_700_000_000_001),
        Record(value=b"", key=None, timestamp_ms=1_700_000_000_000),
        Record(value=b"\x00\xff\xfe", key=b"", timestamp_ms=1_700_000_000_002),
        Record(
            value=b"v",
            headers=(("h", b"1"), ("h", b"1"), ("g", None), ("h", b"")),
            timestamp_ms=1_700_000_000_003,
        ),
    ]
    produce(kafka.bootstrap, name, written)
    found = all_rows(source(kafka, name, hot_path=hot_path))
    assert [(row["key"], row["value"]) for row in found] == [(r.key, r.value) for r in written]
    assert [row["timestamp"] for row in found] == [
        datetime.fromtimestamp((r.timestamp_ms or 0) / 1000, UTC) for r in written
    ]
    assert [row["headers"] for row in found[:3]] == [None, None, None]
    assert [(h["key"], h["value"]) for h in found[3]["headers"]] == list(written[3].headers)
    assert {row["topic"] for row in found} == {name}
    assert [row["offset"] for row in found] == [0, 1, 2, 3]
    assert {row["timestampType"] for row in found} == {0}


def test_old_records_that_an_output_would_delete_at_once_are_named(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Its retention is shorter than they are old; by the time of arrival they would stay."""
    name = topic(partitions=2, config={"retention.ms": "-1"})
    now_ms = round(time.time() * 1000)
    old = [Record(value=b"old", partition=0, timestamp_ms=now_ms - 864_000_000)] * 3
    produce(kafka.bootstrap, name, [*old, *(Record(value=b"new", partition=p) for p in (0, 1))])
    week = {"retention.ms": "604800000"}
    outputs = [
        topic(config=week),
        topic(config={**week, "message.timestamp.type": "LogAppendTime"}),
        topic(config={"retention.ms": "-1"}),
        unique("missing"),
    ]
    made = source(kafka, name)
    enumerator, positions = start(made)
    enumerator.close()

    def outlived(read: KafkaSource, output: str, splits: tuple[SplitRange, ...]) -> str | None:
        sink = KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=output, transactional_id_prefix=output
        )
        return read.outlived(sink, splits, timeout_s=PATIENCE_S)

    found = [outlived(made, output, positions) for output in outputs]
    text = f"topic={outputs[0]} retention.ms=604800000 partitions=1 ({name}-0[0,3))"
    assert found == [text, None, None, None]
    assert outlived(source(kafka, name, columns=["value"]), outputs[0], positions) is None
    read = tuple(dataclasses.replace(split, end_offset=3) for split in positions)
    assert outlived(made, outputs[0], read) is None


def test_many_records_of_many_partitions_come_once_and_in_order(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """Also when the same process reads epoch after epoch with the same consumer."""
    name, count, partitions = topic(partitions=4), 20_000, 4
    records = [Record(value=b"%d" % n, partition=n % partitions) for n in range(count)]
    produce(kafka.bootstrap, name, records)
    made = source(kafka, name, hot_path=hot_path, columns=["value", "partition", "offset"])
    enumerator, positions = start(made)
    found: list[dict[str, Any]] = []
    for _ in range(50):
        positions = cut(enumerator, positions, most=3_000)
        found += rows(made, positions)
        if len(found) >= count:
            break
    assert sorted(int(row["value"]) for row in found) == list(range(count))
    for number in range(partitions):
        mine = [row for row in found if row["partition"] == number]
        assert [row["offset"] for row in mine] == list(range(len(mine)))


def test_a_reader_that_is_given_up_leaves_a_sound_consumer(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """What was fetched for one read never shows up in the next one of this process."""
    name = topic(partitions=2)
    produce(kafka.bootstrap, name, [Record(value=b"%d" % n, partition=n % 2) for n in range(4_000)])
    made = source(kafka, name, hot_path=hot_path, columns=["value"])
    enumerator, positions = start(made)
    whole = cut(enumerator, positions)
    part = cut(enumerator, positions, most=10)
    for _ in range(5):
        given_up = made.reader().read(whole)
        next(given_up)
        del given_up
        assert sorted(int(row["value"]) for row in rows(made, part)) == list(range(10))
        assert len(rows(made, whole)) == 4_000


def test_two_topics_in_one_read_are_kept_apart(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    first, second = topic(), topic(partitions=2)
    produce(kafka.bootstrap, first, [b"a"])
    produce(kafka.bootstrap, second, [Record(value=b"b", partition=1)])
    made = KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[first, second], hot_path=hot_path)
    found = {(r["topic"], r["partition"], r["offset"], r["value"]) for r in all_rows(made)}
    assert found == {(first, 0, 0, b"a"), (second, 1, 0, b"b")}


def test_large_records_come_in_small_batches(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    name, size = topic(), 700_000
    produce(kafka.bootstrap, name, [bytes([n]) * size for n in range(60)])
    made = source(kafka, name, hot_path=hot_path, columns=["value"])
    enumerator, positions = start(made)
    batches = list(made.reader().read(cut(enumerator, positions)))
    assert [row[0] for batch in batches for row in batch.column(0).to_pylist()] == list(range(60))
    assert max(batch.nbytes for batch in batches[1:]) <= 24 * size + 4096


def test_two_ranges_of_one_partition_are_both_read(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    name = topic()
    produce(kafka.bootstrap, name, [b"%d" % n for n in range(10)])
    made = source(kafka, name, hot_path=hot_path)
    _, (whole,) = start(made)
    parts = [
        SplitRange(
            source_id="s",
            topic=name,
            topic_id=whole.topic_id,
            partition=0,
            start_offset=a,
            end_offset=b,
        )
        for a, b in ((0, 4), (4, 4), (4, 7))
    ]
    assert values(rows(made, parts)) == [b"%d" % n for n in range(7)]


# --- where it starts ----------------------------------------------------------------------------


def test_every_kind_of_start(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    """Rule `start-offsets-once`: earliest, latest, committed, timestamp and specific, each as
    numbers."""
    name, group = topic(partitions=2), unique("group")
    produce(
        kafka.bootstrap,
        name,
        [Record(value=b"%d" % n, partition=0, timestamp_ms=1_000_000 + n) for n in range(10)]
        + [Record(value=b"x", partition=1, timestamp_ms=1_000_007)],
    )
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(name, 0, 6)])
    client = admin(kafka.bootstrap)

    def is_committed() -> bool:
        client.alter_consumer_group_offsets([request])[group].result(120)
        asked = ConsumerGroupTopicPartitions(group)
        found = client.list_consumer_group_offsets([asked])[group].result(120)
        return [partition.offset for partition in found.topic_partitions] == [6]

    wait_for(is_committed, what="the group's offset")

    def starts(**arguments: Any) -> dict[int, int]:
        return {
            split.partition: split.end_offset
            for split in start(source(kafka, name, **arguments))[1]
        }

    assert starts() == {0: 0, 1: 0}
    assert starts(starting_offsets="latest") == {0: 10, 1: 1}
    assert starts(starting_offsets="committed", group_id=group) == {0: 6, 1: 0}
    moment = datetime.fromtimestamp(1_000.004, UTC)
    assert starts(starting_offsets=moment) == {0: 4, 1: 0}
    assert starts(starting_offsets={name: {0: 3, 1: -1}}) == {0: 3, 1: 1}
    assert starts(partitions={name: [1]}) == {1: 0}


def test_latest_records_between_start_and_first_cut_are_read(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Rule `start-offsets-once`: resolved once, so that nothing between start and first barrier is
    skipped."""
    name = topic()
    produce(kafka.bootstrap, name, [b"old"])
    made = source(kafka, name, starting_offsets="latest")
    enumerator, positions = start(made)
    produce(kafka.bootstrap, name, [b"new"])
    assert values(rows(made, cut(enumerator, positions))) == [b"new"]


# --- gaps (`read-committed-end`)
# -----------------------------------------------------------------------------


def test_cut_is_at_the_end_that_committed_readers_see(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Rule `read-committed-end`: an open transaction is not cut into; what it held comes when it
    is committed."""
    name = topic()
    produce(kafka.bootstrap, name, [b"before"])
    open_producer = abandon_transaction(kafka.bootstrap, name, [b"held", b"held"])
    produce(kafka.bootstrap, name, [b"behind"])
    made = source(kafka, name)
    enumerator, positions = start(made)
    first = cut(enumerator, positions)
    assert bounds(first) == {0: (0, 1)}
    assert values(rows(made, first)) == [b"before"]
    open_producer.commit_transaction(PATIENCE_S)
    await_stable(kafka.bootstrap, name)
    assert values(rows(made, cut(enumerator, first))) == [b"held", b"held", b"behind"]


def test_a_start_behind_an_open_transaction_is_no_loss(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Rule `read-committed-end`: other tools' offsets are ends of logs. Nothing before the start
    is read, nor told to be lost; a bounded run would judge it within seconds."""
    name = topic()
    produce(kafka.bootstrap, name, [b"before"])
    open_producer = abandon_transaction(kafka.bootstrap, name, [b"held", b"held"])
    produce(kafka.bootstrap, name, [b"behind"])
    ending = source(kafka, name, starting_offsets={name: {0: 4}}, bounded=True)
    enumerator, positions = start(ending)
    nothing = cut(enumerator, positions)
    assert bounds(nothing) == {0: (4, 4)}
    assert enumerator.is_finished(nothing)
    made = source(kafka, name, starting_offsets={name: {0: 4}})
    enumerator, positions = start(made)
    first = cut(enumerator, positions)
    assert bounds(first) == {0: (4, 4)}
    produce(kafka.bootstrap, name, [b"new"])
    open_producer.commit_transaction(PATIENCE_S)
    await_stable(kafka.bootstrap, name)
    assert values(rows(made, cut(enumerator, first))) == [b"new"]
    beyond, positions = start(source(kafka, name, starting_offsets={name: {0: 9}}, bounded=True))
    with pytest.raises(DataLostError, match=r"-0\[6,9\)"):
        cut(beyond, positions)


def test_a_timestamp_behind_an_open_transaction_is_found(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Rule `read-committed-end`: a broker tells committed readers of no record there. What is
    older is read all the same before the read ends, and a start there is no other one."""
    name = topic()
    produce(kafka.bootstrap, name, [Record(value=b"before", timestamp_ms=1_000_000)])
    held = [Record(value=b"held", timestamp_ms=1_000_001)]
    open_producer = abandon_transaction(kafka.bootstrap, name, held)
    behind = {b"older": 1_000_002, b"as young": 1_000_010}
    produce(kafka.bootstrap, name, [Record(value=v, timestamp_ms=t) for v, t in behind.items()])
    moment = datetime.fromtimestamp(1_000.010, UTC)
    assert bounds(start(source(kafka, name, starting_offsets=moment))[1]) == {0: (3, 3)}
    ending = source(kafka, name, bounded=True, options={"endingTimestamp": "1000010"})
    enumerator, positions = start(ending)
    first = cut(enumerator, positions)
    assert bounds(first) == {0: (0, 1)}
    assert not enumerator.is_finished(first)
    open_producer.commit_transaction(PATIENCE_S)
    await_stable(kafka.bootstrap, name)
    last = cut(enumerator, first)
    assert values(rows(ending, last)) == [b"held", b"older"]
    assert enumerator.is_finished(last)


def test_range_ending_in_markers_and_aborted_records_ends(
    kafka: EmbeddedKafka, topic: TopicFactory, hot_path: str
) -> None:
    """Rule `read-committed-end`: no message reaches the end of such a range; a loop that counts
    would spin."""
    name = topic()
    produce_transaction(kafka.bootstrap, name, [b"a", b"b"])
    produce_transaction(kafka.bootstrap, name, [b"x"] * 50, commit=False)
    end = await_stable(kafka.bootstrap, name)[0]
    made = source(kafka, name, hot_path=hot_path)
    enumerator, positions = start(made)
    whole = cut(enumerator, positions)
    assert bounds(whole) == {0: (0, end)}
    assert end == 2 + 1 + 50 + 1
    assert values(rows(made, whole)) == [b"a", b"b"]
    # Ranges that hold nothing but what nobody reads: a marker, aborted records, both.
    for most in (1, 20, 1_000):
        enumerator, positions = start(
            source(kafka, name, hot_path=hot_path, starting_offsets={name: {0: 2}})
        )
        part = cut(enumerator, positions, most=most)
        assert bounds(part) == {0: (2, min(2 + most, end))}
        assert rows(made, part) == []
    # And with more behind it, so that the partition's end is far away.
    produce_transaction(kafka.bootstrap, name, [b"c"])
    assert values(rows(made, whole)) == [b"a", b"b"]


def test_gaps_of_compaction_are_passed(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    """Rule `read-committed-end`: progress is the next position, also where the last records of a
    range are gone."""
    name = topic(
        config={
            "cleanup.policy": "compact",
            "segment.bytes": "1048576",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.001",
            "max.compaction.lag.ms": "100",
        }
    )
    for n in range(20):
        produce(kafka.bootstrap, name, [Record(key=b"same", value=b"%d" % n)])
    made = source(kafka, name)
    enumerator, positions = start(made)
    early = cut(enumerator, positions, most=10)
    assert bounds(early) == {0: (0, 10)}

    # A new segment makes the old one cleanable.
    def kept() -> list[dict[str, Any]]:
        produce(kafka.bootstrap, name, [Record(key=b"other", value=b"o")])
        return rows(made, early)

    assert wait_for(lambda: kept() == [], poll_s=1.0, what="compaction")
    last = end_offsets(kafka.bootstrap, name)[0]
    again = cut(enumerator, positions)
    assert bounds(again) == {0: (0, last)}
    assert b"19" in values(rows(made, again))


# --- around it ----------------------------------------------------------------------------------


def test_group_offsets_are_published_for_lag_tools(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    name, group = topic(), unique("group")
    produce(kafka.bootstrap, name, [b"a", b"b"])
    enumerator, positions = start(source(kafka, name, group_id=group))
    enumerator.committed(cut(enumerator, positions))
    request = ConsumerGroupTopicPartitions(group)
    client = admin(kafka.bootstrap)
    answer = client.list_consumer_group_offsets([request])[group].result(120)
    assert [(p.topic, p.partition, p.offset) for p in answer.topic_partitions] == [(name, 0, 2)]


def test_facts_of_a_check_name_the_cluster(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    assert source(kafka, topic()).check(timeout_s=TIMEOUT_S)["cluster_id"] == (
        admin(kafka.bootstrap).list_topics(timeout=120).cluster_id
    )


@pytest.mark.parametrize(
    ("bounded", "then"), [(True, "ends at once"), (False, "Discovery continues")]
)
def test_a_pattern_that_no_topic_matches_is_told_at_the_start(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture, *, bounded: bool, then: str
) -> None:
    """It is no error, for a topic may come; a run that ends with nothing is most often one."""
    pattern = "no-topic-of-any-test-.*"
    made = KafkaSource(bootstrap_servers=kafka.bootstrap, pattern=pattern, bounded=bounded)
    assert made.check(timeout_s=TIMEOUT_S)["partitions"] == "0"
    (line,) = [each.getMessage() for each in caplog.records if "has no partitions" in each.msg]
    assert pattern in line
    assert then in line


def test_unreachable_brokers_are_an_error_in_time() -> None:
    (closed,) = free_ports(1)
    made = KafkaSource(
        bootstrap_servers=f"127.0.0.1:{closed}",
        topics=["t"],
        options={"kafkaConsumer.pollTimeoutMs": "1000"},
    )
    before_s = time.monotonic()
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1"):
        made.check(timeout_s=2)
    ghost = SplitRange(
        source_id="s", topic="t", topic_id="x", partition=0, start_offset=0, end_offset=5
    )
    with pytest.raises(UnreachableError, match=r"t-0\[0,5\)"):
        rows(made, [ghost])
    assert time.monotonic() - before_s < 300


def test_range_that_readers_may_not_see_fails_instead_of_ending_short(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Rule `read-committed-end`: an end is reached, or the read fails in time; it never spins or
    stops early."""
    name = topic()
    produce(kafka.bootstrap, name, [b"a"])
    producer = abandon_transaction(kafka.bootstrap, name, [b"b"])
    made = source(kafka, name, options={"kafkaConsumer.pollTimeoutMs": "1000"})
    _, (whole,) = start(made)
    with pytest.raises(UnreachableError, match=r"-0\[0,2\)"):
        rows(made, [dataclasses.replace(whole, end_offset=2)])
    producer.commit_transaction(PATIENCE_S)
    await_stable(kafka.bootstrap, name)
    patient = source(kafka, name)
    assert values(rows(patient, [dataclasses.replace(whole, end_offset=2)])) == [b"a", b"b"]


def secure_source(
    secure_kafka: SecureKafka, name: str, password: str, hot_path: str
) -> KafkaSource:
    return KafkaSource(
        bootstrap_servers=secure_kafka.bootstrap,
        topics=[name],
        options={
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.username": secure_kafka.username,
            "kafka.sasl.password": password,
            "kafka.ssl.ca.location": str(secure_kafka.ca_file),
            "kafka.debug": "security,conf",
        },
        hot_path=hot_path,
    )


@pytest.mark.parametrize(
    "hot_path",
    ["native", pytest.param("plain", marks=pytest.mark.extended)],
    indirect=True,
)
def test_reads_over_sasl_ssl_and_refuses_a_wrong_password(
    secure_kafka: SecureKafka,
    hot_path: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And shows no password, however much is logged."""
    monkeypatch.setattr("sluice.connectors.kafka.client.login_refusals.LASTING_S", 2.0)
    caplog.set_level(logging.DEBUG)
    name = create_topic(secure_kafka.plain_bootstrap)
    produce(secure_kafka.plain_bootstrap, name, [b"secret"])
    made = secure_source(secure_kafka, name, secure_kafka.password, hot_path)
    enumerator, positions = start(made)
    ranges = cut(enumerator, positions)
    assert values(rows(made, ranges)) == [b"secret"]
    monkeypatch.setattr(
        "sluice.connectors.kafka.source.reader.consumers._LEARN_S", 1.0
    )  # nobody answers
    monkeypatch.setattr("sluice.connectors.kafka.source.enumerator.discovery._ATTEMPT_S", 1.0)
    wrong = secure_source(secure_kafka, name, "canary-9917", hot_path)
    for act in (lambda: wrong.check(timeout_s=120), lambda: rows(wrong, ranges)):
        with pytest.raises(AuthenticationError) as caught:
            act()
        assert "canary-9917" not in str(caught.value)
    assert "SASL" in caplog.text
    assert "canary-9917" not in caplog.text
