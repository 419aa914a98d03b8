"""The copy of a topic into a table as a plain Structured Streaming query.

The variable ``TABLE_CATALOG`` has properties of the table's catalog as JSON.
"""

import json
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import sluice
from tests.chaos.command_line import parsed, started
from tests.chaos.table_copy import CATALOG
from tests.kit.iceberg.iceberg_bed import TABLE


def main() -> None:
    """Parse the command line of the examples and run the query."""
    args = parsed(__doc__)
    spark = SparkSession.builder.master(args.master).appName("table").getOrCreate()
    sluice.install(spark)
    records = (
        spark.readStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("subscribe", args.input)
        .option("startingOffsets", "earliest")
        .load()
    )
    shouted = F.concat("value", F.lit(b"!")).alias("value")
    writer = (
        records.select("key", shouted, "partition", "offset")
        .writeStream.format("sluice-iceberg")
        .option("table", TABLE)
        .option("checkpointLocation", args.checkpoint)
    )
    for name, value in json.loads(os.environ[CATALOG]).items():
        writer = writer.option(f"catalog.{name}", value)
    started(writer, args).awaitTermination()


if __name__ == "__main__":
    main()
