"""A windowed count with a watermark, as a Job: closed windows come in batches without records."""

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice import KafkaSink, KafkaSource
from sluice.runtime.job.job import Job
from tests.chaos.command_line import parsed


def windows(records: DataFrame) -> DataFrame:
    """Records per second of their timestamp; each window once, when the watermark has passed it."""
    counted = (
        records.withWatermark("timestamp", "1 second").groupBy(F.window("timestamp", "1 second"))
    ).count()
    return counted.select(
        F.unix_millis("window.start").cast("string").cast("binary").alias("key"),
        F.col("count").cast("string").cast("binary").alias("value"),
    )


def main() -> None:
    """Parse the command line of the examples and run the job."""
    args = parsed(__doc__)
    spark = SparkSession.builder.master(args.master).appName("windowed").getOrCreate()
    job = Job(
        "windowed",
        spark,
        checkpoint_dir=args.checkpoint,
        spark_checkpoint_dir=os.environ.get("SPARK_CHECKPOINT_DIR"),
        interval_s=args.interval,
    )
    job.source(
        KafkaSource(bootstrap_servers=args.bootstrap, topics=[args.input], bounded=args.until_end)
    ).transform(windows, output_mode="append").sink(
        KafkaSink(
            bootstrap_servers=args.bootstrap,
            topic=args.output,
            transactional_id_prefix=f"windowed-{args.output}",
        )
    )
    job.run()


if __name__ == "__main__":
    main()
