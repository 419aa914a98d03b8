"""The Iceberg sink with Kafka and Spark: the example, a drop-in query, two sinks, new columns."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import sluice
from sluice import ConfigError, Job, KafkaSink, KafkaSource
from sluice.connectors.iceberg.table.catalog_settings import CatalogSettings
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from tests.integration.test_drop_in_sink import finish, records
from tests.kit.iceberg.iceberg_bed import IcebergBed
from tests.kit.kafka.kafka_fixture import TopicFactory
from tests.kit.kafka.kafka_records import Record, produce, values
from tests.kit.objects.s3_fixture import S3Bucket
from tests.kit.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

_EXAMPLE = Path(__file__).parents[2] / "examples" / "kafka_to_iceberg.py"
_VALUES = pa.schema({"value": pa.binary(), "partition": pa.int32()})


def _numbers(kafka: EmbeddedKafka, source: str, numbers: range) -> None:
    produce(kafka.bootstrap, source, [Record(value=b"%d" % n, partition=n % 2) for n in numbers])


def _values(bed: IcebergBed) -> Counter[bytes]:
    return Counter(bed.table().scan().to_arrow()["value"].to_pylist())


@pytest.fixture
def bed(tmp_path: Path) -> IcebergBed:
    made = IcebergBed(directory=tmp_path)
    made.create(_VALUES)
    return made


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with the formats."""
    installation = sluice.install(spark)
    yield spark
    installation.close()


def test_the_example_copies_each_record_once_over_two_runs_and_duckdb_reads_them(
    kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    source = topic(partitions=2)
    flags = {
        "--bootstrap": kafka.bootstrap,
        "--input": source,
        "--catalog": f"sqlite:///{tmp_path}/catalog.db",
        "--warehouse": f"file://{tmp_path}/warehouse",
        "--table": "lake.events",
        "--checkpoint": str(tmp_path / "checkpoint"),
        "--interval": "0.2",
    }
    words = [word for pair in flags.items() for word in pair]
    for numbers in (range(4), range(4, 8)):
        _numbers(kafka, source, numbers)
        subprocess.run(
            [sys.executable, _EXAMPLE, *words, "--until-end"], check=True, timeout=PATIENCE_S
        )
    table = load_catalog(uri=flags["--catalog"], warehouse=flags["--warehouse"]).load_table(
        "lake.events"
    )
    found = table.scan().to_arrow()
    assert sorted(found["value"].to_pylist()) == [b"%d!" % n for n in range(8)]
    paths = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    (count,) = duckdb.sql(f"SELECT count(DISTINCT value) FROM read_parquet({paths!r})").fetchall()
    assert count == (8,)
    summaries = [snapshot.summary for snapshot in table.snapshots()]
    assert all(summary is not None and summary["sluice.job-id"] for summary in summaries)


@pytest.mark.extended
def test_the_example_with_its_table_and_its_checkpoints_in_a_bucket(
    kafka: EmbeddedKafka, topic: TopicFactory, s3: S3Bucket, tmp_path: Path
) -> None:
    source = topic(partitions=2)
    flags = {
        "--bootstrap": kafka.bootstrap,
        "--input": source,
        "--catalog": f"sqlite:///{tmp_path}/catalog.db",
        "--warehouse": f"{s3.uri}/warehouse",
        "--table": "lake.events",
        "--checkpoint": f"{s3.uri}/checkpoint",
        "--interval": "0.2",
    }
    words = [word for pair in flags.items() for word in pair]
    for numbers in (range(4), range(4, 8)):
        _numbers(kafka, source, numbers)
        subprocess.run(
            [sys.executable, _EXAMPLE, *words, "--until-end"],
            env={**os.environ, **s3.environment},
            check=True,
            timeout=PATIENCE_S,
        )
    properties = {"uri": flags["--catalog"], "warehouse": flags["--warehouse"]}
    settings = CatalogSettings.of(properties, storage_options=s3.storage_options)
    found = settings.load_table("lake.events").scan().to_arrow()
    assert sorted(found["value"].to_pylist()) == [b"%d!" % n for n in range(8)]


def test_a_drop_in_query_appends_each_record_once_over_two_runs(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, bed: IcebergBed
) -> None:
    source = topic(partitions=2)
    for numbers in (range(4), range(4, 8)):
        _numbers(kafka, source, numbers)
        frame = records(session, kafka, source).select("value")
        writer = frame.writeStream.format("sluice-iceberg").option("table", "lake.events")
        for name, value in bed.properties.items():
            writer = writer.option(f"catalog.{name}", str(value))
        writer = writer.option("checkpointLocation", str(bed.directory / "checkpoint"))
        finish(writer.trigger(availableNow=True).start())
    assert _values(bed) == Counter(b"%d" % n for n in range(8))


def test_a_query_in_update_mode_keeps_one_row_for_each_group(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, tmp_path: Path
) -> None:
    bed = IcebergBed(directory=tmp_path)
    bed.create(pa.schema({"value": pa.binary(), "count": pa.int64()}))
    source = topic(partitions=2)
    for numbers in (range(4), range(6)):
        _numbers(kafka, source, numbers)
        frame = records(session, kafka, source).groupBy("value").count()
        writer = frame.writeStream.format("sluice-iceberg").option("table", "lake.events")
        for name, value in bed.properties.items():
            writer = writer.option(f"catalog.{name}", str(value))
        writer = writer.option("upsert", "true").option("equalityFields", "value")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        finish(writer.outputMode("update").trigger(availableNow=True).start())
    found = sorted((row["value"], row["count"]) for row in bed.rows())
    assert found == [(b"%d" % n, 2 if n < 4 else 1) for n in range(6)]


def test_a_drop_in_query_with_columns_that_the_table_lacks_does_not_start(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, bed: IcebergBed
) -> None:
    frame = records(session, kafka, topic()).selectExpr("value", "key AS other")
    writer = frame.writeStream.format("sluice-iceberg").option("table", "lake.events")
    for name, value in bed.properties.items():
        writer = writer.option(f"catalog.{name}", str(value))
    with pytest.raises(ConfigError, match=r"column=other.*evolve=True"):
        writer.option("checkpointLocation", str(bed.directory / "checkpoint")).start()


def test_a_topic_and_a_table_share_one_decision_and_new_columns_are_added(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, bed: IcebergBed
) -> None:
    source, output = topic(partitions=2), topic(partitions=2)
    _numbers(kafka, source, range(6))
    job = Job("iceberg", spark, checkpoint_dir=str(bed.directory / "checkpoint"), interval_s=0.2)
    stream = job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    )
    sink = KafkaSink(
        bootstrap_servers=kafka.bootstrap, topic=output, transactional_id_prefix=output
    )
    stream.sink(sink).sink(bed.sink(evolve=True))
    job.run()
    assert Counter(values(kafka.bootstrap, output)) == _values(bed)
    assert _values(bed) == Counter(b"%d" % n for n in range(6))
    assert {"offset", "timestamp", "key"} <= set(bed.table().schema().column_names)


def test_rows_of_spark_s_planner_go_to_the_table_too(
    spark: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, bed: IcebergBed
) -> None:
    source = topic(partitions=2)
    _numbers(kafka, source, range(6))
    job = Job("iceberg", spark, checkpoint_dir=str(bed.directory / "checkpoint"), interval_s=0.2)
    job.source(
        KafkaSource(bootstrap_servers=kafka.bootstrap, topics=[source], bounded=True)
    ).transform(lambda frame: frame.select("value", "partition")).sink(bed.sink())
    job.run()
    assert _values(bed) == Counter(b"%d" % n for n in range(6))
