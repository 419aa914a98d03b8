"""The copy as a plain Structured Streaming query whose own callback writes each batch's frame."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import sluice
from tests.chaos.command_line import parsed, started


def main() -> None:
    """Parse the command line of the examples and run the query."""
    args = parsed(__doc__)
    spark = SparkSession.builder.master(args.master).appName("frames").getOrCreate()
    sluice.install(spark)

    def write(frame: DataFrame, batch_id: int) -> None:
        (
            frame.write.format("sluice-kafka")
            .option("kafka.bootstrap.servers", args.bootstrap)
            .option("topic", args.output)
            .option("transactionalIdPrefix", f"frames-{args.output}")
            .option("checkpointLocation", args.checkpoint)
            .option("batchId", batch_id)
            .save()
        )

    records = (
        spark.readStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("subscribe", args.input)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )
    shouted = F.concat("value", F.lit(b"!")).alias("value")
    writer = records.select("key", shouted, "partition", "headers").writeStream.foreachBatch(write)
    started(writer.option("checkpointLocation", args.checkpoint), args).awaitTermination()


if __name__ == "__main__":
    main()
