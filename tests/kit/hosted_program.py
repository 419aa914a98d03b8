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
    bootstrap: str,
    source: str,
    sink: str,
    directory: Path,
    checkpoint: Path,
    restore_from: str | None = None,
) -> None:
    """Copy records in two continuous regions.

    Args:
        directory: for this driver alone.
        checkpoint: of the job.
        restore_from: id of one of its checkpoints, or a path.
    """
    is_id = restore_from is not None and restore_from.isdecimal()
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
            restore_from=int(restore_from) if restore_from and is_id else restore_from,
        )
        job.source(KafkaSource(bootstrap_servers=bootstrap, topics=[source])).map_batches(
            _slow, name="slow"
        ).sink(KafkaSink(bootstrap_servers=bootstrap, topic=sink, transactional_id_prefix=sink))
        job.run()
