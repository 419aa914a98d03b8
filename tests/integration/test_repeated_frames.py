"""``df.write`` of files in a callback: a batch is left out only if its rows are written already."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameWriter

import sluice

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with the formats."""
    sluice.install(spark)
    yield spark
    sluice.install(spark).close()


class Files:
    """A query over files of numbers, and the directory that its callback writes.

    Args:
        directory: of one test.
    """

    def __init__(self, session: SparkSession, directory: Path) -> None:
        self.session = session
        self.directory = directory
        (directory / "in").mkdir()

    def put(self, *numbers: int) -> None:
        """A file for the query's next batch."""
        name = "-".join(map(str, numbers))
        (self.directory / "in" / name).write_text("".join(f"{number}\n" for number in numbers))

    def numbers(self, *values: int) -> DataFrame:
        """A frame of the user's own session, as from pandas."""
        return self.session.createDataFrame([(value,) for value in values], "value int")

    def writer(self, frame: DataFrame, batch_id: int, path: str = "out") -> DataFrameWriter:
        """A writer of a batch."""
        place = f"file://{self.directory}/writes"
        writer = frame.write.format("sluice-files").mode("append").option("batchId", batch_id)
        return writer.options(checkpointLocation=place, path=f"{self.directory}/{path}")

    def run(self, write: Callable[[DataFrame, int], None]) -> None:
        """The query, to the end of its input."""
        writer = self.session.readStream.text(f"{self.directory}/in").writeStream
        writer = writer.foreachBatch(write).trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"file://{self.directory}/chk").start()
        query.awaitTermination(120)

    def found(self) -> list[int]:
        """What readers see."""
        rows = self.session.read.parquet(f"{self.directory}/out").collect()
        return sorted(row.value for row in rows)


@pytest.fixture
def files(session: SparkSession, tmp_path: Path) -> Files:
    return Files(session, tmp_path)


def test_frames_of_one_plan_may_have_other_rows(files: Files) -> None:
    """The callback stages its parts in one directory, one after the other."""
    files.put(1, 2)

    def write(frame: DataFrame, batch_id: int) -> None:
        for number in (1, 2):
            part, staging = frame.where(f"value = {number}"), f"{files.directory}/staging"
            part.selectExpr("int(value)").write.mode("overwrite").parquet(staging)
            staged = frame.sparkSession.read.schema("value int").parquet(staging)
            files.writer(staged, batch_id).save()

    with pytest.raises(PySparkException, match="two writes of a batch"):
        files.run(write)
    assert files.found() == [1]


def test_two_writes_of_a_batch_in_a_pool_of_threads(files: Files) -> None:
    """Its threads belong to no query."""
    files.put(1, 2)

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = [files.numbers(int(row.value)) for row in frame.collect()]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda each: files.writer(each, batch_id).save(), rows))

    with pytest.raises(PySparkException, match="two writes of a batch"):
        files.run(write)
    assert len(files.found()) == 1


@pytest.mark.parametrize("is_known", [False, True])
def test_a_batch_that_a_thread_has_written_is_repeated_by_its_query_alone(
    files: Files, *, is_known: bool
) -> None:
    """A query that begins anew at a deleted checkpoint has other rows in its batch 0."""
    files.put(1, 2)
    failures = [ValueError("after the write")]

    def write(frame: DataFrame, batch_id: int) -> None:
        writer = files.writer(files.numbers(*(int(row.value) for row in frame.collect())), batch_id)
        of_query = pyspark.inheritable_thread_target(files.session)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(of_query(writer.save) if is_known else writer.save).result()
        if failures:
            raise failures.pop()

    with pytest.raises(PySparkException, match="after the write"):
        files.run(write)
    files.run(write)
    assert files.found() == [1, 2]
    rmtree(files.directory / "chk")
    files.put(3, 4)
    with pytest.raises(PySparkException, match="another query has written"):
        files.run(write)
    assert files.found() == [1, 2]


def test_a_batch_is_known_however_its_path_is_spelled(files: Files) -> None:
    """A program that is started in another directory repeats its newest batch."""
    (files.directory / "bin").mkdir()
    for path in ("out", "bin/../out"):
        files.writer(files.numbers(1, 2), 0, path).save()
        sluice.install(files.session).close()
        sluice.install(files.session)
    assert files.found() == [1, 2]
