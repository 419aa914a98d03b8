"""The pipeline under measurement: the copy of the examples, with the settings a figure varies.

Every change of a checkpoint is written to ``--progress`` as a line of JSON with the wall clock, so
that barriers can be set against what readers saw.
"""

import argparse
import json
import time
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from connectors.kafka import KafkaSink, KafkaSource
from runtime.checkpoint.messages import Progress
from runtime.job import Job
from runtime.spark.fast_start import fast_start

_MASTER = "local[2]"


class ProgressFile:
    """Writes what it is told; in the listener's own thread."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_progress(self, progress: Progress) -> None:
        """See `runtime.checkpoint.progress.ProgressListener`."""
        line = {
            "at_s": time.time(),
            "checkpoint": progress.checkpoint_id,
            "state": progress.state.value,
            "records": progress.records,
            "acked_s": progress.acked_s,
            "decided_s": progress.decided_s,
            "committed_s": progress.committed_s,
            "marked_s": progress.marked_s,
            "regions": progress.regions,
            "carried": sorted(progress.carried),
            "attempts": dict(progress.attempts),
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What a chained function costs at least."""
    return batch


def expression(records: DataFrame) -> DataFrame:
    """One SQL expression through Spark's planner."""
    return records.selectExpr("key", "concat(value, X'21') AS value", "partition")


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "checkpoint", "progress"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--mode", choices=["chained", "transform"], default="chained")
    parser.add_argument("--guarantee", default="exactly-once")
    parser.add_argument("--max-records", default="")
    args = parser.parse_args()

    spark = (
        SparkSession.builder.master(_MASTER)
        .appName("benchmark")
        .config(map=fast_start(_MASTER))
        .getOrCreate()
    )
    progress = ProgressFile(Path(args.progress))
    job = Job(
        "benchmark",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        listeners=[progress],
    )
    limit = {"maxOffsetsPerTrigger": args.max_records} if args.max_records else {}
    source = job.source(
        KafkaSource(
            bootstrap_servers=args.bootstrap,
            topics=[args.input],
            columns=["key", "value", "partition"],
            include_headers=False,
            options=limit,
        )
    )
    stream = source.map_batches(keep) if args.mode == "chained" else source.transform(expression)
    stream.sink(
        KafkaSink(
            bootstrap_servers=args.bootstrap,
            topic=args.output,
            transactional_id_prefix=f"benchmark-{args.output}",
            guarantee=args.guarantee,
        )
    )
    job.run()


if __name__ == "__main__":
    main()
