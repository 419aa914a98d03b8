"""Local files: the order of syncs and names, and checks of published marks."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.runtime.errors import ConfigError, StorageError, StorageUnreachableError
from sluice.runtime.storage.file_system import require_writable
from sluice.runtime.storage.file_system_opening import open_file_system
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.chaos.published_files import PublishedFiles
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault


def test_publish_whole_a_record_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may leave the name out, but never a name without its content."""
    place = tmp_path / "chk" / "_metadata"
    synced: list[tuple[int, bool]] = []

    def note(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, place.exists()))

    monkeypatch.setattr(os, "fsync", note)
    fs = LocalFileSystem(tmp_path)
    fs.write_temporary("chk/.temporary", b"a decision")
    assert fs.place("chk/.temporary", "chk/_metadata", b"a decision")

    content, directory = place.stat().st_ino, place.parent.stat().st_ino
    assert (content, False) in synced
    assert synced[-1] == (directory, True)
    assert (tmp_path.stat().st_ino, False) in synced, "of the directory that was made for it"


@pytest.mark.parametrize("below", ["", "further/below"])
def test_a_file_in_the_place_of_a_directory_is_reported_as_that(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StorageError, match="the path is no directory") as caught:
        LocalFileSystem(tmp_path / "file" / below).entries("")
    assert "disk" not in str(caught.value)


_LOOKS: dict[str, Callable[[LocalFileSystem], object]] = {
    "exists": lambda fs: fs.exists("place"),
    "length_bytes": lambda fs: fs.length_bytes("place"),
    "move": lambda fs: fs.move("other", "place"),
    "make_directories": lambda fs: fs.make_directories("place"),
}


@pytest.mark.parametrize("look", _LOOKS)
def test_a_look_that_fails_is_no_answer(tmp_path: Path, look: str) -> None:
    """Python's own looks take some failures for "there is no such file", and from 3.14 on all of
    them: a decision would be passed over, and a published file be called missing."""
    (tmp_path / "place").symlink_to(tmp_path / "place")  # for ever: ELOOP
    (tmp_path / "other").write_bytes(b"x")
    with pytest.raises(StorageError):
        _LOOKS[look](LocalFileSystem(tmp_path))
    assert (tmp_path / "other").read_bytes() == b"x"


@pytest.mark.parametrize("error", [errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN])
def test_a_mount_whose_server_is_away_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def failed(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(Path, "read_bytes", failed)
    with pytest.raises(StorageUnreachableError, match="could not read"):
        LocalFileSystem(tmp_path).read("place")
    error = errno.EIO
    with pytest.raises(StorageError) as caught:
        LocalFileSystem(tmp_path).read("place")
    assert type(caught.value) is StorageError


def test_a_name_that_is_too_long_is_no_failure_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name that is too long"):
        LocalFileSystem(tmp_path).make_directories(f"day={'x' * 300}")


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
    directory = tmp_path / "files" / "slice=0"
    (tmp_path / "files" / "slice=1").mkdir(parents=True)
    for name, at_s in ((FILE, WRITTEN_S), ("_SUCCESS", marked_s)):
        if at_s is not None:
            directory.mkdir(exist_ok=True)
            (directory / name).touch()
            os.utime(directory / name, (at_s, at_s))
    files = PublishedFiles(fs=open_file_system(str(tmp_path)), name="files")
    assert files.unmarked() == ([str(directory)] if is_fault else [])


KEPT = {"below/file": b"kept"}


def test_what_was_not_written_whole_is_deleted_again() -> None:
    disk = Disk(files=dict(KEPT))
    faults = {"write": Fault.ANSWER_LOST}
    with pytest.raises(StorageError, match="step=write"):
        require_writable(FakeFileSystem(disk, fault=lambda step: faults.get(step, Fault.NONE)), "")
    assert disk.files == KEPT


def test_why_nothing_can_be_written_is_reported_where_nothing_can_be_deleted_either() -> None:
    with pytest.raises(StorageError, match="step=write"):
        require_writable(FakeFileSystem(Disk(), fault=lambda _: Fault.REFUSED), "below")
