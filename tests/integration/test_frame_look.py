"""What Spark's plan of a transform shows, before anything runs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, GroupedData, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import ConfigError
from sluice.runtime.graph.pipeline import Pipeline
from sluice.runtime.job.job import Job, Stream
from sluice.runtime.spark.frames.plan_analysis import PlanAnalysis, analyse_plan
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import produce, read, unique

pytestmark = pytest.mark.integration

Function = Callable[[DataFrame], DataFrame]


def by_sql(text: str) -> Function:
    """A statement over the source's records, as table ``records``."""

    def transform(records: DataFrame) -> DataFrame:
        records.createOrReplaceTempView("records")
        return records.sparkSession.sql(text)

    return transform


def with_table(change: Function) -> Function:
    def transform(records: DataFrame) -> DataFrame:
        table = records.sparkSession.createDataFrame([(b"k", b"x")], "key binary, other binary")
        return records.join(change(table), "key").selectExpr("other AS value")

    return transform


def value_of(change: Function) -> Function:
    return lambda records: change(records).selectExpr("'x' AS value")


def looked(
    spark: SparkSession, function: Function, *, output_mode: str | None = None
) -> PlanAnalysis:
    pipeline = Pipeline(KafkaSource(bootstrap_servers="nowhere:1", topics=["in"]))
    Stream(pipeline).transform(function, output_mode=output_mode)
    return analyse_plan(spark, pipeline)


NAMED = "WITH even AS (SELECT key, value FROM records WHERE offset % 2 = 0)"
STATELESS: dict[str, Function] = {
    "named": by_sql(f"{NAMED} SELECT value FROM even"),
    "named twice": by_sql(f"{NAMED}, same AS (SELECT * FROM even) SELECT value FROM same"),
    "unpivot": value_of(lambda all_: all_.unpivot(["offset"], ["partition"], "name", "number")),
    "sorted table": with_table(lambda table: table.orderBy("key")),
    "cubed table": with_table(lambda table: table.cube("key").agg(F.first("other").alias("other"))),
    "random number": value_of(lambda all_: all_.where(F.rand() < 0.5)),
}
STATEFUL: dict[str, Function] = {
    "named": by_sql(f"{NAMED} SELECT key, string(count(*)) AS value FROM even GROUP BY key"),
    "inside": by_sql("WITH n AS (SELECT count(*) AS n FROM records) SELECT string(n) value FROM n"),
    "cube": value_of(lambda all_: all_.cube("key", "topic").count()),
    "sorted": value_of(lambda all_: all_.groupBy("key").count().orderBy("count")),
    "distinct": value_of(lambda all_: all_.dropDuplicates(["key"])),
    "first": value_of(lambda all_: all_.groupBy("key").agg(F.first("value"))),
    "random behind it": value_of(lambda all_: all_.groupBy("key").count().where(F.rand() < 0.5)),
    "time": value_of(lambda all_: all_.groupBy(F.current_timestamp()).count()),
}


@pytest.mark.parametrize(
    ("function", "keeps_state"),
    [pytest.param(each, False, id=f"stateless, {name}") for name, each in STATELESS.items()]
    + [pytest.param(each, True, id=f"stateful, {name}") for name, each in STATEFUL.items()],
)
def test_steps_are_classed_as_spark_classes_them(
    spark: SparkSession, function: Function, keeps_state: bool
) -> None:
    assert looked(spark, function).keeps_state is keeps_state


def test_a_name_that_is_used_twice_reads_its_stream_twice(spark: SparkSession) -> None:
    twice = by_sql(f"{NAMED} SELECT value FROM even UNION ALL SELECT value FROM even")
    with pytest.raises(ConfigError, match="its source twice"):
        looked(spark, twice)


