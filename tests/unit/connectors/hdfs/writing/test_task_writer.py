"""What a task stages: every row once, in files whose names and lengths are reported."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.hdfs.formats.choice import TASK_FORMAT_NAMES, file_format
from sluice.connectors.hdfs.formats.file_format import FileFormat
from sluice.connectors.hdfs.staging.committables import StagedFile
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt
from sluice.connectors.hdfs.staging.task_files import LocalTaskFiles, TaskFiles
from sluice.connectors.hdfs.staging.webhdfs_client import WebHdfsTaskFiles
from sluice.connectors.hdfs.writing import task_writer
from sluice.connectors.hdfs.writing.partition_paths import PartitionPaths
from sluice.connectors.hdfs.writing.task_writer import StagingLocation, TaskWriter
from sluice.runtime.errors import ConfigError, StorageError
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.storage.web_hdfs import WebHdfsAddress
from tests.kit.files.fake_webhdfs import FakeWebHdfs
from tests.kit.files.format_rows import task_format

_ATTEMPT = StagingAttempt(
    batch=BatchKey(region="r0", attempt_id=1, batch_id=7), attempt="0123456789abcdef" * 2
)
_ROWS = pa.record_batch(
    {
        "city": pa.array(["Forlì", None, "Forlì", "a/b", None] * 20),
        "n": pa.array(range(100), pa.int64()),
    }
)
_DEFAULT = "city=__HIVE_DEFAULT_PARTITION__"


@pytest.fixture
def fake() -> Iterator[FakeWebHdfs]:
    """HDFS, in small."""
    with FakeWebHdfs() as running:
        yield running


def _parquet() -> FileFormat:
    return file_format("parquet", {})


def _writer(
    directory: str,
    *,
    by: tuple[str, ...] = ("city",),
    form: FileFormat | None = None,
    files: TaskFiles | None = None,
) -> TaskWriter:
    return TaskWriter(
        files=files or LocalTaskFiles(),
        form=form or _parquet(),
        partitions=PartitionPaths(columns=by),
        schema=_ROWS.schema,
        place=StagingLocation(path=directory, attempt=_ATTEMPT, subtask=3, checkpoint_id=42),
    )


def _numbers(directory: Path, files: tuple[StagedFile, ...]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for file in files:
        table = pq.ParquetFile(directory / file.staged).read()
        assert table.num_rows == file.rows
        assert (directory / file.staged).stat().st_size == file.length_bytes
        found.setdefault(file.staged.rpartition("/")[0], []).extend(table.column("n").to_pylist())
    return found


def _expected(batches: int = 1) -> dict[str, list[int]]:
    names = {"Forlì": "city=Forlì", "a/b": "city=a%2Fb", None: _DEFAULT}
    found: dict[str, list[int]] = {}
    for _ in range(batches):
        for row in _ROWS.to_pylist():
            found.setdefault(names[row["city"]], []).append(row["n"])
    return found


def test_every_row_is_in_the_file_of_its_partition_in_order(tmp_path: Path) -> None:
    """Over several batches; lengths and rows are those of the files."""
    writer = _writer(str(tmp_path))
    for _ in range(3):
        writer.write(_ROWS)
    files = writer.finish()
    assert len(files) == 3
    assert _numbers(tmp_path, files) == _expected(3)


def test_final_names_say_where_a_file_comes_from(tmp_path: Path) -> None:
    """As those of files that Spark's writers staged."""
    writer = _writer(str(tmp_path), by=())
    writer.write(_ROWS)
    (file,) = writer.finish()
    expected = f"part-000000000042-r0-00003-{_ATTEMPT.attempt}-c000.snappy.parquet"
    assert file.final == expected


def test_no_rows_no_file(tmp_path: Path) -> None:
    """An empty batch is none."""
    writer = _writer(str(tmp_path))
    writer.write(_ROWS.slice(0, 0))
    assert writer.finish() == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("limit", ["_MOST_OPEN", "_MOST_BUFFERED_BYTES"])
def test_more_partitions_than_fit_get_more_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Files and memory of a task are bounded; no row is lost, and order is kept."""
    monkeypatch.setattr(task_writer, limit, 1)
    writer = _writer(str(tmp_path))
    for _ in range(3):
        writer.write(_ROWS)
    files = writer.finish()
    assert len(files) == 9
    assert len({file.final for file in files}) == 9
    assert _numbers(tmp_path, files) == _expected(3)


def test_rows_of_partitions_that_are_open_are_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No new partition comes that would make room: a task with a few that grow would hold all of
    them. The fullest is finished, and continues in another file."""
    writer = _writer(str(tmp_path))
    writer.write(_ROWS)
    monkeypatch.setattr(task_writer, "_MOST_BUFFERED_BYTES", 2 * _ROWS.column("n").nbytes)
    for _ in range(3):
        writer.write(_ROWS)
    files = writer.finish()
    assert len(files) > 3
    assert _numbers(tmp_path, files) == _expected(4)


@pytest.mark.parametrize("name", TASK_FORMAT_NAMES)
@pytest.mark.parametrize("store", ["local", "hdfs"])
def test_abandoned_files_are_closed_without_a_word(
    tmp_path: Path, fake: FakeWebHdfs, name: str, store: str
) -> None:
    """A failed task leaves no error after that hides its own, also when it is collected."""
    address = WebHdfsAddress(name_nodes=(fake.address,), user="ada")
    files = LocalTaskFiles() if store == "local" else WebHdfsTaskFiles(address=address)
    form = task_format(name)
    writer = _writer(str(tmp_path), form=form, files=files)
    writer.write(_ROWS)
    writer.abandon()
    writer.abandon()
    assert writer.finish() == ()


def test_failed_file_fails_the_task(fake: FakeWebHdfs) -> None:
    """Over WebHDFS: the name is taken, so this attempt is not whole."""
    address = WebHdfsAddress(name_nodes=(fake.address,), user="ada")
    first, second = (
        _writer("/staging", files=WebHdfsTaskFiles(address=address), by=()) for _ in range(2)
    )
    first.write(_ROWS)
    second.write(_ROWS)
    (file,) = first.finish()
    assert len(fake.files[f"/staging/{file.staged}"]) == file.length_bytes
    with pytest.raises(StorageError, match=r"could not close a staged file.*status=403"):
        second.finish()
    second.abandon()


def test_schema_is_checked_before_a_file_is_made(tmp_path: Path) -> None:
    """A partition column that is not there."""
    with pytest.raises(ConfigError, match="town"):
        _writer(str(tmp_path), by=("town",))
