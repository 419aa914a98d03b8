"""``format("sluice-kafka")`` as a source, in Spark: ``read`` and ``readStream`` end to end."""

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery

from sluice.connectors.kafka.kafka_drop_in_source import KafkaSourceFormat, KafkaStreamReader
from sluice.connectors.kafka.records.columns import columns_with
from sluice.connectors.kafka.source.source_options import SourceOptions
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import ConfigError, SourceChangedError
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
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.integration

QUERY_S = 600


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """The session with the reading half of the format."""
    spark.dataSource.register(KafkaSourceFormat)
    return spark


class Collected:
    """Rows that a query's batches brought, by batch id; a batch that runs again is replaced."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Any]] = {}
        self.fail_at: int | None = None
        self._lock = threading.Lock()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.collect()
        with self._lock:
            self.batches[batch_id] = rows
        if batch_id == self.fail_at:
            raise RuntimeError("told to fail")

    def values(self) -> list[Any]:
        with self._lock:
            return [bytes(r.value) for _, rows in sorted(self.batches.items()) for r in rows]


def options(kafka: EmbeddedKafka, topic: str, **more: str) -> dict[str, str]:
    named = {} if "subscribePattern" in more or "assign" in more else {"subscribe": topic}
    return {"kafka.bootstrap.servers": kafka.bootstrap, **named, **more}


def run(
    session: SparkSession,
    given: dict[str, str],
    sink: Collected,
    location: Path,
    **trigger: Any,
) -> StreamingQuery:
    frame = session.readStream.format("sluice-kafka").options(**given).load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(location))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def finish(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(QUERY_S), "the query did not end by itself"
    finally:
        query.stop()


def logged(location: Path, batch: int) -> dict[str, Any]:
    """The source's offset in Spark's log."""
    for line in (location / "offsets" / str(batch)).read_text().splitlines():
        if '"splits"' in line:
            found: dict[str, Any] = json.loads(line)
            # Offset log version 2 wraps the offset under the source's name.
            while "splits" not in found:
                found = next(v for v in found.values() if isinstance(v, dict))
            return found
    raise AssertionError(f"no offset of ours in batch {batch}")


# --- batch --------------------------------------------------------------------------------------


def test_batch_read_has_sparks_columns_and_every_record(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    name = topic(partitions=3)
    produce(
        kafka.bootstrap,
        name,
        [Record(key=b"%d" % n, value=b"v%d" % n, partition=n % 3) for n in range(300)],
    )
    produce(kafka.bootstrap, name, [Record(value=None, partition=0, headers=(("h", b"1"),))])
    frame = (
        session.read.format("sluice-kafka")
        .options(**options(kafka, name, includeHeaders="true"))
        .load()
    )
    assert [(f.name, f.dataType.simpleString()) for f in frame.schema.fields] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    rows = frame.collect()
    assert sorted(bytes(row.value) for row in rows if row.value is not None) == sorted(
        b"v%d" % n for n in range(300)
    )
    (with_headers,) = [row for row in rows if row.headers is not None]
    assert with_headers.value is None
    assert [(h.key, bytes(h.value)) for h in with_headers.headers] == [("h", b"1")]


def test_batch_read_between_given_offsets(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka.bootstrap, name, [b"%d" % n for n in range(10)])
    between = options(
        kafka,
        name,
        startingOffsets=json.dumps({name: {"0": 2}}),
        endingOffsets=json.dumps({name: {"0": 6}}),
    )
    frame = session.read.format("sluice-kafka").options(**between).load()
    assert [bytes(row.value) for row in frame.collect()] == [b"2", b"3", b"4", b"5"]
    many = {**between, "minPartitions": "4"}
    frame = session.read.format("sluice-kafka").options(**many).load()
    assert frame.rdd.getNumPartitions() == 4
    assert frame.count() == 4


def test_fewer_columns_are_read_when_fewer_are_declared(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka.bootstrap, name, [Record(key=b"k", value=b"v")])
    reader = session.read.format("sluice-kafka").options(**options(kafka, name))
    (row,) = reader.schema("value binary, offset bigint").load().collect()
    assert (bytes(row.value), row.offset) == (b"v", 0)
    with pytest.raises(PySparkException, match="valeu"):
        reader.schema("valeu binary").load().collect()


def test_batch_read_of_an_empty_topic_is_empty(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    frame = session.read.format("sluice-kafka").options(**options(kafka, topic())).load()
    assert frame.collect() == []


# --- streams ------------------------------------------------------------------------------------


def test_available_now_reads_to_the_end_in_limited_batches(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Rule `trigger-is-barrier`: it does not end after the empty batch 0. Rule
    `start-offsets-once`: batch 0 keeps the numbers."""
    name, sink = topic(partitions=2), Collected()
    records = [Record(value=b"%d" % n, partition=n % 2) for n in range(10)]
    produce(kafka.bootstrap, name, records)
    given = options(kafka, name, startingOffsets="earliest", maxOffsetsPerTrigger="4")
    finish(run(session, given, sink, tmp_path))
    assert sorted(sink.values()) == sorted(b"%d" % n for n in range(10))
    assert sink.batches[0] == []
    assert all(len(rows) <= 4 for rows in sink.batches.values())
    assert logged(tmp_path, 0)["splits"] == {f"{name}-0": [0, 0], f"{name}-1": [0, 0]}
    assert logged(tmp_path, 1)["splits"] == {f"{name}-0": [0, 2], f"{name}-1": [0, 2]}

    produce(kafka.bootstrap, name, [Record(value=b"later", partition=1)])
    again = Collected()
    finish(run(session, given, again, tmp_path))
    assert again.values() == [b"later"]