def test_a_frame_without_a_state_has_no_whole_result_to_give(spark: SparkSession) -> None:
    sorted_ = value_of(lambda records: records.select("key"))
    with pytest.raises(ConfigError, match=r"without a state .*output_mode=complete"):
        looked(spark, sorted_, output_mode="complete")
    assert not looked(spark, sorted_, output_mode="update").keeps_state
    counted = value_of(lambda records: records.groupBy("key").count())
    assert looked(spark, counted, output_mode="complete").keeps_state


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda _: None, "return a DataFrame .*returned=NoneType"),
        (lambda records: records.writeStream, "return a DataFrame .*returned=DataStreamWriter"),
        (lambda records: records.sparkSession.range(3), "do not come from its source"),
    ],
)
def test_a_transform_gives_a_frame_of_its_stream(
    spark: SparkSession, function: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        looked(spark, function)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda all_: all_.where(F.rand() < 0.5), r"rand\("),
        (lambda all_: all_.withColumn("key", F.uuid()), r"uuid\(\)"),
        (lambda all_: all_.withColumn("key", F.monotonically_increasing_id()), "monotonically_"),
        (lambda all_: all_.sample(0.5), "sample"),
        (
            lambda all_: all_.withColumn("key", F.udf(lambda v: v).asNondeterministic()("offset")),
            r"<lambda>\(offset\)",
        ),
    ],
)
def test_stateful_replay_what_a_replay_may_change_feeds_no_state(
    spark: SparkSession, change: Function, named: str
) -> None:
    """A decided batch that is run again for its state would put a record into another group than
    the one that was written with it, or into none."""
    for state in (
        lambda records: change(records).groupBy("key").count(),
        lambda records: change(records).dropDuplicates(["key"]),
    ):
        with pytest.raises(ConfigError, match=named) as refused:
            looked(spark, value_of(state))
        assert "xxhash64" in str(refused.value)


class Counter(StatefulProcessor):
    """How often a key came."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """See `StatefulProcessor`."""

    def handleInputRows(
        self, key: object, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        yield Row(value=f"{key} {len(list(rows))}")


def counter(records: DataFrame, initial: GroupedData | None) -> DataFrame:
    return records.groupBy("key").transformWithState(
        Counter(), "value string", "append", "processingTime", initialState=initial
    )


def test_a_state_to_begin_with_is_refused(spark: SparkSession) -> None:
    """The batch that takes it in is no epoch: what the function gives there would be lost."""
    table = spark.createDataFrame([(b"k",)], "key binary").groupBy("key")
    with pytest.raises(ConfigError, match=r"initial values .*steps=TransformWithState") as refused:
        looked(spark, lambda records: counter(records, table))
    assert "initialState" in str(refused.value)
    look = looked(spark, lambda records: counter(records, None))
    assert look.keeps_state
    assert look.modules == ("google.protobuf",), "which comes with neither PySpark nor Sluice"


@pytest.mark.parametrize(
    ("below", "repeats"),
    [
        (lambda records: records, True),
        (lambda records: records.dropDuplicates(["key"]), True),
        (lambda records: counter(records, None), False),
    ],
)
def test_a_whole_result_changes_with_records_alone_where_nothing_has_timeouts(
    spark: SparkSession, below: Function, repeats: bool
) -> None:
    look = looked(spark, value_of(lambda all_: below(all_).groupBy().count()))
    assert look.repeats_result is repeats


def test_a_statement_with_named_queries_runs(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source, sink = topic(), topic()
    produce(kafka.bootstrap, source, [b"%d" % n for n in range(6)])
    job = Job("named", spark, checkpoint_dir=str(tmp_path), interval_s=0.2)
    stream = job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    )
    even = "WITH even AS (SELECT value FROM records WHERE int(string(value)) % 2 = 0)"
    stream.transform(by_sql(f"{even} SELECT value FROM even WHERE value > x'30'")).sink(
        KafkaSink(
            bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=unique("named")
        )
    )
    job.run()
    assert sorted(record.value or b"" for record in read(kafka.bootstrap, sink)) == [b"2", b"4"]
