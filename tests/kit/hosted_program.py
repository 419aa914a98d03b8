"""A driver that hosts the regions of a job for a coordinator in another process."""

import time
from pathlib import Path

import pyarrow as pa

from sluice import Job, KafkaSink, KafkaSource
from sluice.connectors.testing.local_spark import local_spark

__all__ = ["host_a_copy"]


def _slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(batch.num_rows / 20_000)  # several epochs
    return batch


def host_a_copy(
    bootstrap: str, source: str, sink: str, directory: Path, checkpoint: str, *, bounded: bool
) -> None:
    """Copy records in two continuous regions.

    Args:
        directory: for this driver alone.
        checkpoint: URI of the job's directory.
    """
    with local_spark(directory / "spark") as spark:
        job = Job(
            "hosted",
            spark,
            checkpoint_dir=checkpoint,
            interval_s=0.2,
            regions=2,
            retained=1_000,
            engine="continuous",
            coordinator="process",
            coordinator_lost_timeout_s=300.0,  # a busy machine starts a coordinator in minutes
        )
        job.source(
            KafkaSource(bootstrap_servers=bootstrap, topics=[source], bounded=bounded)
        ).map_batches(_slow, name="slow").sink(
            KafkaSink(bootstrap_servers=bootstrap, topic=sink, transactional_id_prefix=sink)
        )
        job.run()
