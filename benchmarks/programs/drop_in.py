"""A Structured Streaming query into our formats, for the race against Spark's own and Flink.

``sql`` and ``arrow`` append ``!`` to each value, by an expression and by a Python function over
Arrow batches. ``count`` counts records per key in output mode ``update``.

Settings, and why. ``local[2]``: a task for each core. Without ``--max-records`` a backlog is one
batch, Spark's fastest, as for Spark's own source. Counts have it, so that there is more than one
batch. The state has two partitions, as many as tasks.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

import sluice


def exclaim(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Append a byte to every value."""
    for batch in batches:
        value = batch.column("value")
        changed = pc.binary_join_element_wise(value, pa.scalar(b"!", value.type), b"")
        yield pa.RecordBatch.from_arrays([changed], ["value"])


def _sql(records: DataFrame) -> DataFrame:
    return records.selectExpr("concat(value, X'21') AS value")


def _arrow(records: DataFrame) -> DataFrame:
    return records.select("value").mapInArrow(exclaim, "value binary")


def _count(records: DataFrame) -> DataFrame:
    """By the last four digits of a record's number: 10,000 keys."""
    counted = records.selectExpr("substring(value, 13, 4) AS key").groupBy("key").count()
    return counted.selectExpr("key", "CAST(count AS STRING) AS value")


_KINDS = {"sql": _sql, "arrow": _arrow, "count": _count}


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "directory"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--interval", type=float, required=True)
    parser.add_argument("--kind", choices=_KINDS, required=True)
    parser.add_argument("--max-records", help="of a batch")
    parser.add_argument("--columns", help="that the source creates, as a schema; without it all")
    args = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[2]")
        .config(map=sluice.fast_start("local[2]"))
        .config("spark.sql.shuffle.partitions", 2)
        .getOrCreate()
    )
    sluice.install(spark)
    limit = {} if args.max_records is None else {"maxOffsetsPerTrigger": args.max_records}
    source = (
        spark.readStream.format("sluice-kafka")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("subscribe", args.input)
        .option("startingOffsets", "earliest")
        .options(**limit)
    )
    records = (source if args.columns is None else source.schema(args.columns)).load()
    (
        _KINDS[args.kind](records)
        .writeStream.format("sluice-kafka")
        .outputMode("update" if args.kind == "count" else "append")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("topic", args.output)
        .option("transactionalIdPrefix", args.output)
        .option("checkpointLocation", str(Path(args.directory) / "checkpoint"))
        .trigger(processingTime=f"{args.interval * 1000:.0f} milliseconds")
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    main()
