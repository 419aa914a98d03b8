"""A session's own settings of SQL and Arrow: records come and go as in any other session."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import sluice
from sluice import HdfsSink, KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import StreamError
from sluice.runtime.job.job import Job
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, await_stable, produce, read

pytestmark = pytest.mark.integration

QUERY_S = 600
BEGAN_MS = round(time.time() * 1000)  # older ones the broker deletes
RECORDS = [
    Record(key=b"k%d" % n, value=b"v%d" % n, headers=(("h", b"x"),), timestamp_ms=BEGAN_MS + n)
    for n in range(5)
]
SINK_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSinkEvolution"
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
SETTINGS = {
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.ansi.enforceReservedKeywords": "true",  # "offset" is one
    "spark.sql.caseSensitive": "true",
    SINK_EVOLUTION: "true",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
}


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    before = {key: spark.conf.get(key, None) for key in SETTINGS}
    for key, value in SETTINGS.items():
        spark.conf.set(key, value)
    yield spark
    for key, kept in before.items():
        spark.conf.unset(key) if kept is None else spark.conf.set(key, kept)


def source_of(kafka: EmbeddedKafka, topic: str) -> KafkaSource:
    return KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[topic], bounded=True)


def by_a_job(session: SparkSession, kafka: EmbeddedKafka, topics: list[str], at: Path) -> None:
    source, output = topics
    job = Job("copy", session, checkpoint_dir=str(at), interval_s=0.2, tolerable_failures=0)
    job.source(source_of(kafka, source)).transform(
        lambda records: records.where(records["offset"] >= 0)
    ).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=output, transactional_id_prefix=f"p-{output}"
        )
    )
    job.run()


def as_a_drop_in(session: SparkSession, kafka: EmbeddedKafka, topics: list[str], at: Path) -> None:
    source, output = topics
    session.conf.set(SINK_EVOLUTION, "false")  # in Python a sink cannot be given a name
    sluice.install(session)
    records = (
        session.readStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )
    query = (
        records.writeStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("topic", output)
        .option("transactionalIdPrefix", f"p-{output}")
        .option("checkpointLocation", str(at))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(QUERY_S), "the query did not end by itself"
    finally:
        query.stop()


@pytest.mark.parametrize("copied", [by_a_job, as_a_drop_in])
def test_records_are_copied_whatever_the_session_is_set_to(
    session: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    copied: Callable[[SparkSession, EmbeddedKafka, list[str], Path], None],
) -> None:
    """A time without a zone was no time of Kafka's, and ``offset`` no name of a column."""
    source, output = topic(), topic()
    produce(kafka.bootstrap, source, RECORDS)
    copied(session, kafka, [source, output], tmp_path)
    await_stable(kafka.bootstrap, output)
    found = read(kafka.bootstrap, output)
    assert [(r.key, r.value, r.headers, r.timestamp_ms) for r in found] == [
        (r.key, r.value, r.headers, r.timestamp_ms) for r in RECORDS
    ]


def test_files_have_the_columns_of_a_chained_function_whatever_the_session_is_set_to(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Their names and types are reported to Spark as they are."""
    source, target = topic(), tmp_path / "files"
    produce(kafka.bootstrap, source, RECORDS)
    job = Job("files", session, checkpoint_dir=str(tmp_path / "at"), interval_s=0.2)
    stream = job.source(source_of(kafka, source))
    stream.map_batches(lambda batch: batch.select(["value", "offset", "timestamp"])).sink(
        HdfsSink(target)
    )
    job.run()
    files = session.read.parquet(str(target))
    assert dict(files.dtypes) == {"value": "binary", "offset": "bigint", "timestamp": "timestamp"}
    assert sorted(row[1] for row in files.collect()) == [0, 1, 2, 3, 4]


def test_a_query_that_was_made_under_anothers_settings_does_not_run(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """As a thread of the user's program may set them just then; and what it has set stays set."""
    source, output = topic(), topic()
    produce(kafka.bootstrap, source, RECORDS)
    before = session.conf.get(NO_DATA, None)

    def as_another_thread(records: DataFrame) -> DataFrame:
        session.conf.set(NO_DATA, "true")
        return records

    job = Job("copy", session, checkpoint_dir=str(tmp_path), interval_s=0.2, tolerable_failures=0)
    job.source(source_of(kafka, source)).transform(as_another_thread).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=output, transactional_id_prefix=f"p-{output}"
        )
    )
    try:
        with pytest.raises(StreamError, match=f"settings changed.*{NO_DATA}=true"):
            job.run()
        assert session.conf.get(NO_DATA) == "true"
    finally:
        session.conf.unset(NO_DATA) if before is None else session.conf.set(NO_DATA, before)
    assert read(kafka.bootstrap, output) == []
