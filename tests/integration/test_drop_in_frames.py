"""``df.write`` into the formats: one decision for a frame, and each batch of a callback once."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.query import StreamingQuery

import sluice
from sluice.connectors.installation import Installation
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import ConfigError, WrongJobError
from tests.integration.test_drop_in_sink import finish, numbers, records, start
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import (
    await_stable,
    create_topic,
    end_offsets,
    produce,
    values,
)
from tests.kit.objects.published_objects import PublishedObjects
from tests.kit.objects.s3_fixture import S3Bucket, running_s3
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def installation(spark: SparkSession) -> Iterator[Installation]:
    """The formats, in the tests' session."""
    made = sluice.install(spark)
    yield made
    made.close()


@pytest.fixture
def session(installation: Installation, spark: SparkSession) -> SparkSession:
    """The session with the formats."""
    del installation
    return spark


def to_topic(
    frame: DataFrame, kafka: EmbeddedKafka, output: str, **options: Any
) -> DataFrameWriter:
    """A writer with what each write to the topic needs."""
    return (
        frame.write.format("sluice-kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("topic", output)
        .option("transactionalIdPrefix", f"prefix-{output}")
        .options(**options)
    )


def rows(session: SparkSession, first: int, last: int) -> DataFrame:
    """Numbers as text, in two tasks."""
    return session.range(first, last, numPartitions=2).select(
        F.col("id").cast("string").alias("value")
    )


def test_a_frame_is_written_whole_and_at_least_once(
    session: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a save mode, as by Spark's own sink; a warning says once what is not promised."""
    output = topic(partitions=2)
    with caplog.at_level(logging.WARNING):
        to_topic(rows(session, 0, 10), kafka, output).save()
        to_topic(rows(session, 10, 20), kafka, output, checkpointLocation=str(tmp_path)).save()
        to_topic(rows(session, 20, 30), kafka, output, checkpointLocation=str(tmp_path)).save()
    assert numbers(kafka, output) == list(range(30))
    assert sum("at least once" in text for text in caplog.messages) == 1


@pytest.mark.extended
def test_batches_of_a_callback_are_decided_in_a_bucket(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, s3_environment: S3Bucket
) -> None:
    """Spark has no client of the store, and needs none: it writes no log there. Each batch once."""
    output, location = topic(partitions=2), f"{s3_environment.uri}/a query"
    for batch_id in range(2):
        frame = rows(session, batch_id * 10, batch_id * 10 + 10)
        for _ in range(2):
            to_topic(frame, kafka, output, checkpointLocation=location, batchId=batch_id).save()
    assert numbers(kafka, output) == list(range(20))


def test_of_a_frame_with_a_failing_task_nothing_becomes_visible(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """And no transaction stays open, which would hold readers back."""
    output = topic()
    failing = rows(session, 0, 10).select(
        F.when(F.col("value") == "9", F.raise_error(F.lit("no such row")))
        .otherwise(F.col("value"))
        .alias("value")
    )
    with pytest.raises(PySparkException, match="no such row"):
        to_topic(failing, kafka, output).save()
    to_topic(rows(session, 0, 2), kafka, output).save()
    assert numbers(kafka, output) == [0, 1]


def test_a_batch_is_not_left_out_at_another_address_of_an_object_store(
    session: SparkSession, s3: S3Bucket, tmp_path: Path
) -> None:
    """Two stores may have a bucket of one name. At its own address it is left out."""
    frame = rows(session, 0, 4)

    def save(at: S3Bucket) -> None:
        writer = frame.write.format("sluice-files").mode("append").options(**at.storage_options)
        writer = writer.options(batchId=0, checkpointLocation=str(tmp_path / "writes"))
        writer.save(f"{s3.uri}/out")

    save(s3)
    with running_s3() as other, pytest.raises(ConfigError, match="another address"):
        save(replace(s3, endpoint=other))
    save(s3)
    assert PublishedObjects(s3).counted("out") == {str(n): 1 for n in range(4)}


def test_files_of_a_frame_are_added_in_directories_of_the_partition_columns(
    session: SparkSession, tmp_path: Path
) -> None:
    """By ``partitionBy``, and by the path of ``save``."""
    target = str(tmp_path / "out" / "rows")
    frame = rows(session, 0, 4).withColumn("half", (F.col("value").cast("int") % 2).cast("string"))
    for _ in range(2):
        frame.write.format("sluice-files").mode("append").partitionBy("half").save(target)
    found = session.read.schema("value string, half string").parquet(target).collect()
    assert sorted((row.value, row.half) for row in found) == sorted(
        [(str(n), str(n % 2)) for n in range(4)] * 2
    )


@pytest.mark.parametrize(
    ("name", "mode", "options", "words"),
    [
        ("sluice-kafka", "overwrite", {}, "save mode is not allowed"),
        ("sluice-kafka", "ignore", {}, "save mode is not allowed"),
        ("sluice-files", "overwrite", {}, "only appends"),
        ("sluice-files", None, {}, "only appends"),
        ("sluice-kafka", None, {"tpoic": "x"}, "unknown option"),
        ("sluice-kafka", None, {"batchId": "x"}, "batchId"),
        ("sluice-kafka", None, {"batchId": "1"}, "batchId needs a checkpoint location"),
    ],
)
def test_wrong_options_of_a_frame_are_refused_at_once(
    session: SparkSession,
    tmp_path: Path,
    name: str,
    mode: str | None,
    options: dict[str, str],
    words: str,
) -> None:
    """By the typed error itself."""
    common = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "transactionalIdPrefix": "t"}
    if name == "sluice-files":
        common = {"path": str(tmp_path / "out")}
    with pytest.raises(ConfigError, match=words):
        rows(session, 0, 1).write.format(name).mode(mode).options(**common, **options).save()


def started(frame: DataFrame, write: Any, location: Path) -> StreamingQuery:
    """A query that ends at the end of its input, with the user's own callback."""
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(location))
    return writer.trigger(availableNow=True).start()


@pytest.mark.extended
@pytest.mark.parametrize("is_stateful", [False, True], ids=["stateless", "stateful"])
def test_a_callback_writes_each_batch_once_into_each_of_two_sinks(
    session: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    *,
    is_stateful: bool,
) -> None:
    """It fails between the two writes, and Spark repeats the batch in the next run."""
    source, output = topic(partitions=2), topic(partitions=2)
    target = str(tmp_path / "out" / "rows")
    produce(kafka.bootstrap, source, [b"%d" % n for n in range(10)])
    fails = [True]

    def write(frame: DataFrame, batch_id: int) -> None:
        to_topic(frame, kafka, output, batchId=batch_id).save()
        if batch_id > 0 and fails:
            fails.clear()
            raise ValueError("between the two")
        files = frame.write.format("sluice-files").mode("append").option("batchId", batch_id)
        files.option("checkpointLocation", str(tmp_path / "chk")).save(target)

    frame = records(session, kafka, source)
    if is_stateful:
        frame = frame.groupBy("value").count().drop("count")
    writer = frame.writeStream.outputMode("update").foreachBatch(write)
    writer = writer.option("checkpointLocation", str(tmp_path / "chk")).trigger(availableNow=True)
    with pytest.raises(PySparkException, match="between the two"):
        finish(writer.start())
    assert numbers(kafka, output) == list(range(10))
    finish(writer.start())
    produce(kafka.bootstrap, source, [b"%d" % n for n in range(10, 15)])
    finish(writer.start())
    assert numbers(kafka, output) == list(range(15))
    found = session.read.schema("value binary").parquet(target).collect()
    assert sorted(int(row.value) for row in found) == list(range(15))


def test_a_batch_goes_to_topics_of_one_name_on_two_clusters(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """The second write would be taken for a repeated one, and be left out in silence."""
    output, frame = topic(partitions=1), rows(session, 0, 5)
    with EmbeddedKafka() as other:
        create_topic(other.bootstrap, name=output)
        for _ in range(2):  # the second time each of them is a repetition
            for cluster in (kafka, other):
                options = {"batchId": 7, "checkpointLocation": str(tmp_path / "chk")}
                to_topic(frame, cluster, output, **options).save()
        assert numbers(kafka, output) == numbers(other, output) == list(range(5))


@pytest.mark.extended
def test_the_prefix_of_a_callbacks_sink_is_free_after_its_query(
    session: SparkSession,
    installation: Installation,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    """Its run lasts from batch to batch, and no longer than the query."""
    source, output = topic(), topic()
    produce(kafka.bootstrap, source, [b"1"])

    def write(frame: DataFrame, batch_id: int) -> None:
        to_topic(frame, kafka, output, batchId=batch_id).save()

    finish(started(records(session, kafka, source), write, tmp_path))
    wait_for(lambda: not installation.queries._runs, what="the end of the run")  # noqa: SLF001
    to_topic(rows(session, 2, 3), kafka, output).save()
    assert numbers(kafka, output) == [1, 2]


def _twice(frame: DataFrame, kafka: EmbeddedKafka, output: str, batch_id: int) -> None:
    for digit in ("0", "1"):
        to_topic(
            frame.where(F.col("value").endswith(digit)), kafka, output, batchId=batch_id
        ).save()


def _other_options(frame: DataFrame, kafka: EmbeddedKafka, output: str, batch_id: int) -> None:
    for linger in ("5", "6"):
        to_topic(frame, kafka, output, batchId=batch_id, **{"kafka.linger.ms": linger}).save()


def _other_session(_frame: DataFrame, kafka: EmbeddedKafka, output: str, batch_id: int) -> None:
    """Rows of the program's own session, as from pandas: the thread is that of the query."""
    session = SparkSession._instantiatedSession  # noqa: SLF001 - Spark's newest of this process
    assert session is not None
    for n in range(2):
        to_topic(rows(session, n, n + 1), kafka, output, batchId=batch_id).save()


def _other_batch(frame: DataFrame, kafka: EmbeddedKafka, output: str, batch_id: int) -> None:
    to_topic(frame, kafka, output, batchId=batch_id + 1).save()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (_twice, "two writes of a batch have one sink"),
        (_other_options, "two writes of a batch have one sink"),
        (_other_session, "two writes of a batch have one sink"),
        (_other_batch, "not the id of this batch"),
    ],
)
def test_what_would_leave_rows_of_a_callback_out_is_refused(
    session: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    wrong: Any,
    words: str,
) -> None:
    """A second write of the same batch would be taken for a repeated one."""
    source, output = topic(), topic()
    produce(kafka.bootstrap, source, [b"0", b"1"])

    def write(frame: DataFrame, batch_id: int) -> None:
        wrong(frame, kafka, output, batch_id)

    with pytest.raises(PySparkException, match=words):
        finish(started(records(session, kafka, source), write, tmp_path))


@pytest.mark.extended
def test_a_query_that_began_anew_does_not_leave_its_batches_out(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Its batch ids begin at 0 again, and the old decisions would name other rows."""
    source, output = topic(), topic()
    produce(kafka.bootstrap, source, [b"0", b"1"])

    def write(frame: DataFrame, batch_id: int) -> None:
        place = str(tmp_path / "writes")
        to_topic(frame, kafka, output, batchId=batch_id, checkpointLocation=place).save()

    frame = records(session, kafka, source)
    finish(started(frame, write, tmp_path / "first"))
    with pytest.raises(PySparkException, match="another query has written"):
        finish(started(frame, write, tmp_path / "second"))
    place = str(tmp_path / "writes")
    with pytest.raises(WrongJobError, match="a query and a write outside of it"):
        to_topic(rows(session, 5, 6), kafka, output, batchId=0, checkpointLocation=place).save()
    await_stable(kafka.bootstrap, output)
    assert values(kafka.bootstrap, output) == [b"0", b"1"]
    assert end_offsets(kafka.bootstrap, output)


@pytest.mark.parametrize("change", ["a callback", "its prefix", "a topic column"])
def test_a_batch_that_a_former_writer_has_decided_is_not_doubled(
    session: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    change: str,
) -> None:
    """A kill came between its commit and Spark's, and the program has another writer now."""
    source, output = topic(), topic()
    produce(kafka.bootstrap, source, [b"%d" % n for n in range(5)])
    frame = records(session, kafka, source)

    def former(frame: DataFrame, batch_id: int) -> None:
        to_topic(frame, kafka, output, batchId=batch_id).save()

    def changed(frame: DataFrame, batch_id: int) -> None:
        options = {"batchId": str(batch_id), "kafka.bootstrap.servers": kafka.bootstrap}
        new = "new" if change == "its prefix" else "prefix"
        options["transactionalIdPrefix"] = f"{new}-{output}"
        if change == "a topic column":
            frame = frame.withColumn("topic", F.lit(output))
        else:
            options["topic"] = output
        frame.write.format("sluice-kafka").options(**options).save()

    def run_former() -> None:
        if change == "a callback":
            finish(start(frame, kafka, output, tmp_path))
        else:
            finish(started(frame, former, tmp_path))

    run_former()
    newest = max((tmp_path / "offsets").glob("[0-9]*"), key=lambda path: int(path.name)).name
    for name in (newest, f".{newest}.crc"):
        (tmp_path / "commits" / name).unlink(missing_ok=True)
    with pytest.raises(PySparkException, match="another writer of this query has decided"):
        finish(started(frame, changed, tmp_path))
    run_former()
    produce(kafka.bootstrap, source, [b"5"])
    finish(started(frame, changed, tmp_path))
    assert numbers(kafka, output) == list(range(6))
