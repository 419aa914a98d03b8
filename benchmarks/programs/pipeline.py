"""The pipeline under measurement: the copy of the examples, with the settings a figure varies.

It writes every change of a checkpoint to ``--progress`` as a line of JSON. The line has the wall
clock, so that a benchmark can compare barriers with the sightings of a reader.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.runtime.coordinator.core.events import Progress
from sluice.runtime.job.job import Job
from sluice.runtime.spark.fast_start.fast_start_settings import fast_start


class ProgressFile:
    """Writes each change of a checkpoint as a line of JSON. Driver, the listeners' thread."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_progress(self, progress: Progress) -> None:
        """See `sluice.runtime.coordinator.shell.action_dispatcher.ProgressListener`."""
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
            "skipped": {name: why.value for name, why in progress.skipped.items()},
            "reason": progress.reason,
            "attempts": dict(progress.attempts),
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The cheapest chained function."""
    return batch


def exclaim(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Append a byte to every value, as `expression` does."""
    value = batch.column("value")
    changed = pc.binary_join_element_wise(value, pa.scalar(b"!", value.type), b"")
    return batch.set_column(batch.schema.get_field_index("value"), "value", changed)


_FUNCTIONS = {"keep": keep, "exclaim": exclaim}


def expression(records: DataFrame) -> DataFrame:
    """One SQL expression through Spark's planner."""
    return records.selectExpr("key", "concat(value, X'21') AS value", "partition")


def count_per_key(records: DataFrame) -> DataFrame:
    """The same as `examples/count_per_key.py`."""
    return records.groupBy("key").count().selectExpr("key", "cast(count AS string) AS value")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "checkpoint", "progress"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--mode", choices=["chained", "transform", "count"], default="chained")
    parser.add_argument("--function", choices=_FUNCTIONS, default="keep", help="of --mode chained")
    parser.add_argument("--engine", default="micro-batch")
    parser.add_argument("--coordinator", choices=["driver", "process"], default="driver")
    parser.add_argument("--ha", help="of the job")
    parser.add_argument("--guarantee", default="exactly-once")
    parser.add_argument("--hot-path", default="auto")
    parser.add_argument("--max-records", default="")
    parser.add_argument("--regions", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=2, help="that run at the same time")
    parser.add_argument("--columns", choices=["used", "all"], default="used", help="of the source")
    parser.add_argument("--arrow-rows", type=int, default=10_000, help="of Spark, in one batch")
    return parser.parse_args()


def main() -> None:
    """Run until killed."""
    args = _arguments()
    master = f"local[{args.tasks}]"
    spark = (
        SparkSession.builder.master(master)
        .appName("benchmark")
        .config(map=fast_start(master))
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", args.arrow_rows)
        .getOrCreate()
    )
    progress = ProgressFile(Path(args.progress))
    job = Job(
        "benchmark",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        listeners=[progress],
        regions=args.regions,
        engine=args.engine,
        coordinator=args.coordinator,
        ha=args.ha,
    )
    limit = {"maxOffsetsPerTrigger": args.max_records} if args.max_records else {}
    used: dict[str, Any] = {"columns": ["key", "value", "partition"], "include_headers": False}
    source = job.source(
        KafkaSource(
            bootstrap_servers=args.bootstrap,
            topics=[args.input],
            options=limit,
            hot_path=args.hot_path,
            **(used if args.columns == "used" else {}),
        )
    )
    stream = (
        source.map_batches(_FUNCTIONS[args.function])
        if args.mode == "chained"
        else source.transform(expression if args.mode == "transform" else count_per_key)
    )
    stream.sink(
        KafkaSink(
            bootstrap_servers=args.bootstrap,
            topic=args.output,
            transactional_id_prefix=f"benchmark-{args.output}",
            guarantee=args.guarantee,
            hot_path=args.hot_path,
        )
    )
    job.run()


if __name__ == "__main__":
    main()
