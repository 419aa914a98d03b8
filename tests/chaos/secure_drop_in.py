"""The drop-in copy over a cluster that asks for a password; options come as JSON."""

import json
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import sluice
from tests.chaos.command_line import parsed, started


def main() -> None:
    """Parse the command line of the examples and run the query."""
    args = parsed(__doc__)
    settings = json.loads(os.environ["SECURE_COPY"])
    spark = SparkSession.builder.master(args.master).appName("secure drop-in").getOrCreate()
    sluice.install(spark)
    records = (
        spark.readStream.format("sluice-kafka")
        .options(**settings["options"])
        .option("kafka.bootstrap.servers", settings["bootstrap"])
        .option("subscribe", args.input)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )
    shouted = F.concat("value", F.lit(b"!"))
    writer = (
        records.select("key", shouted.alias("value"), "partition", "headers")
        .writeStream.format("sluice-kafka")
        .options(**settings["options"])
        .option("kafka.bootstrap.servers", settings["bootstrap"])
        .option("topic", args.output)
        .option("transactionalIdPrefix", f"secure-drop-in-{args.output}")
        .option("checkpointLocation", args.checkpoint)
    )
    query = started(writer, args)
    try:
        query.awaitTermination()
    finally:
        print(query.lastProgress, query.exception())  # noqa: T201 - what a user would look at
        query.explain(extended=True)


if __name__ == "__main__":
    main()
