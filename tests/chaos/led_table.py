"""A copy into an Iceberg table and files of a bucket, led by coordinators of their own processes.

``TABLE_CATALOG`` has the properties of the table's catalog as JSON.
"""

import json
import os

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice import HdfsSink, IcebergSink, KafkaSource
from sluice.runtime.job.job import Job
from tests.chaos.command_line import parsed
from tests.chaos.table_copy import CATALOG
from tests.kit.iceberg.iceberg_bed import TABLE


def value_alone(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The column of the table."""
    return batch.select(["value"])


def main() -> None:
    """Parse the command line of the examples and run the job."""
    args = parsed(__doc__)
    spark = SparkSession.builder.master(args.master).appName("led table").getOrCreate()
    job = Job(
        "led-table",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        engine="continuous",
        coordinator="process",
    )
    source = KafkaSource(bootstrap_servers=args.bootstrap, topics=[args.input])
    copied = job.source(source).map_batches(value_alone)
    copied.sink(IcebergSink(catalog=json.loads(os.environ[CATALOG]), table=TABLE))
    copied.sink(HdfsSink(args.path))
    job.run()


if __name__ == "__main__":
    main()
