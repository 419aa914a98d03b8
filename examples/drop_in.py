"""Copy a topic exactly once in a plain Structured Streaming program, appending ``!`` to each value.

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
        .appName("drop_in")
        .config(map=sluice.fast_start(args.master))
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    sluice.install(spark)
    records = (
        spark.readStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("subscribe", args.input)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )
    shouted = F.concat("value", F.lit(b"!"))
    writer = (
        records.select("key", shouted.alias("value"), "partition", "headers")
        .writeStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("topic", args.output)
        .option("transactionalIdPrefix", f"drop-in-{args.output}")
        .option("checkpointLocation", args.checkpoint)
    )
    if args.until_end:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{args.interval} seconds")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
