"""A driver that hosts the regions of a job for a coordinator in another process."""

import logging
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from sluice import FixedDelayRestart, Job, KafkaSink, KafkaSource
from sluice.connectors.testing.local_spark import local_spark
from tests.kit.keyed.counted_by_key import counting

__all__ = ["host_a_copy", "host_counts"]


def _slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(batch.num_rows / 20_000)  # several epochs
    return batch


def host_a_copy(
    bootstrap: str,
    source: str,
    sink: str,
    directory: Path,
    checkpoint: str,
    restore_from: str | None = None,
    *,
    bounded: bool = False,
) -> None:
    """Copy records in two continuous regions.

    Args:
        directory: for this driver alone.
        checkpoint: path or URI of the job's directory.
        restore_from: id of one of its checkpoints, or a path.
    """
    logging.basicConfig()
    logging.getLogger("sluice").setLevel(logging.INFO)  # tests read when it has joined a leader
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
            coordinator_lost_timeout_s=300.0,  # a busy machine starts a coordinator in minutes
            restore_from=int(restore_from) if restore_from and is_id else restore_from,
        )
        job.source(
            KafkaSource(bootstrap_servers=bootstrap, topics=[source], bounded=bounded)
        ).map_batches(_slow, name="slow").sink(
            KafkaSink(bootstrap_servers=bootstrap, topic=sink, transactional_id_prefix=sink)
        )
        job.run()


@dataclass(frozen=True, slots=True)
class _DyingOnOrder:
    """Kills a task once the file is there; the file vanishes with it."""

    order: Path

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows and self.order.exists():
            self.order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch


def host_counts(
    bootstrap: str,
    source: str,
    sink: str,
    directory: Path,
    checkpoint: str,
    restore_from: str | None = None,
) -> None:
    """Count records by key through a repartition topic, in two continuous regions. The task that
    writes the topic dies when there is a file ``writer-dies`` beside the checkpoint directory, and
    the one that reads it with ``reader-dies``."""
    orders = Path(checkpoint).parent
    with local_spark(directory / "spark") as spark:
        job = Job(
            "hosted-counts",
            spark,
            checkpoint_dir=checkpoint,
            interval_s=0.2,
            regions=1,
            retained=1_000,
            engine="continuous",
            coordinator="process",
            restart_strategy=FixedDelayRestart(attempts=10, delay_s=0.0),
            restore_from=restore_from,
        )
        counting(
            job,
            bootstrap,
            source,
            sink,
            before=_DyingOnOrder(orders / "writer-dies"),
            after=_DyingOnOrder(orders / "reader-dies"),
            bounded=False,
        ).run()
