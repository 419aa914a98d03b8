"""The copy into files that are held over epochs, merged often and published rarely."""

from pyspark.sql import SparkSession

from sluice import HdfsSink, KafkaSource, Roll
from sluice.connectors.hdfs.rolling import roll_plan as rolling
from sluice.runtime.job.job import Job
from sluice.runtime.spark.fast_start.fast_start_settings import fast_start
from tests.chaos.command_line import exclaim, parsed

COLUMNS = ["key", "value", "partition", "offset"]


def main() -> None:
    """Parse the command line of the examples and run the job."""
    args = parsed(__doc__)
    spark = (
        SparkSession.builder.master(args.master)
        .appName("rolling")
        .config(map=fast_start(args.master))
        .getOrCreate()
    )
    rolling.FAN_IN = 2
    job = Job("rolling", spark, checkpoint_dir=args.checkpoint, interval_s=args.interval)
    source = KafkaSource(
        bootstrap_servers=args.bootstrap, topics=[args.input], bounded=args.until_end
    )
    sink = HdfsSink(args.path, columns=COLUMNS, roll=Roll(size="64k", age=3.0))
    job.source(source).map_batches(exclaim).sink(sink)
    job.run()


if __name__ == "__main__":
    main()
