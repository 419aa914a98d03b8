"""A topic copied into Parquet files by Sluice and by Spark's own file sink, in one session; with
``--objects`` by Sluice alone, to a local disk and to an object store.

They take turns. Each copy reads with the same source and the same limit per batch, as fast as it
can, into a directory of its own. The program writes its seconds to ``--progress`` as a line of
JSON, and ends after the last copy.
"""

import argparse
import io
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from sluice import HdfsSink, KafkaSource, install
from sluice.runtime.job.job import Job, Stream
from sluice.runtime.spark.fast_start.fast_start_settings import fast_start
from sluice.runtime.storage.objects.object_location import object_location

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

    def objects(self, directory: Path) -> None:
        """The same job, whose tasks upload the files."""
        target = f"{self._args.objects}/{directory.name}/files"
        self._job(directory, lambda stream: stream.map_batches(keep), target)

    def transform(self, directory: Path) -> None:
        """Through Spark's planner."""
        self._job(directory, lambda stream: stream.transform(same))

    def rows(self, way: str, directory: Path) -> int:
        """Rows of the files of a copy."""
        if way != "objects":
            return self._spark.read.parquet(str(directory / "files")).count()
        store = object_location(f"{self._args.objects}/{directory.name}/files").open()
        found = [each["path"] for page in obstore.list(store) for each in page]
        files = (pq.ParquetFile(io.BytesIO(obstore.get(store, p).bytes())) for p in found)
        return sum(file.metadata.num_rows for file in files)

    def _job(
        self, directory: Path, functions: Callable[[Stream], Stream], target: str | None = None
    ) -> None:
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
        functions(job.source(source)).sink(HdfsSink(target or str(directory / "files")))
        job.run()


def main() -> None:
    """Copy each way once uncounted, then ``--repeat`` times in turn, each second turn backwards."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "directory", "progress", "max-records"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--output", help="a topic; not used")
    parser.add_argument("--objects", help="s3://bucket/prefix, by the environment's credentials")
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
    if args.objects:
        ways = {"chained": copies.chained, "objects": copies.objects}
    for turn in range(args.repeat + 1):
        for name in list(ways) if turn % 2 == 0 else list(ways)[::-1]:
            directory = Path(args.directory) / f"{name}-{turn}"
            started_s = time.monotonic()
            ways[name](directory)
            line = {"way": name, "turn": turn, "seconds": time.monotonic() - started_s}
            rows = copies.rows(name, directory)
            with Path(args.progress).open("a", encoding="utf-8") as file:
                file.write(json.dumps({**line, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
