"""A look at whether a directory takes files: it writes one, and leaves none after."""

import pytest

from sluice.runtime.errors import StorageError
from sluice.runtime.storage.file_system import require_writable
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault

KEPT = {"below/file": b"kept"}


@pytest.mark.parametrize("directory", ["", "below", "new"])
def test_a_directory_that_takes_files_is_left_as_it_was(directory: str) -> None:
    disk = Disk(files=dict(KEPT))
    require_writable(FakeFileSystem(disk), directory)
    assert disk.files == KEPT


def test_what_was_not_written_whole_is_deleted_again() -> None:
    """Without a DataNode the name is there all the same."""
    disk = Disk(files=dict(KEPT))
    faults = {"write": Fault.ANSWER_LOST}
    with pytest.raises(StorageError, match="step=write"):
        require_writable(FakeFileSystem(disk, fault=lambda step: faults.get(step, Fault.NONE)), "")
    assert disk.files == KEPT


def test_why_nothing_can_be_written_is_reported_where_nothing_can_be_deleted_either() -> None:
    with pytest.raises(StorageError, match="step=write"):
        require_writable(FakeFileSystem(Disk(), fault=lambda _: Fault.REFUSED), "below")
