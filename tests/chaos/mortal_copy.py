"""The copy of the examples with a short transaction timeout, and a choice of ``on_lost``."""

import argparse
import os

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from connectors.kafka import KafkaSink, KafkaSource
from runtime.job import Job


def exclaim(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Append ``!`` to each value that is not null."""
    value = batch.column("value")
    shouted = pc.binary_join_element_wise(value, pa.scalar(b"!", value.type), b"")
    return batch.set_column(batch.schema.get_field_index("value"), "value", shouted)


def main() -> None:
    """Parse the command line of the examples and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "checkpoint", "master"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--until-end", action="store_true")
    args = parser.parse_args()
    spark = SparkSession.builder.master(args.master).appName("mortal copy").getOrCreate()
    job = Job(
        "mortal-copy",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        on_lost=os.environ["ON_LOST"],
    )
    source = KafkaSource(
        bootstrap_servers=args.bootstrap, topics=[args.input], bounded=args.until_end
    )
    sink = KafkaSink(
        bootstrap_servers=args.bootstrap,
        topic=args.output,
        transactional_id_prefix=f"mortal-copy-{args.output}",
        transaction_timeout_s=float(os.environ["TRANSACTION_TIMEOUT_S"]),
    )
    job.source(source).map_batches(exclaim).sink(sink)
    job.run()


if __name__ == "__main__":
    main()
