"""Spark's own Kafka source and sink, at least once: every value gains a "!", or a count per key.

Settings, and why. ``local[2]``: a task for each core, two partitions each. The trigger is the
interval of the run. Spark's performance tips recommend asynchronous progress tracking for this kind
of query, stateless and from Kafka to Kafka: Spark writes offsets once a second, beside the work. No
``maxOffsetsPerTrigger``: a backlog is one batch, which is Spark's fastest. The web interface is
off, as for ours. The heap is Spark's default of 1 GiB. It is the same for all contenders, as are
``linger.ms``, ``batch.size`` and the isolation level. Spark's sink has no transactions, so a
stronger guarantee cannot be measured. A count cannot track its progress asynchronously, and has
``--max-records`` a batch, as ours; its state has a partition for each task.
"""

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "directory", "jars"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--interval", type=float, required=True)
    parser.add_argument("--max-records", help="of a batch of counts; without it values are copied")
    args = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, sorted(Path(args.jars).glob("*.jar")))))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", 2)
        .getOrCreate()
    )
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("subscribe", args.input)
        .option("kafka.isolation.level", "read_committed")
        .option("startingOffsets", "earliest")
    )
    if args.max_records is None:
        copied = source.load().selectExpr("concat(value, X'21') AS value")
        writer = copied.writeStream.option("asyncProgressTrackingEnabled", "true")
    else:
        records = source.option("maxOffsetsPerTrigger", args.max_records).load()
        counted = records.selectExpr("substring(value, 13, 4) AS key").groupBy("key").count()
        text = counted.selectExpr("key", "CAST(count AS STRING) AS value")
        writer = text.writeStream.outputMode("update")
    (
        writer.format("kafka")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("kafka.linger.ms", "20")
        .option("kafka.batch.size", "1000000")
        .option("topic", args.output)
        .option("checkpointLocation", str(Path(args.directory) / "checkpoint"))
        .trigger(processingTime=f"{args.interval * 1000:.0f} milliseconds")
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    main()
