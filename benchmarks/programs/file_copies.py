"""A topic copied into Parquet files by Sluice and by Spark's own file sink, in one session.

They take turns. Each copy reads with the same source and the same limit per batch, as fast as it
can, into a directory of its own. The program writes its seconds to ``--progress`` as a line of
JSON, and ends after the last copy.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sluice import HdfsSink, KafkaSource, install
from sluice.runtime.job.job import Job, Stream
from sluice.runtime.spark.fast_start.fast_start_settings import fast_start

_MASTER = "local[2]"
_COLUMNS = ["key", "value", "partition"]


def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The cheapest chained function."""
    return batch


def same(records: DataFrame) -> DataFrame:
    """Only passes through Spark's planner."""
    return records


class _Copies:
    def __init__(self, spark: SparkSession, args: argparse.Namespace) -> None:
        self._spark = spark
        self._args = args

    def by_spark(self, directory: Path) -> None:
        """Spark's own sink, which keeps a log beside the files."""
        options = {
            "kafka.bootstrap.servers": self._args.bootstrap,
            "subscribe": self._args.input,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": self._args.max_records,
        }
        records = self._spark.readStream.format("sluice-kafka").options(**options).load()
        query = records.select(*_COLUMNS).writeStream.format("parquet")
        query = query.option("checkpointLocation", str(directory / "checkpoint"))
        query.trigger(availableNow=True).start(str(directory / "files")).awaitTermination()

    def chained(self, directory: Path) -> None:
        """Read and apply a function in one Python worker."""
        self._job(directory, lambda stream: stream.map_batches(keep))

    def transform(self, directory: Path) -> None:
        """Through Spark's planner."""
        self._job(directory, lambda stream: stream.transform(same))

    def _job(self, directory: Path, functions: Callable[[Stream], Stream]) -> None:
        job = Job(
            "files", self._spark, checkpoint_dir=str(directory / "checkpoint"), interval_s=0.01
        )
        source = KafkaSource(
            bootstrap_servers=self._args.bootstrap,
            topics=[self._args.input],
            columns=_COLUMNS,
            include_headers=False,
            bounded=True,
            options={"maxOffsetsPerTrigger": self._args.max_records},
        )
        functions(job.source(source)).sink(HdfsSink(str(directory / "files")))
        job.run()


def main() -> None:
    """Copy each way once uncounted, then ``--repeat`` times in turn, each second turn backwards."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "directory", "progress", "max-records"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--output", help="a topic; not used")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    spark = (
        SparkSession.builder.master(_MASTER)
        .appName("files")
        .config(map=fast_start(_MASTER))
        .getOrCreate()
    )
    install(spark)
    copies = _Copies(spark, args)
    ways: Mapping[str, Callable[[Path], None]] = {
        "spark": copies.by_spark,
        "chained": copies.chained,
        "transform": copies.transform,
    }
    for turn in range(args.repeat + 1):
        for name in list(ways) if turn % 2 == 0 else list(ways)[::-1]:
            directory = Path(args.directory) / f"{name}-{turn}"
            started_s = time.monotonic()
            ways[name](directory)
            line = {"way": name, "turn": turn, "seconds": time.monotonic() - started_s}
            rows = spark.read.parquet(str(directory / "files")).count()
            with Path(args.progress).open("a", encoding="utf-8") as file:
                file.write(json.dumps({**line, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
