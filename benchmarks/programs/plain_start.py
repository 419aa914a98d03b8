"""The peer of a recovery: a plain streaming query, from the start of Python to its first batch.

Without Kafka, Sluice and recovery: the time of Spark itself until a user's function has its first
record. The program ends then.
"""

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from sluice.runtime.spark.fast_start.archive_workload import EndlessSource, same


def _first_batch(frame: DataFrame, _: int) -> None:
    assert frame.mapInArrow(same, frame.schema).collect()
    os._exit(0)  # the time of an orderly end is not measured


def main() -> None:
    """Start, and end after the first batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True, type=Path)
    args = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").appName("plain").getOrCreate()
    spark.dataSource.register(EndlessSource)
    rows = spark.readStream.format(EndlessSource.name()).load()
    query = rows.writeStream.foreachBatch(_first_batch)
    query.option("checkpointLocation", str(args.checkpoint)).start().awaitTermination()


if __name__ == "__main__":
    main()
