"""Count records per key exactly once in a plain Structured Streaming program.

Each batch writes its changed keys, with the running count as decimal text (output mode update).
Only the two formats, and the line that installs them, are Sluice's.
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import sluice


def main() -> None:
    """Parse the command line and run the query."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port of the Kafka cluster")
    parser.add_argument("--input", required=True, help="topic to read, from its beginning")
    parser.add_argument("--output", required=True, help="topic to write")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory (URI or path)")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="of one epoch"
    )
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the input")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    args = parser.parse_args()

    spark = (
        SparkSession.builder.master(args.master)
        .appName("drop_in_counts")
        .config(map=sluice.fast_start(args.master))
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", 2)
        .getOrCreate()
    )
    sluice.install(spark)
    records = (
        spark.readStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("subscribe", args.input)
        .option("startingOffsets", "earliest")
        .load()
    )
    counts = records.groupBy("key").count()
    writer = (
        counts.select("key", F.col("count").cast("string").alias("value"))
        .writeStream.format("sluice-kafka")
        .outputMode("update")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("topic", args.output)
        .option("transactionalIdPrefix", f"drop-in-counts-{args.output}")
        .option("checkpointLocation", args.checkpoint)
    )
    if args.until_end:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{args.interval} seconds")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
