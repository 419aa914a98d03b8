"""Copy a topic exactly once, appending ``!`` to each value. You may kill it and start it again at
any time.

Keeps key, headers and partition; a null value stays null.
"""

import argparse
import sys

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sluice import Job, KafkaSink, KafkaSource, StreamError, fast_start


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
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="of one epoch"
    )
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the input")
    parser.add_argument("--metrics-port", type=int, help="serves metrics and the page; 0: any")
    parser.add_argument("--from", dest="origin", metavar="URI", help="savepoint to start from")
    parser.add_argument("--regions", type=int, metavar="N", help="parts of the input")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    args = parser.parse_args()

    spark = (
        SparkSession.builder.master(args.master)
        .appName("kafka_to_kafka")
        .config(map=fast_start(args.master))
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    job = Job(
        "kafka-to-kafka",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        regions=args.regions,
        restore_from=args.origin,
        metrics_port=args.metrics_port,
    )
    job.source(
        KafkaSource(bootstrap_servers=args.bootstrap, topics=[args.input], bounded=args.until_end)
    ).map_batches(exclaim).sink(
        KafkaSink(
            bootstrap_servers=args.bootstrap,
            topic=args.output,
            transactional_id_prefix=f"kafka-to-kafka-{args.output}",
        )
    )
    result = job.run()
    print(
        f"done in {result.elapsed_s:.1f} s: "
        f"checkpoints {result.restored_from or 0} to {result.last_checkpoint_id}"
    )


if __name__ == "__main__":
    try:
        main()
    except StreamError as error:  # the text has the error, its location and a remedy
        sys.exit(f"{type(error).__name__}: {error}")
