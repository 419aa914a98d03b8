"""Loads the classes of a Sluice job in Spark's JVM, which writes them to an archive at exit.

`class_archive` runs it as a program. The session has default flags, like a user's, because Java
shares most classes if the flags are those of the archive.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from sluice.runtime.errors import WaitedTooLongError
from sluice.runtime.spark.session.spark_session import query_settings

__all__ = ["EndlessSource", "same"]

_BATCHES = 2
_TIMEOUT_S = 600


class _Reader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def latestOffset(self, start: dict[str, int], limit: object = None) -> dict[str, int]:
        return {"next": start["next"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array(["x"])], ["value"])


class EndlessSource(DataSource):
    """A source without Sluice: one record per batch and partition, forever."""

    @classmethod
    def name(cls) -> str:
        return "endless"

    def schema(self) -> str:
        return "value string"

    def streamReader(self, schema: StructType) -> _Reader:
        return _Reader()


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A Python function for `mapInArrow` that changes nothing."""
    yield from batches


def _run(frame: DataFrame, mode: str) -> None:
    seen: list[int] = []

    def take(batch: DataFrame, batch_id: int) -> None:
        seen.append(len(batch.mapInArrow(same, batch.schema).collect()))

    query = frame.writeStream.outputMode(mode).foreachBatch(take).start()
    for _ in range(10 * _TIMEOUT_S):
        if len(seen) >= _BATCHES:
            break
        query.awaitTermination(0.1)  # type: ignore[arg-type]  # a number of seconds
    query.stop()
    if len(seen) < _BATCHES:
        raise WaitedTooLongError(
            "Spark did not run the batches for the class archive",
            {"batches": len(seen), "wanted": _BATCHES, "waited_s": _TIMEOUT_S},
            "Read the log: the machine may be very busy, or a query of Spark hangs.",
        )


def main() -> None:
    """A chained and a stateful query, two batches each."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.ui.port", 0)
        .getOrCreate()
    )
    spark.dataSource.register(EndlessSource)
    with query_settings(spark, batches_to_retain=2):
        rows = spark.readStream.format("endless").name("rows").load()
        _run(rows, "append")
        _run(rows.groupBy("value").count(), "update")
    spark.stop()


if __name__ == "__main__":
    main()
