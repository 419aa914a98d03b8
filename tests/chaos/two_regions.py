"""A job of two regions under one coordinator: one chained with two sinks, one a frame with one.

The input's even partitions are copied by the first, to the output and to ``{output}-copy``; the
odd ones by the second. So the output is that of the plain copy, and its judge will do.
"""

from pyspark.sql import DataFrame, SparkSession

from sluice import KafkaSink, KafkaSource
from sluice.runtime.job.job import Job
from tests.chaos.command_line import exclaim, parsed
from tests.kit.kafka.kafka_records import admin, create_topic, partition_count


def shout(records: DataFrame) -> DataFrame:
    """What `exclaim` does, by Spark's planner."""
    return records.selectExpr("key", "concat(value, X'21') AS value", "headers", "partition")


def main() -> None:
    """Parse the command line of the examples and run the job."""
    args = parsed(__doc__)
    spark = SparkSession.builder.master(args.master).appName("two regions").getOrCreate()
    job = Job(
        "two-regions",
        spark,
        checkpoint_dir=args.checkpoint,
        interval_s=args.interval,
        engine=args.engine,
    )
    count = partition_count(args.bootstrap, args.input)
    copy = f"{args.output}-copy"
    if copy not in admin(args.bootstrap).list_topics(timeout=120).topics:
        create_topic(args.bootstrap, copy, partitions=count)

    def source(name: str, first: int) -> KafkaSource:
        numbers = list(range(first, count, 2))
        return KafkaSource(
            bootstrap_servers=args.bootstrap,
            partitions={args.input: numbers},
            bounded=args.until_end,
            name=name,
        )

    def sink(name: str, topic: str) -> KafkaSink:
        return KafkaSink(
            bootstrap_servers=args.bootstrap,
            topic=topic,
            transactional_id_prefix=f"{name}-{args.output}",
            name=name,
        )

    even = job.source(source("even", 0)).map_batches(exclaim)
    even.sink(sink("even-out", args.output)).sink(sink("even-copy", copy))
    job.source(source("odd", 1)).transform(shout).sink(sink("odd-out", args.output))
    job.run()


if __name__ == "__main__":
    main()
