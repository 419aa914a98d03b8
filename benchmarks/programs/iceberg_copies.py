"""Copies a topic into Iceberg tables by Sluice: one chained job to the end of the topic.

The engine is the job's own choice, and a checkpoint each second is a commit.
"""

import argparse
import json
import time
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice import IcebergSink, Job, KafkaSource
from sluice.runtime.spark.fast_start.fast_start_settings import fast_start

_MASTER = "local[2]"
_COLUMNS = ["key", "value", "partition", "offset"]
_SCHEMA = pa.schema(
    {"key": pa.binary(), "value": pa.binary(), "partition": pa.int32(), "offset": pa.int64()}
)


def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The cheapest chained function."""
    return batch


def main() -> None:
    """Copy twice, each time into a new table: the first copy warms the JVM up."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "directory", "progress"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--output", help="a topic; not used")
    args = parser.parse_args()
    directory = Path(args.directory)
    directory.mkdir(parents=True)
    spark = (
        SparkSession.builder.master(_MASTER)
        .appName("iceberg")
        .config(map=fast_start(_MASTER))
        .getOrCreate()
    )
    for turn in range(2):
        name = f"lake.copy{turn}"
        at = {
            "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": (directory / "warehouse").as_uri(),
        }
        sink = IcebergSink(catalog=at, table=name)
        catalog = sink.catalog_settings.open()
        catalog.create_namespace_if_not_exists("lake")
        catalog.create_table(name, _SCHEMA)
        started_s = time.monotonic()
        _copy(spark, args, sink, directory / f"checkpoint-{turn}")
        line: dict[str, float] = {"turn": turn, "seconds": time.monotonic() - started_s}
        table = catalog.load_table(name)
        line["rows"] = table.scan().count()
        line["commits"] = len(table.metadata.snapshots)
        with Path(args.progress).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _copy(
    spark: SparkSession, args: argparse.Namespace, sink: IcebergSink, checkpoint: Path
) -> None:
    job = Job("iceberg", spark, checkpoint_dir=str(checkpoint), interval_s=1)
    source = KafkaSource(
        bootstrap_servers=args.bootstrap,
        topics=[args.input],
        columns=_COLUMNS,
        include_headers=False,
        bounded=True,
    )
    job.source(source).map_batches(keep).sink(sink)
    job.run()


if __name__ == "__main__":
    main()
