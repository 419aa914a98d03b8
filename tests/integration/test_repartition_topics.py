"""Keyed counts and joins through repartition topics, on real Spark and a real broker."""

from collections import Counter, defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.job.job import Job
from sluice.runtime.keyed.declarations import Count
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique

pytestmark = pytest.mark.integration

KEYS = 500
RECORDS = 40_000


def as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Counts as records: the key, and the count as decimal text."""
    count = pc.cast(batch.column("count"), pa.string())
    return pa.RecordBatch.from_arrays([batch.column("key"), count], ["key", "value"])


def numbered(keys: int, records: int, partitions: int) -> list[Record]:
    """Records of which each key is in all partitions."""
    return [
        Record(key=b"k%d" % (n % keys), value=b"%d" % n, partition=(n // keys) % partitions)
        for n in range(records)
    ]


def counting(job: Job, servers: str, topics: tuple[str, str], prefix: str) -> Job:
    """Counts the records of each key; their topic is not partitioned by it."""
    source, sink = topics
    job.source(KafkaSource(bootstrap_servers=servers, topics=[source], bounded=True)).key_by(
        "key"
    ).aggregate(count=Count()).map_batches(as_text).sink(
        KafkaSink(bootstrap_servers=servers, topic=sink, transactional_id_prefix=prefix)
    )
    return job


def require_exact_counts(servers: str, topic: str, keys: int, records: int) -> None:
    """The last count of each key is its number of records, and counts only grow."""
    found: dict[bytes | None, list[int]] = defaultdict(list)
    for record in read(servers, topic):
        found[record.key].append(int(record.value or b""))
    expected = Counter(b"k%d" % (n % keys) for n in range(records))
    assert {key: counts[-1] for key, counts in found.items()} == expected
    assert all(sorted(set(counts)) == counts for counts in found.values())


@pytest.mark.parametrize("engine", ["continuous", "micro-batch"])
def test_keyed_counts_through_a_repartition_topic_are_exact(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, engine: str
) -> None:
    """The reader of the topic ends after its writer, and not before."""
    source, sink = topic(partitions=4), topic(partitions=2)
    produce(kafka.bootstrap, source, numbered(KEYS, RECORDS, 4))
    job = Job(
        "counts",
        spark,
        checkpoint_dir=str(tmp_path / "checkpoint"),
        interval_s=0.2,
        regions=1,
        engine=engine,
    )
    counting(job, kafka.bootstrap, (source, sink), unique("counts")).run()
    require_exact_counts(kafka.bootstrap, sink, KEYS, RECORDS)
