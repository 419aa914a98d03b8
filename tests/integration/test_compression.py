"""Compression kept from the source topic, on a real broker: judged by the broker's own files."""

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.job.job import Job
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import produce_transaction, read, unique

pytestmark = pytest.mark.integration

TIMEOUT_S = 300.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_HEAD = struct.Struct(">qiibIh")
_VALUE = b"a value that can be compressed, for it says so again and again and again; " * 20


def fill(kafka: EmbeddedKafka, topic: str, codec: str, partition: int = 0) -> None:
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "compression.type": codec,
            "enable.idempotence": True,
            "linger.ms": 20,
        }
    )
    for _ in range(200):
        producer.produce(topic, _VALUE, partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


def codecs_on_disk(kafka: EmbeddedKafka, topic: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for path in sorted((kafka.log_path.parent / "data").glob(f"{topic}-*/*.log")):
        found.update(_codecs_in(path.read_bytes()))
    return found


def _codecs_in(segment: bytes) -> Iterator[str]:
    at = 0
    while at + _HEAD.size <= len(segment):
        _, length, _, magic, _, attributes = _HEAD.unpack_from(segment, at)
        if length <= 0:  # the segment is preallocated
            return
        assert magic == 2
        if not attributes & 0x20:
            yield CODECS[attributes & 7]
        at += 12 + length


def source_of(kafka: EmbeddedKafka, *topics: str) -> KafkaSource:
    return KafkaSource(bootstrap_servers=kafka.bootstrap, topics=list(topics), bounded=True)


@pytest.mark.parametrize("codec", CODECS)
def test_the_newest_batch_reports_whatever_stands_after_it(
    kafka: EmbeddedKafka, topic: TopicFactory, codec: str
) -> None:
    name = topic()
    fill(kafka, name, codec)
    assert source_of(kafka, name).compression(timeout_s=TIMEOUT_S) == codec
    for _ in range(3):  # transactions whose records are gone, as a reader sees it: aborted ones
        produce_transaction(
            kafka.bootstrap, name, [_VALUE], commit=False, options={"compression.type": codec}
        )
    assert source_of(kafka, name).compression(timeout_s=TIMEOUT_S) == codec


def test_a_topic_that_fixes_the_codec_or_has_no_record_is_known_by_its_configuration(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """An empty one that leaves it to the producers is not known; nor is a cluster that is away."""
    fixed = topic(config={"compression.type": "zstd"})
    assert source_of(kafka, fixed).compression(timeout_s=TIMEOUT_S) == "zstd"
    fill(kafka, fixed, "gzip")
    assert source_of(kafka, fixed).compression(timeout_s=TIMEOUT_S) == "zstd"
    assert codecs_on_disk(kafka, fixed).keys() == {"zstd"}
    assert source_of(kafka, topic()).compression(timeout_s=TIMEOUT_S) is None
    away = KafkaSource(bootstrap_servers="127.0.0.1:1", topics=["t"])
    assert away.compression(timeout_s=0.5) is None


def test_of_several_codecs_the_most_frequent_one_is_taken(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """Counted by partitions, over all topics of the source."""
    first, second = topic(partitions=3), topic()
    for partition, codec in enumerate(("gzip", "lz4", "lz4")):
        fill(kafka, first, codec, partition)
    fill(kafka, second, "gzip")
    assert source_of(kafka, first).compression(timeout_s=TIMEOUT_S) == "lz4"
    assert source_of(kafka, first, second).compression(timeout_s=TIMEOUT_S) == "gzip"


@pytest.mark.parametrize(
    ("codec", "engine"),
    [
        pytest.param("none", "continuous", marks=pytest.mark.extended),
        pytest.param("gzip", "micro-batch", marks=pytest.mark.extended),
        pytest.param("snappy", "continuous", marks=pytest.mark.extended),
        pytest.param("lz4", "micro-batch", marks=pytest.mark.extended),
        ("zstd", "continuous"),
    ],
)
def test_a_job_writes_as_its_source_is_compressed(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    tmp_path: Path,
    codec: str,
    engine: str,
) -> None:
    name, copy = topic(), topic()
    fill(kafka, name, codec)
    _copy(spark, kafka, name, copy, tmp_path, engine=engine)
    assert len(read(kafka.bootstrap, copy)) == 200
    assert codecs_on_disk(kafka, copy).keys() == {codec}


def test_what_the_user_sets_wins(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    name, copy = topic(), topic()
    fill(kafka, name, "gzip")
    _copy(spark, kafka, name, copy, tmp_path, options={"kafka.compression.type": "lz4"})
    assert codecs_on_disk(kafka, copy).keys() == {"lz4"}


def _copy(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    name: str,
    copy: str,
    directory: Path,
    *,
    engine: str = "continuous",
    options: dict[str, str] | None = None,
) -> None:
    job = Job(
        "compressed",
        spark,
        checkpoint_dir=str(directory / "checkpoint"),
        interval_s=0.2,
        engine=engine,
    )
    job.source(source_of(kafka, name)).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap,
            topic=copy,
            transactional_id_prefix=unique("compressed"),
            options=options or {},
        )
    )
    job.run()
