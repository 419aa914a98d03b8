"""A program whose function counts its records, for kills."""

import time
from pathlib import Path

import pyarrow as pa

from sluice import FunctionContext, Job, KafkaSink, KafkaSource
from sluice.connectors.testing.local_spark import local_spark

__all__ = ["count_and_copy"]


def _counted(batch: pa.RecordBatch, ctx: FunctionContext) -> pa.RecordBatch:
    ctx.counter("seen").inc(batch.num_rows)
    even = sum(int(value) % 2 == 0 for value in batch["value"].to_pylist())
    ctx.counter("even").inc(even)
    time.sleep(batch.num_rows / 4_000)  # several epochs
    return batch


def count_and_copy(bootstrap: str, source: str, sink: str, directory: Path, engine: str) -> None:
    """Copy the records of the moment, in two regions."""
    with local_spark(directory / "spark") as spark:
        job = Job(
            "counting",
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
        ).map_batches(_counted, name="counted").sink(
            KafkaSink(bootstrap_servers=bootstrap, topic=sink, transactional_id_prefix=sink)
        )
        job.run()
