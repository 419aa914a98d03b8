"""Keyed counts and joins through repartition topics, on real Spark and a real broker."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from pyspark.sql import SparkSession

from sluice import Count, EventTime, Job, KafkaSink, KafkaSource, Monotonic, Tumbling
from sluice.connectors.kafka.repartition import repartition_topics, topic_copies
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.connectors.kafka.tools.job_topic_lines import delete_topics, list_topics
from sluice.connectors.testing.killing import kill_and_restart
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.errors import ConfigError, SourceChangedError
from sluice.runtime.model.checkpoint_record import CheckpointRecord, Verdict
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, admin, produce, read
from tests.kit.keyed.counted_by_key import (
    KEYS,
    count_by_key,
    counting,
    dying_once,
    numbered,
    require_exact_counts,
    slowly,
)
from tests.kit.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.integration

RECORDS = 40_000


def job_in(spark: SparkSession, directory: Path, **settings: object) -> Job:
    given = {"interval_s": 0.2, "regions": 1, "retained": 1_000, "engine": "continuous"}
    return Job("counts", spark, checkpoint_dir=str(directory), **given | settings)  # type: ignore[arg-type]


def decided(directory: Path) -> list[CheckpointRecord]:
    store = open_store(str(directory))
    found = (store.read(checkpoint_id) for checkpoint_id in store.slots())
    return [each for each in found if each is not None and each.verdict is Verdict.DECIDED]


@pytest.mark.parametrize(
    "engine", ["continuous", pytest.param("micro-batch", marks=pytest.mark.extended)]
)
def test_keyed_counts_through_a_repartition_topic_are_exact(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, engine: str
) -> None:
    """The reader of the topic ends after its writer, and not before."""
    source, sink = topic(partitions=4), topic(partitions=2)
    produce(kafka.bootstrap, source, numbered(RECORDS, 4))
    counting(job_in(spark, tmp_path, engine=engine), kafka.bootstrap, source, sink).run()
    require_exact_counts(kafka.bootstrap, [sink], RECORDS)


@pytest.mark.extended
def test_counts_are_exact_after_kills_of_a_writing_and_of_a_reading_task(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, sink = topic(partitions=4), topic()
    produce(kafka.bootstrap, source, numbered(RECORDS, 4))
    marks = [tmp_path / "writer", tmp_path / "reader"]
    counting(
        job_in(spark, tmp_path / "checkpoint"),
        kafka.bootstrap,
        source,
        sink,
        before=dying_once(marks[0]),
        after=dying_once(marks[1]),
    ).run()
    assert all(mark.exists() for mark in marks)
    require_exact_counts(kafka.bootstrap, [sink], RECORDS)


@pytest.mark.extended
@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_counts_are_exact_after_kills_of_everything(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, engine: str
) -> None:
    """Among them: after the writer's commit, before the reader has read."""
    source, sink = topic(partitions=4), topic()
    produce(kafka.bootstrap, source, numbered(RECORDS, 4))
    kill_and_restart(
        count_by_key,
        [kafka.bootstrap, source, sink, tmp_path, engine],
        at=("record", "commit", "decision", "completion", "pre-commit"),
        after=1,
        timeout=PATIENCE_S,
    )
    require_exact_counts(kafka.bootstrap, [sink], RECORDS)


