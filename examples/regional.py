"""Copy a topic in regions: if a region fails, Sluice restarts it while the other regions run."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Self, TextIO

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sluice import (
    HdfsSink,
    Job,
    KafkaSink,
    KafkaSource,
    Progress,
    RegionalCheckpointHandler,
    State,
    StreamError,
    fast_start,
)


def exclaim(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One Arrow batch in, one out; runs in the worker that reads and produces."""
    value = batch.column("value")
    shouted = pc.binary_join_element_wise(value, pa.scalar(b"!", value.type), b"")
    return batch.set_column(batch.schema.get_field_index("value"), "value", shouted)


class RegionLines:
    """A `ProgressListener` that prints a line for each checkpoint. Driver, the listeners' thread.

    As a context around the run of a job, it prints at the end how often each region was started,
    and the last checkpoint.

    Args:
        out: where to print; None: standard output.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._attempts: Mapping[str, int] = {}
        self._last_id: int | None = None

    def on_progress(self, progress: Progress) -> None:
        """Print a line when a checkpoint is committed and marked so."""
        self._attempts = progress.attempts or self._attempts
        if progress.state is not State.MARKED:
            return
        self._last_id = progress.checkpoint_id
        completed = [name for name in progress.attempts if name not in progress.skipped]
        self._print(
            f"checkpoint={progress.checkpoint_id} completed={_listed(completed)} "
            f"skipped={_listed([*progress.skipped])} records={progress.records} "
            f"seconds={progress.marked_s or 0.0:.3f}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for region, attempts in self._attempts.items():
            self._print(f"region={region} attempts={attempts}")
        self._print(f"last_checkpoint={'none' if self._last_id is None else self._last_id}")

    def _print(self, line: str) -> None:
        print(line, file=self._out, flush=True)


def _listed(names: Sequence[str]) -> str:
    return ",".join(names) or "-"


def main() -> None:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port of the Kafka cluster")
    parser.add_argument("--input", required=True, help="topic to read, from its beginning")
    parser.add_argument("--output", required=True, help="topic to write")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory (URI or path)")
    parser.add_argument("--path", help="write the records into files there, too")
    parser.add_argument("--regions", type=int, default=4, help="how many")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="of one epoch"
    )
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the input")
    parser.add_argument("--from", dest="origin", metavar="URI", help="savepoint to start from")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    args = parser.parse_args()

    own = {"spark.ui.showConsoleProgress": "false", "spark.scheduler.mode": "FAIR"}
    settings = {**fast_start(args.master), **own}
    spark = SparkSession.builder.master(args.master).config(map=settings).getOrCreate()
    servers, prefix = args.bootstrap, f"regional-{args.output}"
    source = KafkaSource(bootstrap_servers=servers, topics=[args.input], bounded=args.until_end)
    sink = KafkaSink(bootstrap_servers=servers, topic=args.output, transactional_id_prefix=prefix)
    with RegionLines() as lines:
        job = Job(
            "regional",
            spark,
            checkpoint_dir=args.checkpoint,
            interval_s=args.interval,
            restore_from=args.origin,
            regions=args.regions,
            checkpoint_handler=RegionalCheckpointHandler(),
            listeners=[lines],
        )
        copy = job.source(source).map_batches(exclaim).sink(sink)
        if args.path:
            copy.sink(HdfsSink(args.path, columns=["key", "value", "topic", "partition", "offset"]))
        job.run()


if __name__ == "__main__":
    try:
        main()
    except StreamError as error:  # it says what, where and what to do
        sys.exit(f"{type(error).__name__}: {error}")
