"""The same windowed count as a plain Structured Streaming query, no-data batches switched on."""

import argparse

from pyspark.sql import SparkSession

import connectors
from tests.chaos.windowed import windows


def main() -> None:
    """Parse the command line of the examples and run the query."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "checkpoint", "master"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--until-end", action="store_true")
    args = parser.parse_args()
    spark = SparkSession.builder.master(args.master).appName("windowed").getOrCreate()
    connectors.install(spark)
    records = (
        spark.readStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("subscribe", args.input)
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = (
        windows(records)
        .writeStream.format("sluice-kafka")
        .outputMode("append")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("topic", args.output)
        .option("transactionalIdPrefix", f"windowed-drop-in-{args.output}")
        .option("checkpointLocation", args.checkpoint)
    )
    if args.until_end:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{args.interval} seconds")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
