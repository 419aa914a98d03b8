"""The copy into files of a given size, in partitions of which readers are notified.

Files of each directory wait over epochs, and several of them become due in one epoch.
"""

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sluice import HdfsSink, KafkaSource, PartitionCommit, Roll
from sluice.connectors.hdfs.rolling import roll_plan as rolling
from sluice.runtime.job.job import Job
from sluice.runtime.spark.fast_start.fast_start_settings import fast_start
from tests.chaos.command_line import exclaim, parsed

_SLICE = "slice"
_SLICE_OFFSETS = 1_000  # several files of each slice


def with_slice(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Append the column that makes directories."""
    return batch.append_column(_SLICE, pc.divide(batch.column("offset"), _SLICE_OFFSETS))


def main() -> None:
    """Parse the command line of the examples and run the job."""
    args = parsed(__doc__)
    spark = (
        SparkSession.builder.master(args.master)
        .appName("marked rolls")
        .config(map=fast_start(args.master))
        .getOrCreate()
    )
    rolling.FAN_IN = 2
    job = Job("marked-rolls", spark, checkpoint_dir=args.checkpoint, interval_s=args.interval)
    source = KafkaSource(
        bootstrap_servers=args.bootstrap, topics=[args.input], bounded=args.until_end
    )
    sink = HdfsSink(
        args.path,
        columns=("key", "value", "partition", "offset", _SLICE),
        partition_by=(_SLICE,),
        roll=Roll(size="8k", age=5.0),
        partition_commit=PartitionCommit(),
    )
    job.source(source).map_batches(exclaim).map_batches(with_slice).sink(sink)
    job.run()


if __name__ == "__main__":
    main()
