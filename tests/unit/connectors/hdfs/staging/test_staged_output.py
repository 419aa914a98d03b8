"""What a writer left: listed, compared with what was written, made durable."""

from collections.abc import Callable
from typing import cast

import pytest

from sluice.connectors.hdfs.rolling.merging import JoiningMerger
from sluice.connectors.hdfs.staging.committables import StagedFile
from sluice.connectors.hdfs.staging.staged_names import StagingAttempt, staged_name
from sluice.connectors.hdfs.staging.staged_output import StagedOutput
from sluice.connectors.hdfs.writing.frame_writer import StagingDirectory
from sluice.runtime.contracts import Frame
from sluice.runtime.errors import IllegalTransitionError, StorageError
from sluice.runtime.model.splits import BatchKey
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault

ATTEMPT = StagingAttempt.draw(BatchKey(region="main", attempt_id=3, batch_id=7))
HEADER = "part-00000-0f6c1fd2-7f0f-4a43-9ae3-d5d0fd2ed5d8-c000.csv"
ROWS = "part-00001-0f6c1fd2-7f0f-4a43-9ae3-d5d0fd2ed5d8-c000.csv"


class RecordingFileSystem(FakeFileSystem):
    """Remembers what was made durable."""

    def __init__(self, disk: Disk, fault: Callable[[str], Fault] = lambda _: Fault.NONE) -> None:
        super().__init__(disk, uri="fake:///data", fault=fault)
        self.durable: set[str] = set()

    def make_durable(self, path: str) -> None:
        self.durable |= {path, path.rpartition("/")[0]}

    def sync_directory(self, path: str) -> None:
        self.durable.add(path)


def output(
    files: dict[str, bytes],
    count: Callable[[str], int] | None = None,
    *,
    leaves_rows_out: bool = False,
    fault: Callable[[str], Fault] = lambda _: Fault.NONE,
) -> tuple[StagedOutput, RecordingFileSystem]:
    disk = Disk(files={f"root/{ATTEMPT.path}/{p}": d for p, d in files.items()})
    fs = RecordingFileSystem(disk, fault)
    made = StagedOutput(
        fs=fs, root="root", attempt=ATTEMPT, count=count, leaves_rows_out=leaves_rows_out
    )
    return made, fs


def test_a_batch_without_rows_has_no_files_whatever_its_writer_left() -> None:
    """CSV with a header, and Avro, write a file for no rows."""
    found, _ = output({HEADER: b"key,value\n"})
    assert found.files(rows=0, checkpoint_id=1) == ()


@pytest.mark.parametrize("files", [{}, {HEADER: b""}])
@pytest.mark.parametrize("leaves_rows_out", [False, True])
def test_a_plan_that_is_empty_by_itself_has_no_count_and_no_files(
    files: dict[str, bytes], *, leaves_rows_out: bool
) -> None:
    found, _ = output(files, leaves_rows_out=leaves_rows_out)
    assert found.files(rows=None, checkpoint_id=1) == ()


@pytest.mark.parametrize("rows", [None, 5])
def test_what_is_there_must_be_what_was_written(rows: int | None) -> None:
    """Files that nobody counted into, and rows that no file holds, are never published."""
    found, _ = output({} if rows else {HEADER: b"key,value\n"})
    with pytest.raises(IllegalTransitionError, match="do not hold"):
        found.files(rows=rows, checkpoint_id=1)


def test_rows_are_counted_where_the_format_tells() -> None:
    """A file without rows is left out; one row too few is an error."""
    found, _ = output({HEADER: b"x", ROWS: b"xyz"}, lambda uri: 3 if uri.endswith(ROWS) else 0)
    (file,) = found.files(rows=3, checkpoint_id=1)
    assert (file.staged, file.rows, file.length_bytes) == (staged_name(ROWS), 3, 3)
    with pytest.raises(IllegalTransitionError, match="do not hold"):
        found.files(rows=4, checkpoint_id=1)


def test_a_task_whose_files_are_not_here_is_named() -> None:
    """CSV and JSON do not tell how many rows they hold: it wrote to a disk of its own."""
    found, _ = output({f"dt=1/{HEADER}": b"a", f"dt=2/{ROWS}": b"b"})
    assert len(found.files(rows=5, tasks={0, 1}, checkpoint_id=1)) == 2
    with pytest.raises(
        IllegalTransitionError, match=r"files of some tasks are missing.*missing_tasks=2,7"
    ):
        found.files(rows=5, tasks={0, 2, 7}, checkpoint_id=1)


