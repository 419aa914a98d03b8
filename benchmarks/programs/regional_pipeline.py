"""A copy in regions under measurement: tasks that die on request, a region that is slow.

The program writes changes of checkpoints as `benchmarks.programs.pipeline` does. It writes each
warning of the job, as the cause of a region's restart, into the same file with the wall clock.
"""

import argparse
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from benchmarks.programs.pipeline import ProgressFile
from benchmarks.regions.mortal_sink import Doom, MortalSink
from sluice import KafkaSource
from sluice.runtime.coordinator.policy.balance import LoadBalancer
from sluice.runtime.coordinator.policy.handlers import (
    GlobalCheckpointHandler,
    RegionalCheckpointHandler,
)
from sluice.runtime.job.job import Job
from sluice.runtime.spark.fast_start.fast_start_settings import fast_start

_SOURCE = "in"
_TASKS = 2


class EventFile(logging.Handler):
    """Each warning as a line of JSON with the wall clock."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`; called under its lock."""
        line = {"at_s": record.created, "message": record.getMessage()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def into(outputs: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Keep records, and map input partitions to so many output partitions."""

    def place(batch: pa.RecordBatch) -> pa.RecordBatch:
        found = batch.column("partition")
        shared = pc.subtract(found, pc.multiply(pc.divide(found, outputs), outputs))
        at = batch.schema.get_field_index("partition")
        return batch.set_column(at, "partition", shared.cast(found.type))

    return place


def shuffled(records: DataFrame) -> DataFrame:
    """Shuffle each row to one of two tasks, always to the same one."""
    return records.select("value", "partition").repartition(_TASKS, "value")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "checkpoint", "progress"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--regions", type=int, default=1)
    parser.add_argument("--engine", default="micro-batch")
    parser.add_argument("--regional", action="store_true", help="skip failed regions")
    parser.add_argument("--late-after", type=float, help="seconds; then skip late regions")
    parser.add_argument("--outputs", type=int, default=16, help="partitions of the output")
    parser.add_argument("--doom", type=Path, help="directory of requested deaths")
    parser.add_argument("--speed", type=float, help="records a second of a region at most")
    parser.add_argument("--slow", type=float, help="the same for the first region")
    parser.add_argument("--balance", action="store_true")
    parser.add_argument("--shuffle", action="store_true", help="one region, with a shuffle")
    parser.add_argument("--recovery", default="region")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--one-task", action="store_true", help="a region runs one task at a time")
    parser.add_argument("--max-records", default="", help="of an epoch of a region")
    parser.add_argument("--until-end", action="store_true")
    return parser.parse_args()


def _job(args: argparse.Namespace) -> Job:
    settings = {**fast_start(args.master), "spark.ui.showConsoleProgress": "false"}
    settings["spark.scheduler.mode"] = "FAIR"
    if args.one_task:
        settings["spark.default.parallelism"] = "1"
    spark = (
        SparkSession.builder.master(args.master)
        .appName("benchmark")
        .config(map=settings)
        .getOrCreate()
    )
    late = RegionalCheckpointHandler(region_timeout_s=args.late_after)
    return Job(
        "benchmark",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        regions=args.regions,
        checkpoint_handler=late if args.regional else GlobalCheckpointHandler(),
        recovery=args.recovery,
        engine=args.engine,
        load_balancer=LoadBalancer() if args.balance else None,
        listeners=[ProgressFile(Path(args.progress))],
    )


def main() -> None:
    """Run until killed, or to the end of the input."""
    args = _arguments()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger().addHandler(EventFile(Path(args.progress).with_name("events")))
    job = _job(args)
    speeds = {}
    if args.speed is not None:
        speeds = {f"{_SOURCE}-{number}": args.speed for number in range(args.regions)}
    if args.slow is not None:
        speeds[f"{_SOURCE}-0" if args.regions > 1 else _SOURCE] = args.slow
    source = job.source(
        KafkaSource(
            bootstrap_servers=args.bootstrap,
            topics=[args.input],
            columns=["key", "value", "partition"],
            include_headers=False,
            bounded=args.until_end,
            name=_SOURCE,
            options={"maxOffsetsPerTrigger": args.max_records} if args.max_records else {},
        )
    )
    stream = source.transform(shuffled) if args.shuffle else source.map_batches(into(args.outputs))
    stream.sink(
        MortalSink(
            doom=None if args.doom is None else Doom(args.doom),
            records_per_s=speeds,
            bootstrap_servers=args.bootstrap,
            topic=args.output,
            transactional_id_prefix=f"benchmark-{args.output}",
        )
    )
    job.run()


if __name__ == "__main__":
    main()
