"""Count records per key with keyed state: per epoch and changed key, the running count as decimal
text. With ``--repartition`` the input may be partitioned by anything."""

import argparse
import sys

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice import Count, Job, KafkaSink, KafkaSource, StreamError, fast_start


def as_text(counts: pa.RecordBatch) -> pa.RecordBatch:
    """Kafka records of the counts."""
    text = counts["count"].cast(pa.string()).cast(pa.binary())
    return pa.RecordBatch.from_pydict({"key": counts["key"], "value": text})


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
    parser.add_argument("--backend", default="memory", help="of the state: memory or rocksdb")
    parser.add_argument("--repartition", action="store_true", help="by key, in a topic of the job")
    parser.add_argument("--regions", type=int, help="parts that restart alone")
    args = parser.parse_args()

    spark = (
        SparkSession.builder.master(args.master)
        .appName("keyed_counts")
        .config(map=fast_start(args.master))
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    job = Job(
        "keyed-counts",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        restore_from=args.origin,
        metrics_port=args.metrics_port,
        regions=args.regions,
        state_backend=args.backend,
    )
    sink = KafkaSink(
        bootstrap_servers=args.bootstrap,
        topic=args.output,
        transactional_id_prefix=f"keyed-counts-{args.output}",
    )
    records = job.source(
        KafkaSource(bootstrap_servers=args.bootstrap, topics=[args.input], bounded=args.until_end)
    )
    keyed = records.key_by("key", partitioned=not args.repartition)
    keyed.aggregate(count=Count()).map_batches(as_text).sink(sink)
    job.run()


if __name__ == "__main__":
    try:
        main()
    except StreamError as error:  # the text has the error, its location and a remedy
        sys.exit(f"{type(error).__name__}: {error}")
