"""Copy a topic into an Iceberg table exactly once, appending ``!`` to each value.

Makes the table if it is not there. You may kill it and start it again at any time.
"""

import argparse
import sys

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sluice import IcebergSink, Job, KafkaSource, StreamError, fast_start

TABLE = pa.schema(
    {"key": pa.binary(), "value": pa.binary(), "partition": pa.int32(), "offset": pa.int64()}
)
SMALL_METADATA = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "history.expire.max-snapshot-age-ms": "600000",
    "history.expire.min-snapshots-to-keep": "100",
}


def exclaim(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One Arrow batch in, one out; runs in the worker that reads."""
    value = batch.column("value")
    shouted = pc.binary_join_element_wise(value, pa.scalar(b"!", value.type), b"")
    named = batch.set_column(batch.schema.get_field_index("value"), "value", shouted)
    return named.select(TABLE.names)


def main() -> None:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port of the Kafka cluster")
    parser.add_argument("--input", required=True, help="topic to read, from its beginning")
    parser.add_argument("--catalog", required=True, help="URI of the catalog: sqlite, https, …")
    parser.add_argument("--warehouse", required=True, help="of the catalog (URI, path or name)")
    parser.add_argument("--table", required=True, help="namespace.table")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory (URI or path)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds of one epoch")
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the input")
    parser.add_argument("--metrics-port", type=int, help="serves metrics and the page; 0: any")
    parser.add_argument("--from", dest="origin", metavar="URI", help="savepoint to start from")
    parser.add_argument("--regions", type=int, metavar="N", help="parts of the input")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    args = parser.parse_args()

    at = {"uri": args.catalog, "warehouse": args.warehouse}
    sink = IcebergSink(catalog=at, table=args.table, expire_snapshots=True)
    catalog = sink.catalog_settings.open()  # with the store's keys from the environment
    catalog.create_namespace_if_not_exists(args.table.rpartition(".")[0])
    catalog.create_table_if_not_exists(args.table, TABLE, properties=SMALL_METADATA)
    spark = (
        SparkSession.builder.master(args.master)
        .appName("kafka_to_iceberg")
        .config(map=fast_start(args.master))
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    job = Job(
        "kafka-to-iceberg",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        regions=args.regions,
        restore_from=args.origin,
        metrics_port=args.metrics_port,
    )
    job.source(
        KafkaSource(bootstrap_servers=args.bootstrap, topics=[args.input], bounded=args.until_end)
    ).map_batches(exclaim).sink(sink)
    job.run()


if __name__ == "__main__":
    try:
        main()
    except StreamError as error:  # the text has the error, its location and a remedy
        sys.exit(f"{type(error).__name__}: {error}")
