"""The copy of the examples with a guarantee, a transaction timeout, a time that its tasks live
without their driver, an ``on_lost``, a number of regions, a recovery and a word about its function
to choose; or with a shuffle in its place. Its tasks die when they are asked to, in the directory
``DOOM`` (`benchmarks.regions.mortal_sink`).

With ``--path`` it writes files, too: of an epoch; or, with ``ROLL``, held over epochs, merged often
and published rarely; or, with ``MARKS``, in partitions of which readers are reported.
"""

import functools
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.regions.mortal_sink import Doom, MortalSink
from sluice import HdfsSink, KafkaSink, KafkaSource, PartitionCommit, Roll
from sluice.connectors.hdfs.rolling import roll_plan as rolling
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.job.job import Job
from tests.chaos.command_line import exclaim, parsed


def exclaim_behind_a_shuffle(records: DataFrame) -> DataFrame:
    """All records of a partition go to one of two tasks."""
    return records.repartition(2, "partition").withColumn("value", F.concat("value", F.lit(b"!")))


_COLUMNS = ("key", "value", "topic", "partition", "offset")
_SLICE = "slice"
_SLICE_OFFSETS = 200  # each partition of the files is written for a second or two


def with_slice(batch: pa.RecordBatch) -> pa.RecordBatch:
    """By which rows are parted into directories: a new one again and again."""
    return batch.append_column(_SLICE, pc.divide(batch.column("offset"), _SLICE_OFFSETS))


def files(path: str) -> HdfsSink:
    """Beside the topic."""
    if "MARKS" in os.environ:
        columns, parted = (*_COLUMNS, _SLICE), (_SLICE,)
        return HdfsSink(
            path, columns=columns, partition_by=parted, partition_commit=PartitionCommit()
        )
    if "ROLL" in os.environ:
        rolling.FAN_IN = 2
        return HdfsSink(path, columns=_COLUMNS, roll=Roll(size="64k", age=3.0))
    return HdfsSink(path, columns=_COLUMNS)


def main() -> None:
    """Parse the command line of the examples and run the job."""
    args = parsed(__doc__)
    spark = SparkSession.builder.master(args.master).appName("mortal copy").getOrCreate()
    most_dropped = os.environ.get("MOST_DROPPED")
    lost_s = os.environ.get("LOST_TIMEOUT_S")
    job = Job(
        "mortal-copy",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        engine=args.engine,
        timeout_s=float(os.environ.get("TIMEOUT_S", "600")),
        checkpoint_handler=RegionalCheckpointHandler() if os.environ.get("REGIONAL") else None,
        on_lost=os.environ.get("ON_LOST", "fail"),
        retained=int(os.environ.get("RETAINED", "3")),
        regions=int(os.environ.get("REGIONS", "1")),
        recovery="approximate" if most_dropped else os.environ.get("RECOVERY", "region"),
        max_dropped_records=int(most_dropped) if most_dropped else None,
        coordinator_lost_timeout_s=None if lost_s is None else float(lost_s),
    )
    source = KafkaSource(
        bootstrap_servers=args.bootstrap, topics=[args.input], bounded=args.until_end
    )
    timeout_s = os.environ.get("TRANSACTION_TIMEOUT_S")
    doom = os.environ.get("DOOM")
    sinks = KafkaSink if doom is None else functools.partial(MortalSink, doom=Doom(Path(doom)))
    sink = sinks(
        bootstrap_servers=args.bootstrap,
        topic=args.output,
        transactional_id_prefix=f"mortal-copy-{args.output}",
        transaction_timeout_s=None if timeout_s is None else float(timeout_s),
        guarantee=os.environ.get("GUARANTEE", "exactly-once"),
    )
    deterministic = os.environ.get("DETERMINISTIC", "yes") == "yes"
    records = job.source(source)
    if "SHUFFLE" in os.environ:
        records.transform(exclaim_behind_a_shuffle).sink(sink)
    else:
        copied = records.map_batches(exclaim, deterministic=deterministic)
        if args.path:
            copied.map_batches(with_slice).sink(sink).sink(files(args.path))
        else:
            copied.sink(sink)
    job.run()


if __name__ == "__main__":
    main()
