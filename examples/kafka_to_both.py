"""Copy a topic into another one and into files, exactly once: each epoch is in both or in neither.

Appends ``!`` to each value; a null value stays null. You may kill it and start it again at any
time.
"""

import argparse
import sys

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sluice import HdfsSink, Job, KafkaSink, KafkaSource, StreamError, fast_start

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp"]


def exclaim(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One Arrow batch in, one out, for both sinks; runs in the worker that reads and produces."""
    value = batch.column("value")
    shouted = pc.binary_join_element_wise(value, pa.scalar(b"!", value.type), b"")
    return batch.set_column(batch.schema.get_field_index("value"), "value", shouted)


def main() -> None:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port of the Kafka cluster")
    parser.add_argument("--input", required=True, help="topic to read, from its beginning")
    parser.add_argument("--output", required=True, help="topic to write")
    parser.add_argument("--path", required=True, help="directory to write (URI or path)")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory (URI or path)")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="of one epoch"
    )
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the input")
    parser.add_argument("--format", default="parquet", help="parquet, orc, avro, json or csv")
    parser.add_argument("--from", dest="origin", metavar="URI", help="savepoint to start from")
    parser.add_argument("--regions", type=int, metavar="N", help="parts of the input")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    args = parser.parse_args()

    spark = (
        SparkSession.builder.master(args.master)
        .appName("kafka_to_both")
        .config(map=fast_start(args.master))
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    job = Job(
        "kafka-to-both",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        regions=args.regions,
        restore_from=args.origin,
    )
    job.source(
        KafkaSource(bootstrap_servers=args.bootstrap, topics=[args.input], bounded=args.until_end)
    ).map_batches(exclaim).sink(
        KafkaSink(
            bootstrap_servers=args.bootstrap,
            topic=args.output,
            transactional_id_prefix=f"kafka-to-both-{args.output}",
        )
    ).sink(HdfsSink(args.path, format=args.format, columns=COLUMNS))
    job.run()


if __name__ == "__main__":
    try:
        main()
    except StreamError as error:  # the text has the error, its location and a remedy
        sys.exit(f"{type(error).__name__}: {error}")
