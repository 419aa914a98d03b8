"""The copier of `test_copier`: values as they are, two regions, so many records per transaction.

It stands where Kafka's own system test has its ``TransactionalMessageCopier``.
"""

import os

import pyarrow as pa
from pyspark.sql import SparkSession

from connectors.kafka import KafkaSink, KafkaSource
from runtime.job import Job
from tests.chaos.command_line import parsed


def by_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Key and value alone: the output has another number of partitions than the input."""
    return batch.select(["key", "value"])


def main() -> None:
    """Parse the command line of the examples and run the job."""
    args = parsed(__doc__)
    spark = SparkSession.builder.master(args.master).appName("copier").getOrCreate()
    job = Job(
        "copier",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        engine="micro-batch",
        regions=int(os.environ["COPIERS"]),
    )
    job.source(
        KafkaSource(
            bootstrap_servers=args.bootstrap,
            topics=[args.input],
            bounded=args.until_end,
            options={"maxOffsetsPerTrigger": os.environ["TRANSACTION_RECORDS"]},
        )
    ).map_batches(by_key).sink(
        KafkaSink(
            bootstrap_servers=args.bootstrap,
            topic=args.output,
            transactional_id_prefix=f"copier-{args.output}",
        )
    )
    job.run()


if __name__ == "__main__":
    main()
