"""One suite for every file system: digests and copies of files, also to another store."""

import hashlib
from pathlib import Path

import pytest

from sluice.runtime.errors import StorageError
from sluice.runtime.storage.file_system import FileDigest, FileSystem
from sluice.runtime.storage.local_fs import LocalFileSystem

_DATA = bytes(range(256)) * 12_000  # longer than a buffer of the copy


@pytest.fixture
def local(tmp_path: Path) -> LocalFileSystem:
    """A directory of this host, with a space in its name."""
    return LocalFileSystem(tmp_path / "on this host")


def _digest(data: bytes) -> FileDigest:
    return FileDigest(length_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("data", [b"", b"x", _DATA])
def test_digest_is_that_of_the_whole_file(fs: FileSystem, data: bytes) -> None:
    fs.write_temporary("a/b", data)
    assert fs.digest("a/b") == _digest(data)
    assert fs.digest("a/none") is None


@pytest.mark.parametrize("may_link", [False, True])
def test_copy_is_whole_and_has_the_digest_of_its_source(fs: FileSystem, may_link: bool) -> None:
    """Within a store; a second copy to the same name has the same outcome."""
    fs.write_temporary("from/state file", _DATA)
    for _ in range(2):
        copied = fs.copy_from(fs, "from/state file", "new/directory/file", may_link=may_link)
        assert copied == _digest(_DATA)
    fs.sync_directory("new/directory")
    assert fs.read("new/directory/file") == _DATA
    fs.delete("from")
    assert fs.digest("new/directory/file") == _digest(_DATA), "the copy needs no source"


def test_copies_travel_between_stores(fs: FileSystem, local: LocalFileSystem) -> None:
    """From this host to each store and back, with a link allowed where there is none."""
    local.write_temporary("a", _DATA)
    assert fs.copy_from(local, "a", "there/a", may_link=True) == _digest(_DATA)
    assert local.copy_from(fs, "there/a", "back/a", may_link=True) == _digest(_DATA)
    assert local.read("back/a") == _DATA


def test_missing_source_is_an_error_and_no_empty_copy(fs: FileSystem) -> None:
    with pytest.raises(StorageError):
        fs.copy_from(fs, "none", "copy")
    assert fs.length_bytes("copy") is None


def test_copy_of_a_linked_file_leaves_its_source_alone(local: LocalFileSystem) -> None:
    """A plain copy over a link must not write through it."""
    local.write_temporary("old", b"old")
    local.write_temporary("new", b"new")
    local.copy_from(local, "old", "name", may_link=True)
    local.copy_from(local, "new", "name")
    assert (local.read("old"), local.read("name")) == (b"old", b"new")


def test_a_linked_file_is_the_same_file(local: LocalFileSystem) -> None:
    """So a savepoint on the job's own disk costs no space until Spark deletes its name."""
    local.write_temporary("old", b"old")
    local.copy_from(local, "old", "name", may_link=True)
    assert local.host_path("old").samefile(local.host_path("name"))
