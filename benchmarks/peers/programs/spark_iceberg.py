"""Copies a topic into Iceberg tables by Spark's own Kafka source and Iceberg's own streaming sink.

Settings, and why. ``local[2]``: a task for each core. One query to the end of the topic. Without
``--most`` a backlog is one batch and one commit, which is Spark's fastest. With it, a batch has so
many records at most (``maxOffsetsPerTrigger``), for as many commits as another sink makes. The
catalog is a directory (``hadoop``), the cheapest one. The web interface is off, as for ours. The
heap is Spark's default of 1 GiB.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

COLUMNS = "key BINARY, value BINARY, partition INT, offset BIGINT"


def main() -> None:
    """Copy twice, each time into a new table: the first copy warms the JVM up."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "directory", "progress", "jars"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--most", type=int, help="records of a batch")
    args = parser.parse_args()
    most = {} if args.most is None else {"maxOffsetsPerTrigger": str(args.most)}
    os.environ["PYSPARK_PYTHON"] = sys.executable
    directory = Path(args.directory)
    jars = (jar for place in args.jars.split(",") for jar in sorted(Path(place).glob("*.jar")))
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.catalog.bench", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.bench.type", "hadoop")
        .config("spark.sql.catalog.bench.warehouse", (directory / "warehouse").as_uri())
        .getOrCreate()
    )
    for turn in range(2):
        table = f"bench.lake.copy{turn}"
        spark.sql(
            f"CREATE TABLE {table} ({COLUMNS}) USING iceberg TBLPROPERTIES ('format-version'='2')"
        )
        started_s = time.monotonic()
        records = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", args.bootstrap)
            .option("subscribe", args.input)
            .option("kafka.isolation.level", "read_committed")
            .option("startingOffsets", "earliest")
            .options(**most)
            .load()
        )
        (
            records.select("key", "value", "partition", "offset")
            .writeStream.format("iceberg")
            .option("checkpointLocation", str(directory / f"checkpoint-{turn}"))
            .trigger(availableNow=True)
            .toTable(table)
            .awaitTermination()
        )
        line = {"turn": turn, "seconds": time.monotonic() - started_s}
        line["rows"] = spark.table(table).count()
        line["commits"] = spark.table(f"{table}.snapshots").count()
        with Path(args.progress).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
