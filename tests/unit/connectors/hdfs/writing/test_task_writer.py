"""What tasks stage: every row once, in files whose names and lengths they report."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.hdfs.formats.choice import TASK_FORMAT_NAMES, file_format
from sluice.connectors.hdfs.formats.file_format import FileFormat
from sluice.connectors.hdfs.staging.committables import StagedFile, decode_file_set
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt
from sluice.connectors.hdfs.writing import task_writer
from sluice.connectors.hdfs.writing.frame_writer import (
    FileFrameWriter,
    Frame,
    SavedFrame,
    StagingDirectory,
)
from sluice.connectors.hdfs.writing.partition_paths import PartitionPaths
from sluice.connectors.hdfs.writing.task_saver import FrameTask, files_of
from sluice.connectors.hdfs.writing.task_writer import StagedFiles, TaskWriter
from sluice.runtime.contracts import RegisteredAttempt, TaskScope
from sluice.runtime.errors import ConfigError, FencedError, StorageError
from sluice.runtime.model.splits import BatchKey
from sluice.runtime.storage.task_files import LocalTaskFiles, TaskFiles
from sluice.runtime.storage.web_hdfs import WebHdfsAddress
from sluice.runtime.storage.web_hdfs_client import WebHdfsTaskFiles
from tests.kit.files.fake_file_system import Disk, FakeFileSystem
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
) -> TaskWriter[StagedFile]:
    return TaskWriter(
        form=form or _parquet(),
        partitions=PartitionPaths(columns=by),
        schema=_ROWS.schema,
        files=StagedFiles(
            files=files or LocalTaskFiles(),
            path=directory,
            attempt=_ATTEMPT,
            subtask=3,
            checkpoint_id=42,
        ),
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
    writer = _writer(str(tmp_path))
    for _ in range(3):
        writer.write(_ROWS)
    files = writer.finish()
    assert len(files) == 3
    assert _numbers(tmp_path, files) == _expected(3)


def test_no_rows_no_file(tmp_path: Path) -> None:
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
    address = WebHdfsAddress(name_nodes=(fake.address,), user="ada")
    first, second = (
        _writer("/staging", files=WebHdfsTaskFiles(address=address), by=()) for _ in range(2)
    )
    first.write(_ROWS)
    second.write(_ROWS)
    (file,) = first.finish()
    assert len(fake.files[f"/staging/{file.staged}"]) == file.length_bytes
    with pytest.raises(StorageError, match=r"could not close a task's file.*status=403"):
        second.finish()
    second.abandon()


def test_schema_is_checked_before_a_file_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="town"):
        _writer(str(tmp_path), by=("town",))


SCOPE = TaskScope(
    job_uid="job",
    operator_id="op",
    batch=BatchKey(region="main", attempt_id=3, batch_id=7),
    checkpoint_id=9,
    committed_through=8,
)


@dataclass
class Registry:
    """Remembers what was registered; or refuses it."""

    disk: Disk
    refuses: bool = False
    seen: list[tuple[RegisteredAttempt, int]] = field(default_factory=list)

    def register(self, attempt: RegisteredAttempt) -> float:
        if self.refuses:
            raise FencedError("not wanted", {}, "")
        self.seen.append((attempt, len(self.disk.files)))
        return 0.0


class Saver:
    """Writes a file for each of the frame's rows."""

    def save(self, frame: Frame, directory: StagingDirectory) -> SavedFrame:
        names = [f"part-{number}" for number in range(frame)]
        for name in ["left-by-a-lost-attempt", *names]:
            directory.fs.write_temporary(f"{directory.path}/{name}", b"x")
        files = tuple(StagedFile(staged=name, final=name, length_bytes=1, rows=1) for name in names)
        return SavedFrame(rows=frame, files=files)


def writer(disk: Disk) -> FileFrameWriter:
    return FileFrameWriter(
        target="fake:///data/orders",
        saver=Saver(),
        open_file_system=lambda uri: FakeFileSystem(disk, uri=uri),
    )


