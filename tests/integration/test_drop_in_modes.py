"""What a user sets on ``writeStream``: output modes, calls that Spark does not pass on, refusals."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import sluice
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import ConfigError
from tests.integration.test_drop_in_sink import finish, records
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, await_stable, produce, read
from tests.kit.waiting import join

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with the formats."""
    installation = sluice.install(spark)
    yield spark
    installation.close()


def counts(session: SparkSession, kafka: EmbeddedKafka, topic: str) -> DataFrame:
    """The number of records for each key."""
    counted = records(session, kafka, topic).groupBy("key").count()
    return counted.select("key", F.col("count").cast("string").alias("value"))


def to_topic(
    frame: DataFrame, kafka: EmbeddedKafka, output: str, location: Path, mode: str
) -> DataStreamWriter:
    """A writer that ends at the end of its input."""
    return (
        frame.writeStream.format("sluice-kafka")
        .outputMode(mode)
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("topic", output)
        .option("transactionalIdPrefix", f"prefix-{output}")
        .option("checkpointLocation", str(location))
        .trigger(availableNow=True)
    )


def produced(kafka: EmbeddedKafka, topic: str, first: int, last: int) -> None:
    """Numbers, with the keys 0 and 1."""
    produce(
        kafka.bootstrap,
        topic,
        [Record(value=b"x", key=b"%d" % (n % 2)) for n in range(first, last)],
    )


def written(kafka: EmbeddedKafka, output: str) -> Counter[tuple[bytes | None, bytes | None]]:
    """Keys and values that readers find."""
    await_stable(kafka.bootstrap, output)
    return Counter((record.key, record.value) for record in read(kafka.bootstrap, output))


@pytest.mark.parametrize("mode", ["update", pytest.param("complete", marks=pytest.mark.extended)])
def test_a_topic_gets_the_changed_counts_or_all_of_them_once_for_each_batch(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, mode: str
) -> None:
    """Over a restart: the second run has one new key, and continues with Spark's state."""
    source, output = topic(), topic()
    produced(kafka, source, 0, 10)
    writer = to_topic(counts(session, kafka, source), kafka, output, tmp_path, mode)
    finish(writer.start())
    produce(kafka.bootstrap, source, [Record(value=b"x", key=b"0")])
    query = writer.queryName(f"counts-{mode}").start()
    assert query.name == f"counts-{mode}"
    finish(query)
    again = 1 if mode == "complete" else 0
    wanted = {(b"0", b"5"): 1, (b"1", b"5"): 1 + again, (b"0", b"6"): 1}
    found = written(kafka, output)
    assert {pair: found[pair] for pair in wanted} == wanted
    assert sum(found.values()) == sum(wanted.values())


@pytest.mark.extended
def test_files_get_the_changed_counts_in_directories_of_the_partition_columns(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """``.partitionBy(…)`` and the path of ``start`` reach the sink, as in Spark's own."""
    source, target = topic(), tmp_path / "out" / "rows"
    produced(kafka, source, 0, 10)
    frame = counts(session, kafka, source).withColumn("key", F.col("key").cast("string"))
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "chk"))
    finish(
        writer.trigger(availableNow=True).start(
            str(target), format="sluice-files", outputMode="update", partitionBy="key"
        )
    )
    found = session.read.schema("value string, key string").parquet(str(target)).collect()
    assert sorted((row.key, row.value) for row in found) == [("0", "5"), ("1", "5")]
    assert sorted(each.name for each in target.iterdir()) == ["key=0", "key=1"]


def test_a_thread_without_an_active_session_starts_a_query(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Spark looks for the format's name in the active session of the thread."""
    source, output = topic(), topic()
    produced(kafka, source, 0, 2)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            frame = records(session, kafka, source)
            finish(to_topic(frame, kafka, output, tmp_path, "append").start())
        except BaseException as err:  # noqa: BLE001 - for the test's own thread
            failed.append(err)

    thread = threading.Thread(target=run)
    thread.start()
    join(thread)
    assert not failed
    assert sum(written(kafka, output).values()) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tpoic": "x"}, "unknown option of the Kafka sink"),
        ({"kafka.acks": "1"}, "unsafe with exactly-once"),
        ({"transactionTimeout": "soon"}, "a duration cannot be read"),
        ({"asyncProgressTrackingEnabled": "true"}, "asyncProgressTracking"),
        ({"checkpointLocation": "s3a://bucket/chk"}, "Spark cannot write its logs to this"),
    ],
)
def test_a_wrong_option_of_a_topic_is_refused_at_the_start(
    session: SparkSession, tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    """By the typed error itself; there is no query yet."""
    with pytest.raises(ConfigError, match=words):
        started(session, "sluice-kafka", {**_TOPIC, **changes}, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "calls", "words"),
    [
        ({"fileFormat": "orc"}, {}, "fileFormat|format"),
        ({"compresion": "x"}, {}, "compresion"),
        ({}, {"outputMode": "complete"}, "no output mode complete"),
        ({}, {"partitionBy": "day"}, "day"),
        ({"partitionBy": "value"}, {"partitionBy": "timestamp"}, "given twice"),
        ({}, {"trigger": {"continuous": "1 second"}}, "continuous"),
    ],
)
def test_a_wrong_option_of_files_is_refused_at_the_start(
    session: SparkSession,
    tmp_path: Path,
    changes: dict[str, str],
    calls: dict[str, Any],
    words: str,
) -> None:
    """As above."""
    options = {"path": str(tmp_path / "out" / "rows"), **changes}
    with pytest.raises(ConfigError, match=words):
        started(session, "sluice-files", options, tmp_path, **calls)
    assert not list(tmp_path.iterdir())


def test_rows_that_a_topic_cannot_hold_are_refused_at_the_start(
    session: SparkSession, tmp_path: Path
) -> None:
    """As Spark's own sink does."""
    with pytest.raises(ConfigError, match="value"):
        started(session, "sluice-kafka", _TOPIC, tmp_path, columns=("timestamp",))


_TOPIC = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "topic": "out",
    "transactionalIdPrefix": "out",
}


def started(
    session: SparkSession,
    name: str,
    options: dict[str, str],
    tmp_path: Path,
    *,
    columns: tuple[str, ...] = ("value", "timestamp"),
    trigger: dict[str, str] | None = None,
    **calls: Any,
) -> StreamingQuery:
    """A query over rows that need no broker."""
    frame = session.readStream.format("rate").load()
    frame = frame.withColumn("value", F.col("value").cast("string")).select(*columns)
    location = {"checkpointLocation": str(tmp_path / "chk")}
    writer = frame.writeStream.format(name).options(**location).options(**options)
    query = writer.trigger(**(trigger or {"availableNow": True})).start(**calls)
    query.stop()
    return query


@pytest.mark.extended
def test_a_function_that_raises_in_update_mode_is_named_in_the_querys_error(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """The error passes through Spark's own, whose text must stay short."""
    source, output = topic(), topic()
    produced(kafka, source, 0, 4)

    @F.udf("string", useArrow=False)
    def told(value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - Spark reads hints
        raise ValueError("no such price" + "!" * 20_000)

    frame = records(session, kafka, source).select(told("value").alias("value"))
    with pytest.raises(PySparkException, match="no such price"):
        finish(to_topic(frame, kafka, output, tmp_path, "update").start())
    assert not written(kafka, output)
