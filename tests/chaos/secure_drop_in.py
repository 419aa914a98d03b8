"""The drop-in copy over a cluster that asks for a password; options come as JSON."""

import argparse
import json
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import connectors


def main() -> None:
    """Parse the command line of the examples and run the query."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "checkpoint", "master"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--until-end", action="store_true")
    args = parser.parse_args()
    settings = json.loads(os.environ["SECURE_COPY"])
    spark = SparkSession.builder.master(args.master).appName("secure drop-in").getOrCreate()
    connectors.install(spark)
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
    if args.until_end:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{args.interval} seconds")
    query = writer.start()
    try:
        query.awaitTermination()
    finally:
        print(query.lastProgress, query.exception())  # noqa: T201 - what a user would look at
        query.explain(extended=True)


if __name__ == "__main__":
    main()