def test_ids_never_reused_an_attempt_is_registered_before_its_first_file() -> None:
    disk = Disk()
    registry = Registry(disk)
    staged = writer(disk).write(2, SCOPE, registry)
    ((attempt, files_then),) = registry.seen
    (entry,) = staged.committables
    found = decode_file_set(entry)
    assert files_then == 0
    assert found.staging.endswith(attempt.resource)
    assert (staged.rows, found.rows, len(found.files)) == (2, 2, 2)
    assert (found.target, attempt.checkpoint_id) == ("fake:///data/orders", 9)


def test_files_with_decision_no_reader_sees_a_file_before_the_decision() -> None:
    """All that a committable names is staged, beside the target and not below it."""
    disk = Disk()
    (entry,) = writer(disk).write(2, SCOPE, Registry(disk)).committables
    found = decode_file_set(entry)
    assert {found.staged_path(file) for file in found.files} <= disk.files.keys()
    assert [path for path in disk.files if path.startswith("orders/")] == []


def test_a_batch_that_is_not_wanted_any_more_writes_nothing() -> None:
    disk = Disk()
    with pytest.raises(FencedError):
        writer(disk).write(2, SCOPE, Registry(disk, refuses=True))
    assert disk.files == {}


def test_a_batch_without_rows_leaves_nothing() -> None:
    disk = Disk()
    staged = writer(disk).write(0, SCOPE, Registry(disk))
    assert (staged.rows, staged.committables) == (0, ())
    assert disk.files == {}


def test_two_attempts_of_a_batch_share_no_directory() -> None:
    """Rule `rename-settled`: a zombie cannot write over another's file."""
    disk = Disk()
    registry = Registry(disk)
    for _ in range(2):
        writer(disk).write(1, SCOPE, registry)
    assert len({attempt.resource for attempt, _ in registry.seen}) == 2


ROWS = pa.record_batch({"city": ["Forlì", None, "a/b"], "n": [1, 2, 3]})


def task(directory: Path, *, by: str = "city") -> FrameTask:
    made = FrameTask(
        files=LocalTaskFiles(),
        form=file_format("avro", {}),
        partitions=PartitionPaths(columns=(by,)),
        root=str(directory.parent),
        path=str(directory),
        batch=BatchKey(region="main", attempt_id=2, batch_id=5),
        checkpoint_id=9,
    )
    found: FrameTask = pickle.loads(pickle.dumps(made))
    return found


def answered(run: FrameTask, *batches: pa.RecordBatch) -> tuple[StagedFile, ...]:
    (answer,) = run.run(iter(batches))
    return files_of([[value.as_py() for value in answer.column("answer")]])


def test_rename_settled_two_attempts_of_a_task_share_no_file(tmp_path: Path) -> None:
    first, second = (answered(task(tmp_path), ROWS) for _ in range(2))
    assert not {f.staged for f in first} & {f.staged for f in second}
    assert not {f.final for f in first} & {f.final for f in second}


def test_a_task_without_rows_writes_nothing(tmp_path: Path) -> None:
    assert answered(task(tmp_path / "none")) == ()
    assert answered(task(tmp_path / "none"), ROWS.slice(0, 0)) == ()
    assert not (tmp_path / "none").exists()


def test_what_a_task_refuses_keeps_its_type(tmp_path: Path) -> None:
    """Spark would make it an error of its own, and try again."""
    too_long = pa.record_batch({"city": ["x" * 300], "n": [1]})
    with pytest.raises(ConfigError, match="cannot name a directory"):
        answered(task(tmp_path), ROWS, too_long)


def test_a_task_writes_only_where_the_driver_publishes(tmp_path: Path) -> None:
    """Another host's disk is not that place, and the task says so at once."""
    with pytest.raises(ConfigError, match="does not see a directory of the driver"):
        answered(task(tmp_path / "not" / "here"), ROWS)
    assert list(tmp_path.iterdir()) == []
