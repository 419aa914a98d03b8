"""The copier of `test_copier`: values as they are, two regions, so many records per transaction.

It stands where Kafka's own system test has its ``TransactionalMessageCopier``. The continuous
engine has no limit of records in an epoch, so there the copier takes its time instead.
"""

import os
import time
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.runtime.job.job import Job
from tests.chaos.command_line import parsed

_CONTINUOUS = "continuous"
_SMALL_FETCHES = {"kafka.queued.min.messages": "1", "kafka.max.partition.fetch.bytes": "8192"}
"""So that a task does not get more at a time than it shall have in an epoch."""


def by_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Key and value alone: the output has another number of partitions than the input."""
    return batch.select(["key", "value"])


def paced(per_s: float) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """The same, of so many records a second."""

    def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(batch.num_rows / per_s)  # the pace itself
        return by_key(batch)

    return copied


def main() -> None:
    """Parse the command line of the examples and run the job."""
    args = parsed(__doc__)
    engine, most = os.environ["COPIER_ENGINE"], os.environ["TRANSACTION_RECORDS"]
    is_paced = engine == _CONTINUOUS
    spark = SparkSession.builder.master(args.master).appName("copier").getOrCreate()
    job = Job(
        "copier",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        engine=engine,
        regions=int(os.environ["COPIERS"]),
    )
    job.source(
        KafkaSource(
            bootstrap_servers=args.bootstrap,
            topics=[args.input],
            bounded=args.until_end,
            options=_SMALL_FETCHES if is_paced else {"maxOffsetsPerTrigger": most},
        )
    ).map_batches(paced(int(most) / args.interval) if is_paced else by_key).sink(
        KafkaSink(
            bootstrap_servers=args.bootstrap,
            topic=args.output,
            transactional_id_prefix=f"copier-{args.output}",
        )
    )
    job.run()


if __name__ == "__main__":
    main()
