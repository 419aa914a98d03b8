"""The peer of a recovery: a plain streaming query, from the start of Python to its first batch.

No Kafka, no Sluice, and nothing to recover: what Spark itself takes until a user's function has
seen a first record. Ends then.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

_TASKS = 2


class _Reader(DataSourceStreamReader):
    """One record for each task."""

    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def latestOffset(self, start: dict[str, int], limit: object = None) -> dict[str, int]:
        return {"next": start["next"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(_TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array(["x"])], ["value"])


class _Source(DataSource):
    @classmethod
    def name(cls) -> str:
        return "plain"

    def schema(self) -> str:
        return "value string"

    def streamReader(self, schema: StructType) -> _Reader:
        return _Reader()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _first_batch(frame: DataFrame, _: int) -> None:
    assert len(frame.mapInArrow(_same, frame.schema).collect()) == _TASKS
    os._exit(0)  # what an orderly end takes is not asked here


def main() -> None:
    """Start, and end with the first batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True, type=Path)
    args = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").appName("plain").getOrCreate()
    spark.dataSource.register(_Source)
    rows = spark.readStream.format("plain").load()
    query = rows.writeStream.foreachBatch(_first_batch)
    query.option("checkpointLocation", str(args.checkpoint)).start().awaitTermination()


if __name__ == "__main__":
    main()
