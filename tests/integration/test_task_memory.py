"""A task's memory over a topic of large records, on real Spark and a real broker."""

import random
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import ConfigError
from sluice.runtime.job.job import Job
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import read, unique
from tests.kit.weighing import SlowAndWeighed, most_bytes

pytestmark = pytest.mark.integration

MIB = 2**20
BOUND_MIB = 96
FAT_RECORDS = 2_000
PARTITIONS = 2


def fill(kafka: EmbeddedKafka, topic: str, sizes: list[int]) -> None:
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "linger.ms": 20}
    )
    for number, size in enumerate(sizes):
        while True:
            try:
                producer.produce(topic, b"x" * size, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(300) == 0


def run(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    directory: Path,
    *,
    engine: str,
    source: str,
    sink: str,
    pause_s: float = 0.02,
    source_options: dict[str, str] | None = None,
) -> int:
    """A copy by slow tasks; the most memory that one of their processes had."""
    weighed = directory / "weighed"
    weighed.mkdir(parents=True)
    job = Job(
        "weighed",
        spark,
        checkpoint_dir=str(directory / "checkpoint"),
        interval_s=0.5,
        engine=engine,
        task_memory_mib=BOUND_MIB,
    )
    job.source(
        KafkaSource(
            bootstrap_servers=kafka.bootstrap,
            topics=[source],
            bounded=True,
            options=source_options or {},
        )
    ).map_batches(SlowAndWeighed(weighed, pause_s)).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=unique("weighed")
        )
    )
    job.run()
    return most_bytes(weighed)


@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_a_task_over_large_records_keeps_to_its_memory(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, engine: str
) -> None:
    """100 MB of records of 1 to 100 KB, in no order of size, wait for a task that is slow: it has
    less above a task with next to nothing to do, whose memory is that of Python, the libraries and
    the clients themselves."""
    lean, fat = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    fill(kafka, lean, [10] * 20)
    sizes = random.Random(11)
    fill(kafka, fat, [sizes.randrange(1_000, 100_000) for _ in range(FAT_RECORDS)])
    copy, rest = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    base = run(spark, kafka, tmp_path / "lean", engine=engine, source=lean, sink=rest)

    most = run(spark, kafka, tmp_path / "fat", engine=engine, source=fat, sink=copy)

    print(f"{engine}: {(most - base) / MIB:.0f} MiB above {base / MIB:.0f} MiB")  # noqa: T201
    assert most - base < BOUND_MIB * MIB
    assert len(read(kafka.bootstrap, copy)) == FAT_RECORDS


def test_settings_that_do_not_fit_are_refused_before_anything_runs(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="do not fit into a task's memory"):
        run(
            spark,
            kafka,
            tmp_path,
            engine="continuous",
            source=topic(),
            sink=topic(),
            source_options={"kafka.queued.max.messages.kbytes": "65536"},
        )
    assert not (tmp_path / "checkpoint").exists()
