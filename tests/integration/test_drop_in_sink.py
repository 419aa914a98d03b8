"""``format("sluice-kafka")`` as a sink, in Spark: what it writes, and what it refuses by name."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import sluice
from sluice.connectors.kafka.client.connection import KafkaConnection
from sluice.connectors.kafka.sink.committer.kafka_wire import TransactionWire
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import ConfigError
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, await_stable, end_offsets, produce, values

pytestmark = pytest.mark.integration

QUERY_S = 600
BAD_INPUT_S = 300.0  # 30 s on a quiet machine


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with the whole format."""
    installation = sluice.install(spark)
    yield spark
    installation.close()


def records(session: SparkSession, kafka: EmbeddedKafka, topic: str, **options: str) -> DataFrame:
    """The topic from its beginning, as a stream."""
    return (
        session.readStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
        .select("key", "value")
    )


def start(
    frame: DataFrame,
    kafka: EmbeddedKafka,
    output: str,
    location: Path | None,
    *,
    options: dict[str, str] | None = None,
    **trigger: Any,
) -> StreamingQuery:
    """The query; by default it ends at the end of its input."""
    writer = (
        frame.writeStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("topic", output)
        .option("transactionalIdPrefix", f"prefix-{output}")
        .options(**(options or {}))
    )
    if location is not None:
        writer = writer.option("checkpointLocation", str(location))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def finish(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(QUERY_S), "the query did not end by itself"
    finally:
        query.stop()


def numbers(kafka: EmbeddedKafka, output: str) -> list[int]:
    """What readers find; the query ends when its commits are accepted, markers may follow."""
    await_stable(kafka.bootstrap, output)
    return sorted(int(value or b"") for value in values(kafka.bootstrap, output))


def test_trigger_is_barrier_available_now_writes_everything_once_and_ends(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """It does not stop at the empty batch 0, and a second run writes only what is new."""
    source, output = topic(partitions=2), topic(partitions=2)
    produce(kafka.bootstrap, source, [str(n).encode() for n in range(50)])
    finish(start(records(session, kafka, source), kafka, output, tmp_path))
    produce(kafka.bootstrap, source, [b"50"])
    finish(start(records(session, kafka, source), kafka, output, tmp_path))
    assert numbers(kafka, output) == list(range(51))


def _end_workers() -> None:
    """As Spark does with workers that were idle for a minute, in whatever state they are."""
    workers = [  # children of a daemon; others run the source
        each
        for each in psutil.Process().children(recursive=True)
        if "pyspark.worker" in each.cmdline() and "pyspark.worker" in each.parent().cmdline()
    ]
    assert workers
    for worker in workers:
        worker.kill()
    psutil.wait_procs(workers)


@pytest.mark.extended
def test_ids_never_reused_workers_that_spark_ended_leave_no_more_ids(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Slow triggers: each finds new workers, which take the ids of the ended ones over."""
    source, output = topic(partitions=2), topic()
    frame = records(session, kafka, source)
    query = start(frame, kafka, output, tmp_path, processingTime="100 milliseconds")
    wire = TransactionWire(KafkaConnection(bootstrap_servers=kafka.bootstrap))
    counts = []
    try:
        for n in range(4):
            produce(kafka.bootstrap, source, [Record(value=b"%d" % n, partition=p) for p in (0, 1)])
            query.processAllAvailable()
            listing = wire.list_transactions(f"prefix-{output}/", timeout_s=60)
            counts.append(len(listing.transactions))
            _end_workers()
    finally:
        wire.close()
        query.stop()
    assert counts[-1] <= 6, f"3 for each of 2 tasks: {counts}"
    assert counts[-1] == counts[1], counts
    assert numbers(kafka, output) == sorted([*range(4)] * 2)


def test_two_sources_of_one_topic_each_at_its_own_pace(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """The slower one reads, batch by batch, what the other one's records have long decided."""
    source, output = topic(), topic()
    produce(kafka.bootstrap, source, [b"%d" % n for n in range(6)])
    slow = records(session, kafka, source, maxOffsetsPerTrigger="2")
    finish(start(slow.union(records(session, kafka, source)), kafka, output, tmp_path))
    assert numbers(kafka, output) == sorted([*range(6)] * 2)


@pytest.mark.parametrize(
    ("options", "trigger", "told"),
    [
        ({"asyncProgressTrackingEnabled": "true"}, {"processingTime": "1 second"}, "async"),
        ({}, {"continuous": "1 second"}, "continuous"),
        ({}, {"realTime": "5 seconds"}, "realTime"),
    ],
    ids=["asynchronous progress tracking", "continuous", "real time"],
)
def test_refused_settings_unsafe_modes_are_refused_by_name(
    session: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    options: dict[str, str],
    trigger: dict[str, str],
    told: str,
) -> None:
    """At the start, by name; nothing is written."""
    source, output = topic(), topic()
    produce(kafka.bootstrap, source, [b"1"])
    frame = records(session, kafka, source)
    with pytest.raises(ConfigError, match=told):
        finish(start(frame, kafka, output, tmp_path, options=options, **trigger))
    assert end_offsets(kafka.bootstrap, output, committed=False) == {0: 0}


def test_coordinator_in_driver_without_its_location_the_sink_says_what_it_needs(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """A session-wide location never reaches the sink."""
    source, output = topic(), topic()
    produce(kafka.bootstrap, source, [b"1"])
    session.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        with pytest.raises(ConfigError, match="needs checkpointLocation"):
            finish(start(records(session, kafka, source), kafka, output, None))
    finally:
        session.conf.unset("spark.sql.streaming.checkpointLocation")
    assert end_offsets(kafka.bootstrap, output, committed=False) == {0: 0}


def damage(location: Path) -> None:
    """Cut the newest record short."""
    newest = max((location / "sluice").glob("chk-*/_metadata"))
    newest.chmod(0o644)
    newest.write_bytes(newest.read_bytes()[:-7])


def forget_the_query(location: Path) -> None:
    """As somebody does who wants to begin anew: Spark's part is deleted, ours is not."""
    for name in ("metadata", "offsets", "commits"):
        path = location / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for checksum in location.glob(".metadata.crc"):
        checksum.unlink()


def forget_the_last_batch(location: Path) -> None:
    """As somebody does who wants Spark to read a batch again; a power cut may do the same."""
    last = max(int(entry.name) for entry in (location / "offsets").glob("[0-9]*"))
    for log in ("offsets", "commits"):
        (location / log / f"{last}").unlink()
        (location / log / f".{last}.crc").unlink(missing_ok=True)


def change_nothing(location: Path) -> None:
    """The wrong thing is elsewhere."""
    assert location.exists()


@pytest.mark.parametrize(
    ("spoil", "options", "error"),
    [
        pytest.param(damage, {}, "DamagedCheckpointError", id="truncated record"),
        pytest.param(forget_the_query, {}, "WrongJobError", id="another query's directory"),
        pytest.param(
            change_nothing,
            {"topic": "no-such-topic"},
            "ConfigError|SourceChangedError",
            id="missing topic",
        ),
        pytest.param(
            change_nothing,
            {"kafka.bootstrap.servers": "127.0.0.1:1"},
            "UnreachableError",
            id="unreachable",
            marks=pytest.mark.extended,
        ),
    ],
)
def test_bad_input_is_a_typed_error_in_time_and_changes_nothing(
    session: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    spoil: Callable[[Path], None],
    options: dict[str, str],
    error: str,
) -> None:
    """Nothing is asked for ever; neither the checkpoints nor the output have changed."""
    source, output = topic(), topic()
    produce(kafka.bootstrap, source, [b"1"])
    began = time.monotonic()
    finish(start(records(session, kafka, source), kafka, output, tmp_path))
    sparks_part_s = time.monotonic() - began
    spoil(tmp_path)
    produce(kafka.bootstrap, source, [b"2"])
    before = contents(tmp_path / "sluice"), await_stable(kafka.bootstrap, output)
    began = time.monotonic()
    with pytest.raises(PySparkException, match=error):
        finish(start(records(session, kafka, source), kafka, output, tmp_path, options=options))
    assert time.monotonic() - began < BAD_INPUT_S + sparks_part_s
    after = contents(tmp_path / "sluice"), end_offsets(kafka.bootstrap, output, committed=False)
    assert after == before


def test_batch_identity_a_query_whose_last_decided_batch_is_not_logged_is_refused(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """The records planned under its id again would be taken for decided, and lost."""
    source, output = topic(), topic()
    produce(kafka.bootstrap, source, [b"old"])
    finish(start(records(session, kafka, source), kafka, output, tmp_path))
    forget_the_last_batch(tmp_path)
    produce(kafka.bootstrap, source, [b"new"])
    with pytest.raises(PySparkException, match="contradicts the last decided checkpoint"):
        finish(start(records(session, kafka, source), kafka, output, tmp_path))
    await_stable(kafka.bootstrap, output)
    assert values(kafka.bootstrap, output) == [b"old"]


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below."""
    return {str(p): p.read_bytes() for p in directory.rglob("*") if p.is_file()}
