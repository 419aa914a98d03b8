"""A program whose function numbers its records by operator state, for kills."""

import time
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice import FunctionContext, Job, KafkaSink, KafkaSource, OperatorState
from sluice.connectors.testing.local_spark import local_spark

__all__ = ["number_and_copy", "numbering_job"]

_STATE = OperatorState(pa.schema([("partition", pa.int32()), ("next", pa.int64())]))


def _numbered(batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
    """Each record with its number in its partition, as the state counts them."""
    counts: dict[int, int] = {}
    for row in ctx.state:  # other regions may have counted a partition that came here
        counts[row["partition"]] = counts.get(row["partition"], 0) + row["next"]
    numbers = []
    for partition in batch["partition"].to_pylist():
        numbers.append(b"%d-%d" % (partition, counts.get(partition, 0)))
        counts[partition] = counts.get(partition, 0) + 1
    ctx.state.replace({"partition": p, "next": n} for p, n in counts.items())
    time.sleep(batch.num_rows / 4_000)  # several epochs
    return pa.RecordBatch.from_pydict({"value": pa.array(numbers, pa.binary())})


def numbering_job(
    spark: SparkSession, bootstrap: str, source: str, sink: str, directory: Path, engine: str
) -> Job:
    """Numbers the records of the moment, in two regions."""
    job = Job(
        "numbering",
        spark,
        checkpoint_dir=directory / "checkpoint",
        interval_s=0.1,
        regions=2,
        engine=engine,
    )
    job.source(
        KafkaSource(
            bootstrap_servers=bootstrap,
            topics=[source],
            bounded=True,
            options={} if engine == "continuous" else {"maxOffsetsPerTrigger": "500"},
        )
    ).map_batches(_numbered, name="numbered", state=_STATE).sink(
        KafkaSink(bootstrap_servers=bootstrap, topic=sink, transactional_id_prefix=sink)
    )
    return job


def number_and_copy(bootstrap: str, source: str, sink: str, directory: Path, engine: str) -> None:
    """Run `numbering_job` to the end of its source."""
    with local_spark(directory / "spark") as spark:
        numbering_job(spark, bootstrap, source, sink, directory, engine).run()