def test_once_reads_what_is_there_in_its_only_batch(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    name, sink = topic(), Collected()
    produce(kafka.bootstrap, name, [b"a", b"b"])
    given = options(kafka, name, startingOffsets="earliest", maxOffsetsPerTrigger="1")
    finish(run(session, given, sink, tmp_path, once=True))
    assert sink.values() == [b"a", b"b"]


def test_failed_batch_is_read_again_exactly(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Rules `restore-by-attempt` and `start-offsets-once`: a replay reads the logged range,
    whatever has come or gone meanwhile."""
    name, sink = topic(), Collected()
    produce_transaction(kafka.bootstrap, name, [b"a", b"b"])
    await_stable(kafka.bootstrap, name)
    given = options(kafka, name, startingOffsets="earliest")
    sink.fail_at = 1
    query = run(session, given, sink, tmp_path)
    with pytest.raises(PySparkException, match="told to fail"):
        query.awaitTermination(QUERY_S)
    produce(kafka.bootstrap, name, [b"c"])
    add_partitions(kafka.bootstrap, name, total=2)
    again = Collected()
    finish(run(session, given, again, tmp_path))
    assert [bytes(row.value) for row in again.batches[1]] == [b"a", b"b"]
    assert again.values() == [b"a", b"b", b"c"]


def test_stream_from_latest_survives_a_restart_before_its_first_record(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Rule `start-offsets-once`: `latest` is a number in offsets/0; what comes while the query is
    down is read."""
    name, sink = topic(), Collected()
    produce(kafka.bootstrap, name, [b"old"])
    given = options(kafka, name)
    finish(run(session, given, sink, tmp_path))
    assert sink.values() == []
    produce(kafka.bootstrap, name, [b"while down"])
    finish(run(session, given, sink, tmp_path))
    assert sink.values() == [b"while down"]


def test_running_stream_finds_new_topics_and_publishes_group_offsets(
    session: SparkSession, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    prefix, group, sink = unique("drop"), unique("group"), Collected()
    create_topic(kafka.bootstrap, f"{prefix}-a")
    produce(kafka.bootstrap, f"{prefix}-a", [b"old"])
    given = options(
        kafka,
        "",
        subscribePattern=f"{prefix}-.*",
        partitionDiscoveryIntervalMs="200",
        **{"kafka.group.id": group},
    )
    query = run(session, given, sink, tmp_path, processingTime="100 milliseconds")
    try:
        wait_for(lambda: 0 in sink.batches, what="batch 0")
        create_topic(kafka.bootstrap, f"{prefix}-b")
        produce(kafka.bootstrap, f"{prefix}-b", [b"first of b"])
        wait_for(lambda: sink.values() == [b"first of b"], what="first of b")
        produce(kafka.bootstrap, f"{prefix}-a", [b"new of a"])
        wait_for(lambda: len(sink.values()) == 2, what="new of a")
        client = admin(kafka.bootstrap)

        def published() -> dict[str, int]:
            from confluent_kafka import ConsumerGroupTopicPartitions

            asked = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
            return {p.topic: p.offset for p in asked[group].result(120).topic_partitions}

        wait_for(lambda: published() == {f"{prefix}-a": 2, f"{prefix}-b": 1}, what="group offsets")
    finally:
        query.stop()


def test_recreated_topic_stops_a_restarted_query(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    name, sink = topic(), Collected()
    produce(kafka.bootstrap, name, [b"old"])
    given = options(kafka, name, startingOffsets="earliest")
    finish(run(session, given, sink, tmp_path))
    delete_topic(kafka.bootstrap, name)
    create_topic(kafka.bootstrap, name)
    produce(kafka.bootstrap, name, [b"new"] * 3)
    query = run(session, given, sink, tmp_path)
    with pytest.raises(PySparkException, match="SourceChangedError"):
        query.awaitTermination(QUERY_S)
    assert sink.values() == [b"old"]


def test_batch_of_a_recreated_topic_is_not_read_again(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Killed with the batch in Spark's log: its offsets now mean other records, at once."""
    name = topic()
    produce(kafka.bootstrap, name, [b"old"] * 3)
    died = stream_reader(kafka, name, startingOffsets="earliest")
    limit = died.getDefaultReadLimit()
    end = died.latestOffset(died.latestOffset(died.initialOffset(), limit), limit)
    died.stop()
    delete_topic(kafka.bootstrap, name)
    create_topic(kafka.bootstrap, name)
    produce(kafka.bootstrap, name, [b"new"] * 5)
    again = stream_reader(kafka, name, startingOffsets="earliest")
    with pytest.raises(SourceChangedError, match=re.escape(end["topics"][name])):
        again.partitions({}, end)
    again.stop()


def test_deleted_topic_of_a_pattern_holds_nothing_up_where_loss_is_allowed(
    kafka: EmbeddedKafka,
) -> None:
    """Nor does a batch that was to be read again, which names it."""
    prefix = unique("lenient")
    for name in (f"{prefix}-a", f"{prefix}-b"):
        create_topic(kafka.bootstrap, name)
        produce(kafka.bootstrap, name, [b"x"])
    lenient = {"subscribePattern": f"{prefix}-.*", "failOnDataLoss": "false"}
    made = stream_reader(kafka, "", startingOffsets="earliest", **lenient)
    limit = made.getDefaultReadLimit()
    end = made.latestOffset(made.latestOffset(made.initialOffset(), limit), limit)
    delete_topic(kafka.bootstrap, f"{prefix}-b")
    assert made.latestOffset(end, limit) is end  # judged here, once
    produce(kafka.bootstrap, f"{prefix}-a", [b"y"])
    moved = {f"{prefix}-a-0": [1, 2], f"{prefix}-b-0": [1, 1]}
    wait_for(
        lambda: seconds_to(made, end, moved) < 2, what="an offset without a wait for the topic"
    )
    made.stop()
    again = stream_reader(kafka, "", **lenient)
    assert [task.value[0].topic for task in again.partitions({}, end)] == [f"{prefix}-a"]
    again.stop()


def seconds_to(reader: KafkaStreamReader, start: dict[str, Any], splits: object) -> float:
    """How long the offset behind ``start`` takes: on a busy machine long once, not each time."""
    began_s = time.monotonic()
    assert reader.latestOffset(start, reader.getDefaultReadLimit())["splits"] == splits
    return time.monotonic() - began_s


@pytest.mark.parametrize(
    ("options_given", "told"),
    [
        ({"endingOffsets": '{"TOPIC":{"0":4}}'}, "readable=3 ending=4"),
        (
            {
                "startingOffsets": '{"TOPIC":{"0":2}}',
                "endingOffsets": '{"TOPIC":{"0":1}}',
            },
            "start=2 end=1",
        ),
        ({"startingOffsets": '{"TOPIC":{"0":9}}'}, r"-0\[3,9\)"),
    ],
)
def test_batch_read_that_cannot_be_whole_is_refused(
    session: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    options_given: dict[str, str],
    told: str,
) -> None:
    """Never fewer records than asked for without a word."""
    name = topic()
    produce(kafka.bootstrap, name, [b"a", b"b", b"c"])
    given = {key: text.replace("TOPIC", name) for key, text in options_given.items()}
    frame = session.read.format("sluice-kafka").options(**options(kafka, name, **given)).load()
    with pytest.raises(PySparkException, match=told):
        frame.count()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"startingOffset": "earliest"}, "Did you mean startingOffsets"),
        ({"kafka.isolation.level": "read_uncommitted"}, "exactly-once"),
        ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit"),
        ({"subscribePattern": "x", "subscribe": "y"}, "exactly one of three"),
    ],
)
def test_wrong_options_are_refused_by_name(
    session: SparkSession,
    kafka: EmbeddedKafka,
    tmp_path: Path,
    wrong: dict[str, str],
    told: str,
) -> None:
    """At the latest when the query runs: this session has the format without `sluice.install`."""
    given = {**options(kafka, "t"), **wrong}
    with pytest.raises((ConfigError, PySparkException), match=told):
        finish(run(session, given, Collected(), tmp_path))


# --- the protocol with Spark, call by call ------------------------------------------------------


@pytest.fixture
def reader(kafka: EmbeddedKafka, topic: TopicFactory) -> Iterator[KafkaStreamReader]:
    """A stream reader from latest on a topic with two records, as Spark's source runner has it."""
    name = topic()
    produce(kafka.bootstrap, name, [b"a", b"b"])
    made = stream_reader(kafka, name)
    yield made
    made.stop()


def stream_reader(kafka: EmbeddedKafka, name: str, **more: str) -> KafkaStreamReader:
    given = SourceOptions.of(options(kafka, name, **more), bounded=False, stream=True)
    return KafkaStreamReader(given, columns_with(headers=False))


def test_initial_offset_is_resolved_once_per_process(
    reader: KafkaStreamReader, kafka: EmbeddedKafka
) -> None:
    """Rule `start-offsets-once`: Spark asks twice at the first start; the answers must not
    differ."""
    first = reader.initialOffset()
    (split,) = first["splits"]
    produce(kafka.bootstrap, split.rpartition("-")[0], [b"c"])
    assert reader.initialOffset() == first
    assert reader.latestOffset(first, reader.getDefaultReadLimit()) == first
    assert reader.partitions({}, first) == []
    moved = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert moved["splits"] == {split: [2, 3]}


def test_trigger_without_data_runs_no_batch(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    """Rule `one-batch-per-checkpoint`: the start comes back unchanged; group offsets are published
    even so."""
    name, group = topic(), unique("group")
    produce(kafka.bootstrap, name, [b"a"])
    given = {"startingOffsets": "earliest", "kafka.group.id": group}
    made = stream_reader(kafka, name, **given)
    limit = made.getDefaultReadLimit()
    end = made.latestOffset(made.latestOffset(made.initialOffset(), limit), limit)
    assert made.latestOffset(end, limit) is end
    again = stream_reader(kafka, name, startingOffsets="committed", **{"kafka.group.id": group})
    assert again.initialOffset()["splits"] == {f"{name}-0": [1, 1]}
    made.stop()
    again.stop()


def test_replay_of_batch_0_goes_on_at_the_logged_position(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Rule `start-offsets-once`: a new process resolves other numbers; only the logged ones count,
    at once."""
    name = topic()
    produce(kafka.bootstrap, name, [b"a", b"b"])
    died = stream_reader(kafka, name)
    in_log = died.initialOffset()
    died.stop()
    produce(kafka.bootstrap, name, [b"c"])
    again = stream_reader(kafka, name)
    assert again.initialOffset()["splits"] != in_log["splits"]
    assert again.partitions(again.initialOffset(), in_log) == []
    moved = again.latestOffset(in_log, again.getDefaultReadLimit())
    assert moved["splits"] == {f"{name}-0": [2, 3]}
    again.stop()


def test_tasks_follow_from_the_end_offset_alone(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka.bootstrap, name, [b"%d" % n for n in range(8)])
    made = stream_reader(kafka, name, startingOffsets="earliest", minPartitions="3")
    start = made.initialOffset()
    made.latestOffset(start, made.getDefaultReadLimit())
    end = made.latestOffset(start, ReadMaxRows(6))
    assert end["splits"] == {f"{name}-0": [0, 6]}
    elsewhere = stream_reader(kafka, name, minPartitions="3")
    assert elsewhere.partitions(end, end) == []  # a batch without records reads nothing again
    for given in ({}, start):
        tasks = elsewhere.partitions(given, end)
        assert [(t.value[0].start_offset, t.value[0].end_offset) for t in tasks] == [
            (0, 2),
            (2, 4),
            (4, 6),
        ]
    read = [value for b in elsewhere.read(tasks[1]) for value in b.column("value").to_pylist()]
    assert read == [b"2", b"3"]
    assert made.latestOffset(end, ReadMaxRows(6))["splits"] == {f"{name}-0": [6, 8]}
    made.stop()
    elsewhere.stop()
