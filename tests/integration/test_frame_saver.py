"""What Spark's own writers leave is compared with what they got, whatever the format shows."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sluice.connectors.hdfs.staging.staged_names import StagingAttempt
from sluice.connectors.hdfs.writing.frame_writer import SavedFrame, StagingDirectory
from sluice.connectors.hdfs.writing.spark_saver import SparkFrameSaver
from sluice.runtime.errors import ConfigError, IllegalTransitionError
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.spark.session.spark_session import active_session
from sluice.runtime.storage.file_system import Entry
from sluice.runtime.storage.local_fs import LocalFileSystem

pytestmark = pytest.mark.integration


class OtherHosts(LocalFileSystem):
    """Of a directory that one task's host has on a disk of its own."""

    def __init__(self, root: Path, *, hidden_task: int | None) -> None:
        super().__init__(root)
        self._hidden = None if hidden_task is None else f"part-{hidden_task:05d}-"

    def entries(self, path: str) -> list[Entry]:
        found = super().entries(path)
        return [e for e in found if self._hidden is None or not e.name.startswith(self._hidden)]


def _directory(fs: LocalFileSystem) -> StagingDirectory:
    return StagingDirectory(
        fs=fs,
        root="staging",
        attempt=StagingAttempt.draw(BatchKey(region="main", attempt_id=1, batch_id=1)),
        checkpoint_id=1,
    )


def saved(
    spark: SparkSession,
    root: Path,
    *,
    format_name: str,
    partition_by: tuple[str, ...],
    hidden_task: int | None = None,
    fails_at: int | None = None,
) -> SavedFrame:
    """100 rows of four tasks, the last without any, or with one that fails."""
    rows = spark.range(0, 100, numPartitions=4).filter(f"id < 75 OR id = {fails_at or 0}")
    if fails_at is not None:
        failed = F.raise_error(F.lit("the last task fails")).cast("bigint")
        rows = rows.select(
            F.when(F.col("id") == fails_at, failed).otherwise(F.col("id")).alias("id")
        )
    frame = rows.select(F.col("id").cast("string"), (F.col("id") % 2).alias("half"))
    directory = _directory(OtherHosts(root, hidden_task=hidden_task))
    saver = SparkFrameSaver(
        format_name=format_name, partition_by=partition_by, columns=("id", "half"), options={}
    )
    return saver.save(frame, directory)


@pytest.mark.parametrize("format_name", ["json", "parquet"])
def test_values_that_are_spelt_alike_share_a_directory(
    spark: SparkSession, tmp_path: Path, format_name: str
) -> None:
    """Bytes that are no UTF-8, as Kafka's keys may be, and the hour that comes twice where clocks
    are set back: by themselves Spark's tasks would begin one file twice, and fail for ever."""
    zone, hour = "spark.sql.session.timeZone", "timestamp_seconds(1792886400 + 3600 * id)"
    known = spark.conf.get(zone)
    assert known is not None
    spark.conf.set(zone, "Europe/Berlin")
    try:
        rows = spark.range(0, 2, numPartitions=1).select(
            F.expr("cast(if(id = 0, X'61FF', X'61FE') AS string)").alias("place"),
            F.expr(hour).alias("hour"),
            F.col("id").cast("string"),
        )
        saver = SparkFrameSaver(
            format_name=format_name, partition_by=("place", "hour"), columns=None, options={}
        )
        found = saver.save(rows, _directory(LocalFileSystem(tmp_path)))
    finally:
        spark.conf.set(zone, known)
    (file,) = found.files
    assert found.rows == 2
    assert file.staged.startswith("place=a\ufffd/hour=2026-10-25 02%3A00%3A00/")


def test_patterns_are_read_as_the_jobs_session_reads_them(spark: SparkSession) -> None:
    """Not as another one that happens to be the active one: what it takes would fail in each batch,
    and what it does not take would have been written."""
    policy, of_weeks = "spark.sql.legacy.timeParserPolicy", {"dateFormat": "YYYY"}
    legacy = spark.newSession()
    legacy.conf.set(policy, "LEGACY")
    for session, other in ((spark, legacy), (legacy, spark)):
        saver = SparkFrameSaver(format_name="json", partition_by=(), columns=None, options=of_weeks)
        frame = session.range(1)
        refusal = pytest.raises(ConfigError, match="refuses these options")
        with active_session(other), refusal if session is spark else nullcontext():
            saver.check(frame)


def test_a_write_that_fails_leaves_nothing_of_the_tasks_that_were_done(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also where the session wants Hadoop's second algorithm, by which a task gives its files their
    names one by one: an attempt that dies meanwhile would leave some beside those of the next."""
    spark.conf.set("mapreduce.fileoutputcommitter.algorithm.version", "2")
    try:
        with pytest.raises(Exception, match="the last task fails"):
            saved(spark, tmp_path, format_name="json", partition_by=(), fails_at=99)
    finally:
        spark.conf.unset("mapreduce.fileoutputcommitter.algorithm.version")
    assert not [path for path in tmp_path.rglob("part-*") if path.is_file()]


@pytest.mark.parametrize("partition_by", [(), ("half",)], ids=["flat", "in directories"])
@pytest.mark.parametrize("format_name", ["json", "csv", "parquet"])
def test_files_of_a_task_that_are_not_here_stop_the_epoch(
    spark: SparkSession, tmp_path: Path, format_name: str, partition_by: tuple[str, ...]
) -> None:
    """Text does not report how many rows it has, but which tasks wrote it."""
    found = saved(spark, tmp_path / "whole", format_name=format_name, partition_by=partition_by)
    assert found.rows == 75
    assert len(found.files) == 3 * 2 ** len(partition_by)
    assert not any("_sluice_task" in path.read_text("latin-1") for path in tmp_path.rglob("part-*"))
    with pytest.raises(IllegalTransitionError, match="one file system"):
        saved(
            spark,
            tmp_path / "torn",
            format_name=format_name,
            partition_by=partition_by,
            hidden_task=1,
        )
