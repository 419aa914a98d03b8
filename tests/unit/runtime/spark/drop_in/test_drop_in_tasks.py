"""A drop-in sink's tasks, as Spark calls them: what they write, and what they leave behind."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from sluice.connectors.hdfs.file_drop_in import FileDropIn, FileDropInSink
from sluice.runtime.errors import ConfigError
from sluice.runtime.spark.drop_in import drop_in_writer
from sluice.runtime.spark.drop_in.drop_in_writer import DropInStreamWriter
from sluice.runtime.storage.task_files import LocalTaskFiles
from tests.kit.drop_in_simulation import QueryProcess

_FORMAT = "sluice-files"
_ROWS = pa.record_batch({"n": pa.array([1, 2, 3])})


def _made(options: Mapping[str, str], _query: object) -> Any:
    return FileDropInSink(
        options=FileDropIn.from_options(options, session_zone="UTC"), files=LocalTaskFiles()
    )


class Query(QueryProcess):
    """A query whose files are on this disk, and Spark, which runs the tasks of its batches."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        location = directory / "chk"
        location.mkdir()
        super().__init__(location, {_FORMAT: _made})
        self.target = directory / "out" / "orders"
        self.staging = directory / "out" / ".sluice-staging-orders"
        self._monkeypatch = monkeypatch

    def writer(self) -> DropInStreamWriter:
        """As Spark makes it at each of its places."""
        options = {"path": str(self.target), "checkpointLocation": self.location}
        return DropInStreamWriter(_FORMAT, options, self.client)

    def enter_task(self, properties: Mapping[str, str], *, partition: int = 0) -> None:
        """From here on this is a task with these local properties."""
        context = SimpleNamespace(
            partitionId=lambda: partition, attemptNumber=lambda: 1, getLocalProperty=properties.get
        )
        self._monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: context))

    def enter_batch(self, batch_id: int, *, partition: int = 0) -> None:
        """From here on this is a task of that batch."""
        self.enter_task({"streaming.sql.batchId": str(batch_id)}, partition=partition)

    def published(self) -> list[str]:
        """Names of the files that readers see."""
        return [file.name for file in self.target.rglob("*.parquet")]

    def staged(self) -> list[Path]:
        """Files that are not published."""
        return list(self.staging.rglob("part-*"))


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Query]:
    monkeypatch.setattr(drop_in_writer, "tidy_after_task", lambda: None)  # this process goes on
    made = Query(tmp_path, monkeypatch)
    yield made
    made.close()


def test_what_a_task_has_written_is_published_once_its_batch_is_decided(query: Query) -> None:
    """The files' names tell which task it was."""
    query.enter_batch(0, partition=17)
    message = query.writer().write(iter([_ROWS, _ROWS.slice(0, 0)]))
    assert query.published() == []
    query.writer().commit([message], 0)
    (name,) = query.published()
    assert "-query-00017-" in name
    assert query.staged() == []


def test_batch_identity_a_task_of_a_decided_batch_reads_its_rows_to_the_end_and_writes_none(
    query: Query,
) -> None:
    """A query that was killed behind its decision runs the batch again: what it wrote would be in
    no decision, and a transaction would keep readers waiting. A stateful operator before the sink
    commits its state once it is read to its end."""
    query.enter_batch(0)
    query.writer().commit([query.writer().write(iter([_ROWS]))], 0)
    query.query.runId = "run-2"
    log = Path(query.location) / "offsets"
    log.mkdir()
    (log / "0").write_text("v1\n{}\n{}")
    rows = iter([_ROWS, _ROWS])
    message = query.writer().write(rows)
    assert next(rows, None) is None
    assert query.staged() == []
    query.writer().commit([message], 0)
    assert len(query.published()) == 1


def test_a_task_that_fails_closes_what_it_has_open(query: Query) -> None:
    """Its worker goes on with other tasks: a file, or a producer's transaction, that nobody closes
    stays open in it. The error is told as it is."""
    query.enter_batch(0)

    def rows() -> Iterator[pa.RecordBatch]:
        yield _ROWS
        assert _open_below(query.staging)
        raise LookupError("not this time")

    writer = query.writer()
    with pytest.raises(LookupError, match="not this time") as failed:
        writer.write(rows())
    assert _open_below(query.staging) == []
    del failed  # it kept all that the task had


def test_rows_that_are_of_no_streams_batch_are_refused(query: Query) -> None:
    """Nobody could say which decision they belong to."""
    query.enter_task({})
    with pytest.raises(ConfigError, match="outside a task of a streaming query"):
        query.writer().write(iter([_ROWS]))
    assert query.staged() == []


def _open_below(directory: Path) -> list[Path]:
    """Files that this process has open there."""
    found = []
    for number in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # of the look itself
            found.append(number.readlink())
    return [path for path in found if path.is_relative_to(directory)]