@pytest.mark.extended
def test_counts_are_exact_after_rewinds_to_older_checkpoints(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Rows in flight are read once; rows that the rewound run had written are left out."""
    source, sink = topic(partitions=4), topic()
    produce(kafka.bootstrap, source, numbered(RECORDS, 4))
    counting(job_in(spark, tmp_path), kafka.bootstrap, source, sink).run()
    require_exact_counts(kafka.bootstrap, [sink], RECORDS)
    first = [each.checkpoint_id for each in decided(tmp_path)]
    for back_to in (first[len(first) // 2], first[1], 0):
        other = {"regions": 2, "engine": "micro-batch"} if back_to else {}
        job = job_in(spark, tmp_path, restore_from=back_to, **other)
        counting(job, kafka.bootstrap, source, sink).run()
        require_exact_counts(kafka.bootstrap, [sink], RECORDS)
    produce(kafka.bootstrap, source, numbered(RECORDS, 4, first=RECORDS))
    counting(job_in(spark, tmp_path), kafka.bootstrap, source, sink).run()
    require_exact_counts(kafka.bootstrap, [sink], 2 * RECORDS)


@pytest.mark.extended
def test_changed_and_deleted_topics_are_refused(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """The command lists a job's topics, and deletes them."""
    source, sink = topic(partitions=4), topic()
    produce(kafka.bootstrap, source, numbered(KEYS, 4))

    def run() -> None:
        counting(job_in(spark, tmp_path), kafka.bootstrap, source, sink).run()

    run()
    (line,) = list_topics(str(tmp_path), bootstrap=None, options={}, timeout_s=PATIENCE_S)
    assert (line.source, line.partitions, line.messages_in_flight) == ("by-key-topic", 8, 0)
    client = admin(kafka.bootstrap)
    setting = ConfigResource(ResourceType.TOPIC, line.topic)
    for name, wrong, right in [
        ("cleanup.policy", "compact", "delete"),
        ("retention.ms", "3600000", "-1"),
        ("min.insync.replicas", "3", "1"),
    ]:
        for value in (wrong, right):
            entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            setting.incremental_configs = [entry]
            client.incremental_alter_configs([setting])[setting].result(PATIENCE_S)
            if value == wrong:
                with pytest.raises(ConfigError, match=f"unsafe.*{name}={wrong}"):
                    run()
    client.create_partitions([NewPartitions(line.topic, 9)])[line.topic].result(PATIENCE_S)
    with pytest.raises(SourceChangedError, match=r"another number.*8.*9"):
        run()
    delete_topics(str(tmp_path), [line], force=False, timeout_s=PATIENCE_S)
    wait_for(lambda: line.topic not in client.list_topics(timeout=PATIENCE_S).topics)
    with pytest.raises(SourceChangedError):
        run()


BEGAN_S = round(time.time()) // 10 * 10 - 3_600  # brokers delete old records


def timed(records: int, partitions: int) -> list[Record]:
    """A record each ten milliseconds, in the order of their time in each partition."""
    return [
        replace(r, timestamp_ms=BEGAN_S * 1_000 + n * 10)
        for n, r in enumerate(numbered(records, partitions))
    ]


def windows_as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = batch.to_pylist()
    found = [(b"%s@%d" % (r["key"], r["window_start"].timestamp()), str(r["n"])) for r in rows]
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([key for key, _ in found], pa.binary()),
            "value": pa.array([count for _, count in found], pa.string()),
        }
    )


