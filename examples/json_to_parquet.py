"""Write JSON orders as Parquet files, exactly once, in a directory for each day and country.

A record that is no order goes to the topic ``--dead``, and ``_SUCCESS`` marks a directory once
Kafka's timestamps are past its day.
"""

import argparse
import sys

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sluice import (
    DeadLetters,
    HdfsSink,
    Job,
    JsonDeserializer,
    KafkaSink,
    KafkaSource,
    PartitionCommit,
    StreamError,
    fast_start,
)

ORDER = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("country", pa.string(), nullable=False),
        pa.field("amount", pa.decimal128(12, 2), nullable=False),
        pa.field("ordered_at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("note", pa.string()),
    ]
)


def order_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One column for each field of an order, and its day; a record without a value is dropped."""
    columns = dict(zip(ORDER.names, batch["value"].drop_null().flatten(), strict=True))
    return pa.RecordBatch.from_pydict(columns | {"day": pc.strftime(columns["ordered_at"], "%F")})


def main() -> None:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port of the Kafka cluster")
    parser.add_argument("--input", required=True, help="topic to read, from its beginning")
    parser.add_argument("--path", required=True, help="directory to write (URI or path)")
    parser.add_argument("--dead", required=True, help="topic for records that are no orders")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory (URI or path)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds of one epoch")
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the input")
    parser.add_argument("--from", dest="origin", metavar="URI", help="savepoint to start from")
    parser.add_argument("--regions", type=int, metavar="N", help="parts of the input")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    args = parser.parse_args()
    builder = SparkSession.builder.master(args.master).appName("json_to_parquet")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config(map=fast_start(args.master)).getOrCreate()
    job = Job(
        "json-to-parquet",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        regions=args.regions,
        restore_from=args.origin,
    )
    source = KafkaSource(
        bootstrap_servers=args.bootstrap,
        topics=[args.input],
        bounded=args.until_end,
        value_deserializer=JsonDeserializer(schema=ORDER),
        on_error=DeadLetters(topic=args.dead),
    )
    complete = PartitionCommit(trigger="partition-time", delay_s=86_400, watermark_time_zone="UTC")
    files = HdfsSink(args.path, partition_by=["day", "country"], partition_commit=complete)
    prefix = f"json-to-parquet-{args.dead}"
    dead = KafkaSink(
        bootstrap_servers=args.bootstrap, transactional_id_prefix=prefix, dead_letters_only=True
    )
    job.source(source).map_batches(order_columns).sink(files).sink(dead)
    job.run()


if __name__ == "__main__":
    try:
        main()
    except StreamError as error:  # the text has the error, its location and a remedy
        sys.exit(f"{type(error).__name__}: {error}")
