"""Copy payments exactly once; those that fail go to the topic ``--dead`` with their error.

``--list`` shows dead letters and their origin; ``--replay`` writes repaired ones to the input once.
"""

import argparse
import json
import sys

import pyarrow as pa
from pyspark.sql import SparkSession

from sluice import DeadLetters, Job, KafkaSink, KafkaSource, StreamError, fast_start, install


def in_cents(batch: pa.RecordBatch) -> pa.RecordBatch:
    """An amount of "9.90" becomes 990; other text raises. The key chooses the partition."""
    payments = [json.loads(value) for value in batch["value"].to_pylist()]
    made = [json.dumps(p | {"amount": round(float(p["amount"]) * 100)}) for p in payments]
    return batch.set_column(1, "value", pa.array(made, pa.string())).drop_columns(["partition"])


def repaired(batch: pa.RecordBatch) -> pa.RecordBatch:
    """An amount of "9,90" becomes "9.9", without Sluice's headers; others are skipped."""
    payments = [json.loads(value) for value in batch["value"].to_pylist()]
    made = [json.dumps(p | {"amount": str(float(p["amount"].replace(",", ".")))}) for p in payments]
    headers = [[h for h in hs if h["key"][:7] != "sluice."] for hs in batch["headers"].to_pylist()]
    columns = [batch["key"], pa.array(made, pa.string()), pa.array(headers, batch["headers"].type)]
    return pa.RecordBatch.from_arrays(columns, ["key", "value", "headers"])


def list_letters(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """Print a row for each dead letter; 1,000 at most."""
    install(spark)
    reader = spark.read.format("sluice-kafka").option("includeHeaders", "true")
    letters = reader.option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    text = "string(try_element_at(filter(headers, h -> h.key = 'sluice.{0}').value, -1)) AS `{0}`"
    names = ["error.class", "error.message", "source.topic", "source.partition", "source.offset"]
    letters.selectExpr(*map(text.format, names), "string(value)").show(1_000, truncate=False)


def main() -> None:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="host:port of the Kafka cluster")
    parser.add_argument("--input", required=True, help="topic to read, from its beginning")
    parser.add_argument("--output", required=True, help="topic to write")
    parser.add_argument("--dead", required=True, help="topic for dead letters")
    parser.add_argument("--checkpoint", required=True, help="checkpoint directory (URI or path)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds of one epoch")
    parser.add_argument("--until-end", action="store_true", help="stop at the end of the input")
    parser.add_argument("--list", action="store_true", help="print the dead letters and stop")
    parser.add_argument("--replay", action="store_true", help="repair the dead letters and stop")
    parser.add_argument("--from", dest="origin", metavar="URI", help="savepoint to start from")
    parser.add_argument("--regions", type=int, metavar="N", help="parts of the input")
    parser.add_argument("--master", default="local[2]", help="Spark master")
    args = parser.parse_args()
    builder = SparkSession.builder.master(args.master).appName("dead_letters")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config(map=fast_start(args.master)).getOrCreate()
    if args.list:
        list_letters(spark, args.bootstrap, args.dead)
        sys.exit(0)
    name, read, write, ends = "payments", args.input, args.output, args.until_end
    if args.replay:
        name, read, write, ends = "payments-replay", args.dead, args.input, True
    at, path = args.bootstrap, f"{args.checkpoint}/{name}"
    job = Job(
        name,
        spark,
        checkpoint_dir=path,
        interval_s=args.interval,
        regions=args.regions,
        restore_from=None if args.replay else args.origin,
    )
    source = KafkaSource(bootstrap_servers=at, topics=[read], bounded=ends)
    sink = KafkaSink(bootstrap_servers=at, topic=write, transactional_id_prefix=f"{name}-{write}")
    if args.replay:
        job.source(source).map_batches(repaired, on_error="skip").sink(sink)
    else:
        job.source(source).map_batches(in_cents, on_error=DeadLetters(topic=args.dead)).sink(sink)
    job.run()


if __name__ == "__main__":
    try:
        main()
    except StreamError as error:  # the text has the error, its location and a remedy
        sys.exit(f"{type(error).__name__}: {error}")
