"""A program that counts records by key with keyed state, for kills."""

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sluice import Job, KafkaSink, KafkaSource
from sluice.connectors.testing.local_spark import local_spark
from sluice.runtime.keyed.declarations import Count

__all__ = ["count_by_key", "counting_job"]


def _as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    counts = batch["count"].cast(pa.string()).cast(pa.binary())
    return pa.RecordBatch.from_pydict({"key": batch["key"], "value": counts})


def _slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, so slowly that the records of the moment take several epochs."""
    time.sleep(batch.num_rows / 4_000)
    return batch.filter(pc.is_valid(batch["key"]))


def counting_job(
    spark: SparkSession,
    bootstrap: str,
    source: str,
    sink: str,
    directory: Path,
    *,
    engine: str,
    regions: int = 2,
) -> Job:
    """Counts the records of the moment by key; writes each changed count once per epoch."""
    job = Job(
        "counting-keys",
        spark,
        checkpoint_dir=directory / "checkpoint",
        interval_s=0.1,
        regions=regions,
        engine=engine,
    )
    stream = job.source(
        KafkaSource(
            bootstrap_servers=bootstrap,
            topics=[source],
            bounded=True,
            options={} if engine == "continuous" else {"maxOffsetsPerTrigger": "500"},
        )
    )
    counts = stream.map_batches(_slowly).key_by("key", partitioned=True).aggregate(count=Count())
    counts.map_batches(_as_text).sink(
        KafkaSink(bootstrap_servers=bootstrap, topic=sink, transactional_id_prefix=sink)
    )
    return job


def count_by_key(
    bootstrap: str, source: str, sink: str, directory: Path, engine: str, regions: int = 2
) -> None:
    """Run `counting_job` to the end of its source."""
    with local_spark(directory / "spark") as spark:
        counting_job(
            spark, bootstrap, source, sink, directory, engine=engine, regions=regions
        ).run()
