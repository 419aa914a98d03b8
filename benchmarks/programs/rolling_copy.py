"""A topic copied into Parquet files that stay open over epochs, partitioned by Kafka's partition.

Runs until killed, or with ``--until-end`` to the end of the input. It writes epochs to
``--progress`` as `pipeline` does.
"""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.programs.pipeline import ProgressFile, keep
from sluice import HdfsSink, KafkaSource, Roll
from sluice.runtime.job.job import Job
from sluice.runtime.spark.fast_start.fast_start_settings import fast_start

_MASTER = "local[2]"


def main() -> None:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "directory", "progress"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--interval", type=float, default=0.2)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--until-end", action="store_true")
    args = parser.parse_args()
    spark = (
        SparkSession.builder.master(_MASTER)
        .appName("rolling")
        .config(map=fast_start(_MASTER))
        .getOrCreate()
    )
    job = Job(
        "rolling",
        spark,
        checkpoint_dir=f"{args.directory}/checkpoint",
        interval_s=args.interval,
        listeners=[ProgressFile(Path(args.progress))],
    )
    source = KafkaSource(
        bootstrap_servers=args.bootstrap,
        topics=[args.input],
        columns=["key", "value", "partition"],
        include_headers=False,
        bounded=args.until_end,
    )
    sink = HdfsSink(
        f"{args.directory}/files",
        partition_by=["partition"],
        roll=Roll(size=args.size, age=24 * 3600.0),
    )
    job.source(source).map_batches(keep).sink(sink)
    job.run()


if __name__ == "__main__":
    main()
