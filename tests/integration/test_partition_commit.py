"""Partition commit of a Job: a success file appears once every split has passed the partition."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice import HdfsSink, KafkaSource, PartitionCommit
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import LateRecordsError
from sluice.runtime.job.job import Job, Stream
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce

pytestmark = pytest.mark.integration

HOUR_MS = 3_600_000
# Kafka deletes what is older than a week.
YESTERDAY_MS = (time.time_ns() // 10**6 // (24 * HOUR_MS) - 1) * 24 * HOUR_MS


def with_hours(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The value, and the day and hour of its timestamp in UTC."""
    at = batch.column("timestamp").cast(pa.timestamp("us"))
    columns = [batch.column("value"), pc.strftime(at, "%Y-%m-%d"), pc.hour(at)]
    return pa.RecordBatch.from_arrays(columns, ["value", "dt", "hour"])


def chained(stream: Stream) -> Stream:
    """Functions in the worker that reads."""
    return stream.map_batches(with_hours)


def through_spark(stream: Stream) -> Stream:
    """The same through Spark's planner, in the session's zone, with a shuffle after the read."""

    def hours(frame: DataFrame) -> DataFrame:
        dt = F.date_format("timestamp", "yyyy-MM-dd").alias("dt")
        return frame.select("value", dt, F.hour("timestamp").alias("hour")).repartition(2, "hour")

    return stream.transform(hours)


class Lake:
    """A topic of two partitions, and the directory into which jobs write its records."""

    def __init__(self, spark: SparkSession, kafka: EmbeddedKafka, source: str, place: Path) -> None:
        self.target = place / "lake" / "orders"
        self._spark, self._kafka, self._source, self._place = spark, kafka, source, place

    def run(self, pipeline: Callable[[Stream], Stream], *records: tuple[int, float]) -> list[int]:
        """Write (partition, hour of the day), run to the end; the hours that are marked then."""
        made = [
            Record(value=b"x", partition=n, timestamp_ms=round(YESTERDAY_MS + hour * HOUR_MS))
            for n, hour in records
        ]
        produce(self._kafka.bootstrap, self._source, made)
        checkpoint = str(self._place / "checkpoint")
        job = Job("marks", self._spark, checkpoint_dir=checkpoint, interval_s=0.2)
        servers, topics = self._kafka.bootstrap, [self._source]
        read = KafkaSource(bootstrap_servers=servers, topics=topics, bounded=True)
        commit = PartitionCommit(
            trigger="partition-time",
            delay_s=3600.0,
            timestamp_pattern="$dt $hour:00:00",
            on_late="error",
            watermark_time_zone="UTC" if pipeline is chained else None,
        )
        sink = HdfsSink(str(self.target), partition_by=["dt", "hour"], partition_commit=commit)
        pipeline(job.source(read)).sink(sink)
        job.run()
        return self.marked()

    def marked(self) -> list[int]:
        """Hours whose partition has a success file."""
        found = (path.parent.name for path in self.target.rglob("_SUCCESS"))
        return sorted(int(name.removeprefix("hour=")) for name in found)


@pytest.fixture
def lake(spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path) -> Lake:
    """Empty."""
    return Lake(spark, kafka, topic(partitions=2), tmp_path)


def test_a_partition_is_marked_once_its_slowest_split_has_passed_it(
    lake: Lake, spark: SparkSession
) -> None:
    """A run goes on with the watermarks of the one before; a late record is an error."""
    assert lake.run(chained, (0, 1.5), (0, 3.5), (1, 1.2)) == []
    assert lake.run(chained, (1, 2.5)) == [1]
    with pytest.raises(LateRecordsError, match="hour=1"):
        lake.run(chained, (0, 1.7), (1, 4.5))
    assert lake.marked() == [1]
    rows = spark.read.parquet(str(lake.target)).groupBy("hour").count().collect()
    assert sorted((row.hour, row["count"]) for row in rows) == [(1, 2), (2, 1), (3, 1)]


@pytest.fixture
def west_of_greenwich(spark: SparkSession) -> Iterator[None]:
    """Five hours."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Etc/GMT+5")
    yield
    spark.conf.set("spark.sql.session.timeZone", str(before))


@pytest.mark.usefixtures("west_of_greenwich")
def test_watermarks_come_through_spark(lake: Lake) -> None:
    """The tasks that read are others than those that write, after a shuffle. Times of partitions
    are of the session's zone: in UTC, all three hours would be long over."""
    assert lake.run(through_spark, (0, 1.5), (0, 4.5), (1, 3.5)) == [20]
