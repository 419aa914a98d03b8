"""The Iceberg sink with Kafka and Spark: the example, a drop-in query, two sinks, new columns."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import sluice
from sluice import ConfigError, Job, KafkaSink, KafkaSource
from sluice.connectors.iceberg.table.catalog_settings import CatalogSettings
from sluice.connectors.kafka.tools.broker.embedded_kafka import EmbeddedKafka
from sluice.runtime.errors import WrongJobError
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
    sluice.install(spark)
    yield spark
    sluice.install(spark).close()


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


def test_an_older_copy_of_the_checkpoint_directory_never_starts(
    session: SparkSession, bed: IcebergBed, tmp_path: Path
) -> None:
    """Not at the tenth try either, as a supervisor would make it: rows would be there twice."""
    location, copy = tmp_path / "checkpoint", tmp_path / "copy"

    def append(number: int) -> None:
        frame = session.createDataFrame([(b"%d" % number, 0)], "value binary, partition int")
        writer = frame.write.format("sluice-iceberg").option("table", "lake.events")
        for name, value in bed.properties.items():
            writer = writer.option(f"catalog.{name}", str(value))
        writer = writer.option("checkpointLocation", str(location)).option("batchId", number)
        writer.mode("append").save()

    append(0)
    shutil.copytree(location, copy)
    append(1)
    append(2)
    shutil.rmtree(location)
    shutil.copytree(copy, location)
    for _ in range(10):
        with pytest.raises(WrongJobError, match="commits that this checkpoint directory does not"):
            append(1)
    assert _values(bed) == Counter([b"0", b"1", b"2"])


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


def _save(frame: DataFrame, bed: IcebergBed, table: str, **options: object) -> None:
    writer = frame.write.format("sluice-iceberg").mode("append").option("table", table)
    for name, value in bed.properties.items():
        writer = writer.option(f"catalog.{name}", str(value))
    location = str(bed.directory / "writes")
    writer.options(checkpointLocation=location, **options).save()  # type: ignore[arg-type]


def _both(bed: IcebergBed) -> list[list[bytes]]:
    tables = [bed.catalog().load_table(f"lake.{name}") for name in ("events", "other")]
    return [sorted(table.scan().to_arrow()["value"].to_pylist()) for table in tables]


def test_two_tables_of_one_location_get_each_batch_once(
    session: SparkSession, bed: IcebergBed
) -> None:
    """The second write of the first batch repeats it, as a program does after a failure."""
    bed.catalog().create_table("lake.other", _VALUES)
    rows = {
        (name, batch_id): session.sql(f"SELECT CAST('{name[5]}{batch_id}' AS BINARY) AS value")
        for batch_id in range(2)
        for name in ("lake.events", "lake.other")
    }
    for batch_id in (0, 0, 1):
        for name in ("lake.events", "lake.other"):
            _save(rows[name, batch_id], bed, name, batchId=batch_id)
    assert _both(bed) == [[b"e0", b"e1"], [b"o0", b"o1"]]


def test_a_table_of_another_name_and_address_gets_no_batch_again(
    session: SparkSession, bed: IcebergBed
) -> None:
    """A new table with its old name does. The program is started again in between."""
    frame = session.sql("SELECT CAST('a' AS BINARY) AS value")
    _save(frame, bed, "lake.events", batchId=0)
    bed.catalog().rename_table("lake.events", "lake.other")
    moved = IcebergBed(directory=bed.directory, extra={"uri": _moved(bed)})
    sluice.install(session).close()
    sluice.install(session)
    _save(frame, moved, "lake.other", batchId=0)
    moved.catalog().create_table("lake.events", _VALUES)
    _save(frame, moved, "lake.events", batchId=0)
    assert _both(moved) == [[b"a"], [b"a"]]


def _moved(bed: IcebergBed) -> str:
    """The address of the catalog in another place."""
    found = bed.directory / "moved.db"
    (bed.directory / "catalog.db").rename(found)
    return f"sqlite:///{found}?timeout={PATIENCE_S}"


def test_a_callback_writes_each_batch_once_into_each_of_two_tables(
    session: SparkSession, kafka: EmbeddedKafka, topic: TopicFactory, bed: IcebergBed
) -> None:
    """It fails between the two writes, and Spark repeats the batch in the next run."""
    bed.catalog().create_table("lake.other", _VALUES)
    source, fails = topic(partitions=2), [True]
    _numbers(kafka, source, range(4))

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("value")
        _save(rows, bed, "lake.events", batchId=batch_id)
        if fails:
            fails.clear()
            raise ValueError("between the two")
        _save(rows, bed, "lake.other", batchId=batch_id)

    writer = records(session, kafka, source).writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(bed.directory / "query"))
    writer = writer.trigger(availableNow=True)
    with pytest.raises(PySparkException, match="between the two"):
        finish(writer.start())
    finish(writer.start())
    assert _both(bed) == [[b"0", b"1", b"2", b"3"]] * 2
