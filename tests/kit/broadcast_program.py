"""A program whose function writes with each record which version of a broadcast table it saw."""

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice import FunctionContext, Job, KafkaSink, KafkaSource
from sluice.connectors.testing.local_spark import local_spark

__all__ = ["apply_rules", "rules_job"]


def _parsed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"name": batch["key"].cast(pa.string()), "version": batch["value"].cast(pa.string())}
    )


def _applied(batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
    """``partition-offset-version`` of each record."""
    assert isinstance(ctx.broadcast, pa.Table)
    (version,) = ctx.broadcast["version"].to_pylist() if ctx.broadcast.num_columns else ["none"]
    values = [
        f"{partition}-{offset}-{version}".encode()
        for partition, offset in zip(
            batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True
        )
    ]
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


def rules_job(
    spark: SparkSession,
    bootstrap: str,
    topics: tuple[str, str, str],
    directory: Path,
    engine: str,
    *,
    regions: int = 1,
    wait: bool = True,
) -> Job:
    """Reads rules and records, and writes the records with the version of the rules.

    Args:
        topics: rules, input and output.
    """
    rules, source, sink = topics
    job = Job(
        "rules",
        spark,
        checkpoint_dir=directory / "checkpoint",
        interval_s=0.1,
        retained=10_000,
        regions=regions,
        engine=engine,
    )
    table = (
        job.source(KafkaSource(bootstrap_servers=bootstrap, topics=[rules]))
        .map_batches(_parsed, name="parsed")
        .broadcast(key="name", wait=wait)
    )
    job.source(KafkaSource(bootstrap_servers=bootstrap, topics=[source])).map_batches(
        _applied, name="applied", broadcast=table
    ).sink(KafkaSink(bootstrap_servers=bootstrap, topic=sink, transactional_id_prefix=sink))
    return job


def apply_rules(bootstrap: str, topics: tuple[str, str, str], directory: Path, engine: str) -> None:
    """Run `rules_job` until it is killed or interrupted."""
    with local_spark(directory / "spark") as spark:
        rules_job(spark, bootstrap, topics, directory, engine).run()
