"""The copy as a plain Structured Streaming query into files, written by tasks without a JVM."""

import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import sluice
from tests.chaos.command_line import parsed, started


def main() -> None:
    """Parse the command line of the examples and run the query."""
    args = parsed(__doc__)
    spark = SparkSession.builder.master(args.master).appName("files").getOrCreate()
    sluice.install(spark)
    records = (
        spark.readStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("subscribe", args.input)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", os.environ.get("MAX_OFFSETS", "1000000"))
        .load()
    )
    shouted = F.concat("value", F.lit(b"!")).alias("value")
    writer = (
        records.select("key", shouted, "partition", "offset")
        .writeStream.format("sluice-files")
        .option("path", args.path)
        .option("checkpointLocation", args.checkpoint)
    )
    started(writer, args).awaitTermination()


if __name__ == "__main__":
    main()