def test_tasks_that_have_written_what_nobody_counted_have_files_here() -> None:
    """They are not an empty plan, whatever is listed: it may all be on disks of their own."""
    found, _ = output({})
    with pytest.raises(IllegalTransitionError):
        found.files(rows=None, tasks={0}, checkpoint_id=1)


@pytest.mark.parametrize("other", [b"", b"x"])
def test_a_task_whose_rows_csv_leaves_out_has_an_empty_file(other: bytes) -> None:
    """Rows of nulls in the only column: nothing of them is written, and nothing is missing."""
    found, _ = output({HEADER: b"", ROWS: other}, leaves_rows_out=True)
    files = found.files(rows=2, tasks={0, 1}, checkpoint_id=1)
    assert [file.staged for file in files] == [staged_name(ROWS)] * bool(other)
    found, _ = output({HEADER: b"", ROWS: other})  # JSON's was cut
    with pytest.raises(IllegalTransitionError):
        found.files(rows=2, tasks={0, 1}, checkpoint_id=1)


def test_spark_s_own_files_are_not_data() -> None:
    """Checksums, markers, and what tasks did not commit."""
    left = {f".{ROWS}.crc": b"x", "_SUCCESS": b"x", f"_temporary/0/{ROWS}": b"x", ROWS: b"x"}
    found, _ = output(left)
    assert [file.staged for file in found.files(rows=1, checkpoint_id=1)] == [staged_name(ROWS)]


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.ANSWER_LOST, Fault.LATE])
def test_a_file_whose_name_is_unknown_is_not_decided(fault: Fault) -> None:
    """The attempt has failed, whether or not the rename happened: the sweep deletes all of it."""
    found, _ = output({f"dt=1/{ROWS}": b"x"}, fault=lambda _: fault)
    with pytest.raises(StorageError, match="simulated"):
        found.files(rows=1, checkpoint_id=1)


def test_a_file_whose_staged_name_is_taken_is_not_decided() -> None:
    """By whom, and with which rows, is unknown."""
    found, _ = output({ROWS: b"x", staged_name(ROWS): b"y"})
    with pytest.raises(StorageError, match="was not renamed"):
        found.files(rows=2, checkpoint_id=1)


def test_a_file_is_durable_with_every_directory_that_leads_to_it() -> None:
    """A synced file in a directory that is lost is lost."""
    found, fs = output({f"dt=1/hour=2/{ROWS}": b"x"})
    found.files(rows=1, checkpoint_id=1)
    attempt = f"root/{ATTEMPT.path}"
    assert fs.durable == {
        "root",
        f"root/{ATTEMPT.directory}",
        attempt,
        f"{attempt}/dt=1",
        f"{attempt}/dt=1/hour=2",
        f"{attempt}/dt=1/hour=2/{staged_name(ROWS)}",
    }


def test_a_merged_file_is_durable_with_every_directory_that_leads_to_it() -> None:
    """What went into it may be swept once a decision names it."""
    fs = RecordingFileSystem(Disk(files={f"root/old/{name}": b"{}\n" for name in "ab"}))
    into = StagingDirectory(fs=fs, root="root", attempt=ATTEMPT, checkpoint_id=1)
    groups = [["root/old/a", "root/old/b"]]
    ((merged,),) = JoiningMerger().merge(cast(Frame, None), groups, into)
    assert merged.length_bytes == 6
    named_in, _, _ = f"{into.path}/{merged.staged}".rpartition("/")
    while named_in != "root":
        named_in, _, _ = named_in.rpartition("/")
        assert named_in in fs.durable, "where the one below it is named"


def test_files_of_tasks_are_durable_beside_what_lost_attempts_left() -> None:
    """What no answer names is not published; it is deleted with the directory."""
    found, fs = output({f"a=1/{ROWS}": b"xyz", f"a=1/{HEADER}": b"lost"})
    found.require([StagedFile(staged=f"a=1/{ROWS}", final="f", length_bytes=3, rows=1)])
    assert {f"root/{ATTEMPT.path}", "root"} <= fs.durable


@pytest.mark.parametrize("there", [{}, {ROWS: b"xy"}])
def test_a_file_that_the_driver_does_not_see_is_not_decided(there: dict[str, bytes]) -> None:
    """A task on another machine wrote to its own disk: said now, and not after the decision."""
    found, _ = output(there)
    with pytest.raises(IllegalTransitionError, match="one file system"):
        found.require([StagedFile(staged=ROWS, final="f", length_bytes=3, rows=1)])