@pytest.mark.extended
@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_no_row_is_late_because_it_was_in_flight(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, engine: str
) -> None:
    """Windows close by the time of the topic's reader, which follows that of its writer."""
    source, sink = topic(partitions=4), topic()
    produce(kafka.bootstrap, source, timed(RECORDS, 4))
    job = job_in(spark, tmp_path, engine=engine)
    records = KafkaSource(
        bootstrap_servers=kafka.bootstrap,
        topics=[source],
        bounded=True,
        time=EventTime("kafka", strategy=Monotonic()),
        options={} if engine == "continuous" else {"maxOffsetsPerTrigger": "10000"},
    )
    job.source(records).map_batches(very_slowly).key_by("key").window(
        Tumbling("10 s"), on="event_time"
    ).aggregate(n=Count()).map_batches(windows_as_text).sink(
        KafkaSink(bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=sink)
    )
    job.run()
    found = [(record.key, int(record.value or b"")) for record in read(kafka.bootstrap, sink)]
    expected = Counter(b"k%d@%d" % (n % KEYS, BEGAN_S + n // 1_000 * 10) for n in range(RECORDS))
    assert Counter(dict(found)) == expected
    assert len(found) == len(expected), "each window closed once"
    marks = {s.barrier_watermark_ms for each in decided(tmp_path) for r in each.regions
             if r.region.endswith("topic") for s in r.splits}  # fmt: skip
    assert marks - {None}, "the reader's time went on before its end"


def named(column: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        return slowly(batch.select(["key", "value", "event_time"])).rename_columns(
            ["key", column, "at"]
        )

    return run


def pairs_as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    pairs = zip(batch["order"].to_pylist(), batch["payment"].to_pylist(), strict=True)
    values = [order + b"-" + (payment or b"none") for order, payment in pairs]
    return pa.RecordBatch.from_pydict({"key": batch["key"], "value": pa.array(values, pa.binary())})


@pytest.mark.extended
def test_a_join_of_two_topics_finds_each_pair_once(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Every third order has no payment; a payment comes a second after its order."""
    orders, payments, sink = topic(partitions=2), topic(partitions=3), topic()
    count = 6_000
    produce(kafka.bootstrap, orders, timed(count, 2))
    paid = [
        replace(r, timestamp_ms=(r.timestamp_ms or 0) + 1_000, partition=n % 3)
        for n, r in enumerate(timed(count, 3))
        if n % 3
    ]
    produce(kafka.bootstrap, payments, paid)
    job = job_in(spark, tmp_path, engine="micro-batch")
    sides = [
        job.source(
            KafkaSource(
                bootstrap_servers=kafka.bootstrap,
                topics=[name],
                bounded=True,
                time=EventTime("kafka", strategy=Monotonic()),
            )
        )
        .map_batches(named(column))
        .key_by("key", name=f"by-{column}")
        for name, column in ((orders, "order"), (payments, "payment"))
    ]
    sides[0].join(
        sides[1], within=("0 s", "2 s"), on="at", how="left", suffixes=("", "_paid"), name="paid"
    ).map_batches(pairs_as_text).sink(
        KafkaSink(bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=sink)
    )
    job.run()
    found = Counter(record.value for record in read(kafka.bootstrap, sink))
    assert found == Counter(b"%d-%s" % (n, b"%d" % n if n % 3 else b"none") for n in range(count))


class Crash(Exception):
    """Ends a start at a failpoint."""


def crashing_at(name: str) -> Callable[[str], None]:
    def failpoint(reached: str) -> None:
        if reached == name:
            raise Crash(name)

    return failpoint


def very_slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(batch.num_rows / 2_000)  # several epochs
    return batch


@pytest.mark.extended
def test_a_job_restored_from_a_savepoint_gets_the_rows_in_flight_once(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also if starts of the new job crash at each step of the copy; its topic is its own."""
    caplog.set_level("INFO")
    source, sinks = topic(partitions=4), [topic(), topic()]
    records = 5 * RECORDS  # the stop comes long before the last one
    produce(kafka.bootstrap, source, numbered(records, 4))
    old = job_in(spark, tmp_path / "old")
    counting(old, kafka.bootstrap, source, sinks[0], bounded=False, before=very_slowly)
    handle = old.start()
    wait_for(lambda: any(map(has_read, decided(tmp_path / "old"))), what="an epoch of the reader")
    savepoint = handle.stop(savepoint=str(tmp_path / "saved"))

    def restored() -> Job:
        job = job_in(spark, tmp_path / "new", restore_from=savepoint)
        return counting(job, kafka.bootstrap, source, sinks[1])

    for module, name in [
        (repartition_topics, "before-topic-creation"),
        (repartition_topics, "after-topic-creation"),
        (topic_copies, "before-topic-copy"),
        (topic_copies, "before-topic-copy-commit"),
        (topic_copies, "before-topic-copy-commit"),
        (topic_copies, "after-topic-copy"),
    ]:
        job = restored()
        with monkeypatch.context() as patched:
            patched.setattr(module, "failpoint", crashing_at(name))
            with pytest.raises(Crash, match=name):
                job.run()
    copies = [r.args for r in caplog.records if r.msg.startswith("rows in flight are copied")]
    assert [rows > 0 for _, _, rows in copies] == [True], "there were some, copied once"
    restored().run()
    require_exact_counts(kafka.bootstrap, sinks, records)


def has_read(record: CheckpointRecord) -> bool:
    """Whether the reader of the topic has read something."""
    return any(r.region == "by-key-topic" and r.batch_id is not None for r in record.regions)
