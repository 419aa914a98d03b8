"""Copy a topic in regions: a failed region restarts by itself, and the other regions continue
meanwhile."""

import argparse
import sys

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from benchmarks.region_lines import RegionLines
from sluice import HdfsSink, KafkaSink, KafkaSource
from sluice.runtime.coordinator.policy.handlers import RegionalCheckpointHandler
from sluice.runtime.errors import StreamError
from sluice.runtime.job.job import Job
from sluice.runtime.spark.fast_start.fast_start_settings import fast_start


def exclaim(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One Arrow batch in, one out; runs in the worker that reads and produces."""
    value = batch.column("value")
    shouted = pc.binary_join_element_wise(value, pa.scalar(b"!", value.type), b"")
    return batch.set_column(batch.schema.get_field_index("value"), "value", shouted)


def main() -> None:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port of the Kafka cluster")
    parser.add_argument("--input", required=True, help="topic to read, from its beginning")
    parser.add_argument("--output", required=True, help="topic to write")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory (URI or path)")
    parser.add_argument("--path", help="also write the records into files there")
    parser.add_argument("--regions", type=int, default=4, help="how many")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="of one epoch"
    )
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the input")
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
    except StreamError as error:  # the text has the error, its location and a remedy
        sys.exit(f"{type(error).__name__}: {error}")
