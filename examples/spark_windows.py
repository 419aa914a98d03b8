"""Sum amounts per key and minute of event time, and write each minute once, when it is over.

A minute is over when a record is ``--delay`` seconds newer than its end; later rows are dropped,
counted and printed.
"""

import argparse
import sys
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice import Job, KafkaSink, KafkaSource, Progress, State, StreamError, fast_start


def sums_per_minute(records: DataFrame, delay_s: int) -> DataFrame:
    """Values are JSON: {"at": "2026-01-01T12:00:30Z", "amount": 5}; other values are left out, and
    times in the future, too: one of them would end all minutes before it."""
    sale = F.from_json(F.col("value").cast("string"), "at timestamp, amount double")
    sales = records.select("key", sale.alias("sale")).select("key", "sale.at", "sale.amount")
    on_time = sales.where("at <= current_timestamp()").withWatermark("at", f"{delay_s} seconds")
    sums = on_time.groupBy("key", F.window("at", "1 minute").alias("minute")).sum("amount")
    sums = sums.selectExpr("key", "minute.start", "minute.end", "`sum(amount)` AS amount")
    return sums.selectExpr("key", "to_json(struct(start, end, amount)) AS value")


class LateRows:
    """A listener; it counts what became final with a checkpoint."""

    def __init__(self) -> None:
        self.rows = 0

    def on_progress(self, progress: Progress) -> None:
        """Called by the job at each change of a checkpoint."""
        if progress.state is State.MARKED:
            late = sum(counts.late for counts in progress.counts.values())
            self.rows += late
            if late:
                print(f"{late} late rows dropped, {self.rows} in this run", flush=True)


def main() -> None:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port of the Kafka cluster")
    parser.add_argument("--input", required=True, help="topic to read, from its beginning")
    parser.add_argument("--output", required=True, help="topic to write")
    parser.add_argument("--delay", type=int, default=10, help="seconds to wait for late records")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory (URI or path)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds of one epoch")
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the input")
    parser.add_argument("--from", dest="origin", metavar="URI", help="savepoint to start from")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    args = parser.parse_args()
    builder = SparkSession.builder.master(args.master).appName("spark_windows")
    builder = builder.config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config(map=fast_start(args.master)).getOrCreate()
    path, late = args.checkpoint, [LateRows()]
    job = Job(
        "spark-windows",
        spark,
        checkpoint_dir=path,
        interval_s=args.interval,
        restore_from=args.origin,
        listeners=late,
    )
    source = KafkaSource(
        bootstrap_servers=args.bootstrap, topics=[args.input], bounded=args.until_end
    )
    sink = KafkaSink(
        bootstrap_servers=args.bootstrap,
        topic=args.output,
        transactional_id_prefix=f"spark-windows-{args.output}",
    )
    sums = partial(sums_per_minute, delay_s=args.delay)
    job.source(source).transform(sums, output_mode="append").sink(sink)
    job.run()


if __name__ == "__main__":
    try:
        main()
    except StreamError as error:  # the text has the error, its location and a remedy
        sys.exit(f"{type(error).__name__}: {error}")
