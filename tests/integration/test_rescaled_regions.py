"""A Job that is started again with another number of regions: 1, then 3, then 2."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from sluice import HdfsSink, KafkaSink, KafkaSource, Roll
from sluice.connectors.hdfs.staging.pending_files import PENDING_KIND
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.errors import RegionGivenUpError
from sluice.runtime.job.job import Job
from sluice.runtime.model.checkpoint_record import CheckpointRecord, Verdict
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read, unique

pytestmark = [pytest.mark.integration, pytest.mark.extended]

PARTITIONS = 4
RECORDS = 36


def stopping_at(limit: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that cannot continue once a record's number has reached the limit."""

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        numbers = pc.cast(pc.cast(batch.column("value"), pa.string()), pa.int64())
        if batch.num_rows and pc.max(numbers).as_py() >= limit:
            raise ValueError("no further")
        return batch

    return run


def newest(directory: Path) -> CheckpointRecord:
    store = open_store(str(directory))
    records = [found for place in store.slots() if (found := store.read(place)) is not None]
    return [found for found in records if found.verdict is Verdict.DECIDED][-1]


def test_restore_by_attempt_a_job_continues_with_other_numbers_of_regions(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Each record is written once, into topic and files, in order in each partition, though each
    run but the last ends in an error, with open transactions and with files held for later."""
    source, sink = topic(partitions=PARTITIONS), topic(partitions=PARTITIONS)
    directory, prefix = tmp_path / "checkpoint", unique("rescaled")
    given = [Record(value=b"%d" % n, partition=n % PARTITIONS) for n in range(RECORDS)]
    produce(kafka.bootstrap, source, given)

    def run(regions: int, limit: int) -> None:
        job = Job(
            "rescaled",
            spark,
            checkpoint_dir=str(directory),
            interval_s=0.1,
            tolerable_failures=0,
            regions=regions,
        )
        (
            job.source(
                KafkaSource(
                    bootstrap_servers=kafka.bootstrap,
                    topics=[source],
                    bounded=True,
                    options={"maxOffsetsPerTrigger": "4"},
                )
            )
            .map_batches(stopping_at(limit))
            .sink(
                KafkaSink(
                    bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=prefix
                )
            )
            .sink(HdfsSink(tmp_path / "rows", columns=["value", "partition"], roll=Roll(age=3600)))
        )
        job.run()

    names: list[set[str]] = []
    for regions, limit in ((1, 10), (3, 24)):
        with pytest.raises(RegionGivenUpError, match="no further"):
            run(regions, limit)
        left = newest(directory)
        names.append({region.region for region in left.regions})
        held = [e.kind for region in left.regions for e in region.operator_states]
        assert PENDING_KIND in held, "files are held when the number of regions changes"
        assert any(split.end_offset for region in left.regions for split in region.splits)
    run(2, RECORDS)
    last = newest(directory)
    assert [len(found) for found in names] == [1, 3]
    assert len(last.regions) == 2
    assert last.assignment is not None
    assert last.assignment.version == 3
    assert sorted(len(mine) for mine in last.assignment.regions.values()) == [2, 2]
    found = [(r.partition, int(r.value or b"")) for r in read(kafka.bootstrap, sink)]
    for partition in range(PARTITIONS):
        mine = [number for at, number in found if at == partition]
        assert mine == list(range(partition, RECORDS, PARTITIONS))
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted((row.partition, int(row.value)) for row in rows) == sorted(found)
