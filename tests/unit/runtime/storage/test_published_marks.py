"""The check of marks beside published files, on directories that lack them on purpose."""

import os
from pathlib import Path

import pytest

from sluice.runtime.storage.file_system_opening import open_file_system
from tests.chaos.published_files import PublishedFiles

FILE = "part-000000000003-in-0-00000-aa-c000.snappy.parquet"
WRITTEN_S = 1_000


@pytest.mark.parametrize(
    ("marked_s", "is_fault"),
    [(WRITTEN_S + 1, False), (WRITTEN_S - 1, True), (None, True)],
    ids=["behind the file", "before a late file", "never"],
)
def test_a_partition_must_be_marked_after_its_newest_file(
    tmp_path: Path, marked_s: int | None, is_fault: bool
) -> None:
    """A directory without files needs no mark."""
    directory = tmp_path / "files" / "slice=0"
    (tmp_path / "files" / "slice=1").mkdir(parents=True)
    for name, at_s in ((FILE, WRITTEN_S), ("_SUCCESS", marked_s)):
        if at_s is not None:
            directory.mkdir(exist_ok=True)
            (directory / name).touch()
            os.utime(directory / name, (at_s, at_s))
    files = PublishedFiles(fs=open_file_system(str(tmp_path)), name="files")
    assert files.unmarked() == ([str(directory)] if is_fault else [])
