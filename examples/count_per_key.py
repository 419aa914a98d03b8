"""Count records per key: per epoch and changed key, the running count as decimal text.

The state is Spark's own (RocksDB); the counts stay exact over kills.
"""

import argparse
import sys

from pyspark.sql import DataFrame, SparkSession

from sluice import Job, KafkaSink, KafkaSource, StreamError, fast_start


def count_per_key(records: DataFrame) -> DataFrame:
    """Any DataFrame code may be used here; this keeps one counter per key."""
    return records.groupBy("key").count().selectExpr("key", "cast(count AS string) AS value")


def main() -> None:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port of the Kafka cluster")
    parser.add_argument("--input", required=True, help="topic to read, from its beginning")
    parser.add_argument("--output", required=True, help="topic to write")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory (URI or path)")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="of one epoch"
    )
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the input")
    parser.add_argument("--metrics-port", type=int, help="serves metrics and the page; 0: any")
    parser.add_argument("--from", dest="origin", metavar="URI", help="savepoint to start from")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    args = parser.parse_args()

    spark = (
        SparkSession.builder.master(args.master)
        .appName("count_per_key")
        .config(map=fast_start(args.master))
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", 2)
        .getOrCreate()
    )
    job = Job(
        "count-per-key",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        restore_from=args.origin,
        metrics_port=args.metrics_port,
    )
    job.source(
        KafkaSource(bootstrap_servers=args.bootstrap, topics=[args.input], bounded=args.until_end)
    ).transform(count_per_key).sink(
        KafkaSink(
            bootstrap_servers=args.bootstrap,
            topic=args.output,
            transactional_id_prefix=f"count-per-key-{args.output}",
        )
    )
    job.run()


if __name__ == "__main__":
    try:
        main()
    except StreamError as error:  # the text has the error, its location and a remedy
        sys.exit(f"{type(error).__name__}: {error}")
