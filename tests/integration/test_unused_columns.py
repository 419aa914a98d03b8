"""Columns that a transform does not read are not made, and nothing else changes."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice import KafkaSink, KafkaSource
from sluice.connectors.kafka.records.columns import columns_with, schema_ddl
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.job.job import Job
from sluice.runtime.spark.frames.pruning import columns_read, in_full, kept_by
from sluice.runtime.spark.frames.region_frames import source_frame
from sluice.runtime.spark.microbatch.job_source import probe_for
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, read

pytestmark = pytest.mark.integration

Function = Callable[[DataFrame], DataFrame]
ALL = set(columns_with(headers=True))
SINK = KafkaSink(bootstrap_servers="nowhere:1", topic="out", transactional_id_prefix="unused")


def same(records: DataFrame) -> DataFrame:
    return records


def filtered(records: DataFrame) -> DataFrame:
    return records.where("offset % 2 = 0").selectExpr("key", "value")


def counted(records: DataFrame) -> DataFrame:
    return records.groupBy("key").count().selectExpr("key", "string(count) AS value")


def dropped(records: DataFrame) -> DataFrame:
    return records.withColumn("size", F.size("headers")).drop("headers", "size")


def constant(records: DataFrame) -> DataFrame:
    return records.selectExpr("'x' AS value")


def respelt(records: DataFrame) -> DataFrame:
    return records.selectExpr("key AS Key", "value", "timestampType")


def by_python(records: DataFrame) -> DataFrame:
    return records.mapInArrow(lambda batches: batches, records.schema)


def beside(records: DataFrame) -> DataFrame:
    still = records.sparkSession.createDataFrame([(None, b"x")], "key binary, value binary")
    return still.union(records.select("key", "value"))


def test_the_optimizer_reports_what_a_transform_reads(spark: SparkSession) -> None:
    """Together with the sink, which does not look at every column that it is given."""
    probe = probe_for(schema_ddl(columns_with(headers=True)))
    records = source_frame(spark, probe).load()
    read_by: dict[Function, set[str] | None] = {
        same: ALL - {"timestampType"},
        filtered: {"key", "value", "offset"},
        counted: {"key"},
        dropped: ALL - {"headers", "timestampType"},
        respelt: {"key", "value"},  # the sink refuses it
        by_python: None,
        beside: {"key", "value"},
        constant: set(),
    }
    for function, columns in read_by.items():
        assert columns_read(kept_by(function(records), [SINK])) == columns, function.__name__


def test_a_narrowed_source_makes_one_column_at_least_and_never_those_of_the_users_choice() -> None:
    source = KafkaSource(bootstrap_servers="nowhere:1", topics=["in"])
    assert source.narrowed({"value", "key"}).schema_ddl() == schema_ddl(["key", "value"])
    assert source.narrowed(set()).schema_ddl() == schema_ddl(["partition"])
    assert source.narrowed(ALL) is source
    chosen = KafkaSource(bootstrap_servers="nowhere:1", topics=["in"], columns=["key", "value"])
    assert chosen.narrowed({"value"}) is chosen


def test_a_column_that_is_read_after_all_fails_the_query_and_names_the_way_out(
    spark: SparkSession,
) -> None:
    """A function may make another plan than it did when the job was looked at: nothing may take an
    absent column for an empty one."""
    schema = cast(StructType, StructType.fromDDL("key binary, value binary"))
    records = in_full(spark.createDataFrame([(b"v",)], "value binary"), schema)
    assert records.schema == schema
    assert records.select("value").collect()[0][0] == b"v"
    for read_after_all in (records.select("key"), records.where("key IS NULL").select("value")):
        with pytest.raises(PySparkException, match=r"column key.*KafkaSource\(columns="):
            read_after_all.collect()


def test_records_are_the_same_whichever_columns_pass_through_spark(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    """Key, value, headers, partition and order; a column that is dropped by name may be."""
    given = [
        Record(value=b"a", key=b"k", headers=(("h", b"1"),), partition=0),
        Record(value=b"b", key=None, partition=1),
        Record(value=b"c", key=b"k", headers=(("h", None),), partition=0),
    ]
    kept: dict[str, list[Record]] = {}
    functions: dict[str, Function] = {
        "same": same,
        "without": lambda records: records.drop("headers", "topic").where("offset >= 0"),
    }
    source = topic(partitions=2)
    produce(kafka.bootstrap, source, given)
    for name, function in functions.items():
        sink = topic(partitions=2)
        job = Job(name, spark, checkpoint_dir=str(tmp_path / name), interval_s=0.2)
        job.source(
            KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
        ).transform(function).sink(
            KafkaSink(bootstrap_servers=kafka.bootstrap, topic=sink, transactional_id_prefix=sink)
        )
        job.run()
        kept[name] = read(kafka.bootstrap, sink)

    def shown(records: list[Record], *, headers: bool) -> list[tuple[object, ...]]:
        return sorted((r.partition, r.value, r.key, r.headers if headers else ()) for r in records)

    assert shown(kept["same"], headers=True) == shown(given, headers=True)
    assert shown(kept["without"], headers=False) == shown(given, headers=False)
    assert all(record.headers == () for record in kept["without"])
