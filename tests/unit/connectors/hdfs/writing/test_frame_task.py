"""Tasks that write a frame's files in Python: one answer each, whole files, typed errors."""

import pickle
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest

from sluice.connectors.hdfs.formats.choice import file_format
from sluice.connectors.hdfs.staging.committables import StagedFile
from sluice.connectors.hdfs.staging.task_files import LocalTaskFiles
from sluice.connectors.hdfs.writing.partition_paths import PartitionPaths
from sluice.connectors.hdfs.writing.task_saver import FrameTask, files_of
from sluice.runtime.errors import ConfigError
from sluice.runtime.model.splits import BatchKey

ROWS = pa.record_batch({"city": ["Forlì", None, "a/b"], "n": [1, 2, 3]})


def task(directory: Path, *, by: str = "city") -> FrameTask:
    """As it comes out of the driver."""
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


def test_each_partition_has_a_whole_file_of_its_rows(tmp_path: Path) -> None:
    """Lengths and rows are reported; names say where the rows come from."""
    files = answered(task(tmp_path), ROWS, ROWS)
    rows = []
    for file in files:
        path = tmp_path / file.staged
        assert path.stat().st_size == file.length_bytes
        assert file.final.rpartition("/")[2].startswith("part-000000000009-main-00000-")
        with path.open("rb") as stream:
            rows += [row["n"] for row in fastavro.reader(stream)]
    assert sorted(rows) == [1, 1, 2, 2, 3, 3]
    assert [file.rows for file in files] == [2, 2, 2]


def test_rename_settled_two_attempts_of_a_task_share_no_file(tmp_path: Path) -> None:
    """Neither staged nor published."""
    first, second = (answered(task(tmp_path), ROWS) for _ in range(2))
    assert not {f.staged for f in first} & {f.staged for f in second}
    assert not {f.final for f in first} & {f.final for f in second}


def test_a_task_without_rows_writes_nothing(tmp_path: Path) -> None:
    """Not even a file with a header."""
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
    with pytest.raises(ConfigError, match="does not see the driver's staging directory"):
        answered(task(tmp_path / "not" / "here"), ROWS)
    assert list(tmp_path.iterdir()) == []
