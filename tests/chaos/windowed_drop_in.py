"""The same windowed count as a plain Structured Streaming query, no-data batches switched on."""

from pyspark.sql import SparkSession

import sluice
from tests.chaos.command_line import parsed, started
from tests.chaos.windowed import windows


def main() -> None:
    """Parse the command line of the examples and run the query."""
    args = parsed(__doc__)
    spark = SparkSession.builder.master(args.master).appName("windowed").getOrCreate()
    sluice.install(spark)
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
    started(writer, args).awaitTermination()


if __name__ == "__main__":
    main()
