"""A new job from the state of another one: same, fewer and more regions, copied directories."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice import HdfsSink, KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.job.job import Job
from sluice.runtime.model.checkpoint_record import CheckpointRecord, Verdict
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique

pytestmark = pytest.mark.integration

PARTITIONS = 4
KEYS = 5


def counted(records: DataFrame) -> DataFrame:
    return records.groupBy("key").count().selectExpr("key", "cast(count AS string) AS value")


def records(numbers: Iterable[int]) -> list[Record]:
    return [
        Record(key=b"k%d" % (n % KEYS), value=b"%d" % n, partition=n % PARTITIONS) for n in numbers
    ]


def newest(directory: Path) -> CheckpointRecord:
    store = open_store(str(directory))
    found = [record for place in store.slots() if (record := store.read(place)) is not None]
    return [each for each in found if each.verdict is Verdict.DECIDED][-1]


class Bed:
    """A broker, an input, and jobs that read it to its end."""

    def __init__(self, spark: SparkSession, kafka: EmbeddedKafka, path: Path) -> None:
        self.spark, self.kafka, self.path = spark, kafka, path

    def run(
        self,
        directory: Path,
        source: str,
        sink: str,
        *,
        kind: str = "chained",
        regions: int | None = None,
        transform: Callable[[DataFrame], DataFrame] = counted,
        **restore: object,
    ) -> None:
        """Run a job to the end of its input."""
        job = Job(
            "restored",
            self.spark,
            checkpoint_dir=directory,
            interval_s=0.1,
            tolerable_failures=0,
            regions=regions,
            **restore,  # type: ignore[arg-type]
        )
        stream = job.source(
            KafkaSource(
                bootstrap_servers=self.kafka.bootstrap,
                topics=[source],
                name="in",
                bounded=True,
                options={"maxOffsetsPerTrigger": "20"},
            )
        )
        if kind == "state":
            stream.transform(transform, name="count")
        if kind == "files":
            stream.sink(HdfsSink(self.path / sink, columns=["value"], name="out"))
        else:
            stream.sink(
                KafkaSink(
                    bootstrap_servers=self.kafka.bootstrap,
                    topic=sink,
                    name="out",
                    transactional_id_prefix=unique("restored"),
                )
            )
        job.run()

    def output(self, sink: str, kind: str) -> list[bytes]:
        """What readers see: values, for counts with their keys."""
        if kind == "files":
            rows = self.spark.read.parquet(str(self.path / sink)).collect()
            return sorted(bytes(row.value) for row in rows)
        found = read(self.kafka.bootstrap, sink)
        if kind == "state":
            newest = {r.key: int(r.value or b"") for r in found}
            return sorted(b"%s=%d" % (key, count) for key, count in newest.items() if key)
        return sorted(r.value or b"" for r in found)


def expected(numbers: range, kind: str, *, seen: range) -> list[bytes]:
    """What the new job writes of its own records, with the state of those seen before."""
    if kind != "state":
        return sorted(b"%d" % n for n in numbers)
    counts = Counter(b"k%d" % (n % KEYS) for n in [*seen, *numbers])
    return sorted(b"%s=%d" % each for each in counts.items())


@pytest.mark.parametrize("kind", ["state"])
def test_a_new_job_continues_with_the_state_of_the_old_one(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path, kind: str
) -> None:
    bed = Bed(spark, kafka, tmp_path)
    source, first, second = topic(partitions=PARTITIONS), topic(), topic()
    produce(kafka.bootstrap, source, records(range(60)))
    old = tmp_path / "old"
    bed.run(old, source, first, kind=kind)
    produce(kafka.bootstrap, source, records(range(60, 100)))
    copied = tmp_path / "elsewhere"
    shutil.move(old, copied)
    origin = copied / slot_name(newest(copied).checkpoint_id)
    bed.run(tmp_path / "new", source, second, kind=kind, restore_from=origin)
    assert bed.output(second, kind) == expected(range(60, 100), kind, seen=range(60))
