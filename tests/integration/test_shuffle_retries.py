"""A shuffle whose output was lost, and made again with other rows."""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from sluice.runtime.spark.session.spark_session import query_settings

pytestmark = pytest.mark.integration

RECORDS, PARTITIONS = 4_000, 8  # of which two run at a time
CHECKSUM = "spark.sql.shuffle.orderIndependentChecksum"


def lossy(spark: SparkSession, once: Path) -> DataFrame:
    """The ids of records assigned by random keys; the first task that has read its part takes the
    shuffle's files along, as an executor that is lost."""

    def random_keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if once.exists():
            # Spark refuses a second version only where it knows of a task that has read the first.
            # So long for that task's result to reach the driver, which nothing here can look for.
            time.sleep(2)
        for batch in batches:
            keys = [random.randrange(1_000_000) for _ in range(batch.num_rows)]
            yield batch.append_column("key", pa.array(keys, pa.int64()))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = [batch.select(["id"]) for batch in batches]
        try:
            once.touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            for directory in os.environ["SPARK_LOCAL_DIRS"].split(","):
                for file in Path(directory).rglob("shuffle_*"):
                    file.unlink(missing_ok=True)
        yield from parts

    keyed = spark.range(0, RECORDS, 1, 1).mapInArrow(random_keys, "id long, key long")
    return keyed.repartition(PARTITIONS, "key").mapInArrow(read, "id long")


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_stateful_replay_a_batch_fails_where_its_tasks_read_two_versions_of_a_shuffle(
    spark: SparkSession, tmp_path: Path, adaptive: str
) -> None:
    """Some had read the first one, and pre-committed; the rest would read the second. So rows are
    in neither, or in both: the epoch must be aborted, and read again."""
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        with (
            query_settings(spark, batches_to_retain=100),
            pytest.raises(Py4JJavaError, match="indeterminate output"),
        ):
            lossy(spark, tmp_path / "lost").collect()
        assert (tmp_path / "lost").exists()
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")


def test_spark_by_itself_continues_with_both(spark: SparkSession, tmp_path: Path) -> None:
    """As it does where it is reported to: else the test above would prove nothing."""
    for name in ("enabled", "enableFullRetryOnMismatch"):
        spark.conf.set(f"{CHECKSUM}.{name}", "false")
    try:
        rows = lossy(spark, tmp_path / "lost").collect()
    finally:
        for name in ("enabled", "enableFullRetryOnMismatch"):
            spark.conf.unset(f"{CHECKSUM}.{name}")
    ids = Counter(row[0] for row in rows)
    assert len(ids) < RECORDS, "some were lost"
    assert max(ids.values()) > 1, "some were doubled"
