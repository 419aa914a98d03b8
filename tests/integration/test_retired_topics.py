"""A topic that is retired between two runs, in Spark: the other topics continue where they were."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sluice
from sluice import Job, KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import delete_topic, produce, values

pytestmark = [pytest.mark.integration, pytest.mark.extended]

Run = Callable[..., object]


def _job(kafka: EmbeddedKafka, spark: SparkSession, directory: Path, output: str) -> Run:
    def run(topics: list[str], forget: tuple[str, ...] = ()) -> object:
        job = Job("retired", spark, checkpoint_dir=str(directory))
        source = KafkaSource(
            bootstrap_servers=kafka.bootstrap,
            topics=topics,
            forget=forget,
            bounded=True,
            name="source",
        )
        sink = KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=output, transactional_id_prefix=output
        )
        job.source(source).map_batches(lambda batch: batch.drop_columns(["topic"])).sink(sink)
        return job.run()

    return run


def _query(kafka: EmbeddedKafka, spark: SparkSession, directory: Path, output: str) -> Run:
    sluice.install(spark)

    def run(topics: list[str], forget: tuple[str, ...] = ()) -> object:
        given = {"subscribe": ",".join(topics), "startingOffsets": "earliest"}
        if forget:
            given["forgetTopics"] = ",".join(forget)
        servers = {"kafka.bootstrap.servers": kafka.bootstrap}
        frame = spark.readStream.format("sluice-kafka").options(**servers, **given).load()
        writer = frame.select("key", "value").writeStream.format("sluice-kafka")
        target = {"topic": output, "transactionalIdPrefix": output}
        target["checkpointLocation"] = str(directory)
        query = writer.options(**servers, **target).trigger(availableNow=True).start()
        return query.awaitTermination()

    return run


@pytest.mark.parametrize("runs", [_job, _query])
def test_what_others_have_is_written_once_before_and_after_a_topic_is_given_up(
    kafka: EmbeddedKafka,
    spark: SparkSession,
    topic: TopicFactory,
    tmp_path: Path,
    runs: Callable[[EmbeddedKafka, SparkSession, Path, str], Run],
) -> None:
    orders, returns, output = topic(), topic(), topic()
    run = runs(kafka, spark, tmp_path, output)
    produce(kafka.bootstrap, orders, [b"1", b"2"])
    produce(kafka.bootstrap, returns, [b"a"])
    run([orders, returns])
    delete_topic(kafka.bootstrap, returns)
    produce(kafka.bootstrap, orders, [b"3"])
    with pytest.raises(Exception, match="were deleted"):
        run([orders])
    run([orders], (returns,))
    produce(kafka.bootstrap, orders, [b"4"])
    run([orders])
    assert sorted(values(kafka.bootstrap, output)) == [b"1", b"2", b"3", b"4", b"a"]


@pytest.mark.parametrize("runs", [_job, _query])
def test_a_topic_that_is_subscribed_again_begins_as_a_new_one(
    kafka: EmbeddedKafka,
    spark: SparkSession,
    topic: TopicFactory,
    tmp_path: Path,
    runs: Callable[[EmbeddedKafka, SparkSession, Path, str], Run],
) -> None:
    """From its first record, and at each later start where it was. The topic never left Kafka."""
    orders, returns, output = topic(), topic(), topic()
    run = runs(kafka, spark, tmp_path, output)
    produce(kafka.bootstrap, orders, [b"1"])
    produce(kafka.bootstrap, returns, [b"a"])
    run([orders, returns])
    produce(kafka.bootstrap, orders, [b"2"])
    run([orders], (returns,))
    produce(kafka.bootstrap, returns, [b"b"])
    run([orders, returns])
    produce(kafka.bootstrap, returns, [b"c"])
    run([orders, returns])
    assert sorted(values(kafka.bootstrap, output)) == [b"1", b"2", b"a", b"a", b"b", b"c"]
