"""What every file system promises to a checkpoint store.

The fake stands in for the others in the property tests; here it shows that it behaves as they do.
"""

from sluice.runtime.storage.file_system import FileSystem


def test_a_tree_is_deleted_with_everything_in_it(fs: FileSystem) -> None:
    """Files that connectors or state put beside the record go with the checkpoint."""
    fs.write_temporary("chk-000000000001/state/0/1.zip", b"x")
    fs.write_temporary("chk-000000000002/state", b"x")
    fs.delete("chk-000000000001")
    fs.delete("chk-000000000001")
    fs.delete("absent")
    assert [entry.name for entry in fs.entries("")] == ["chk-000000000002"]


def test_entries_tell_files_from_directories(fs: FileSystem) -> None:
    fs.write_temporary("b/one", b"123")
    fs.write_temporary("b/a/two", b"")
    found = [(entry.name, entry.is_directory) for entry in fs.entries("b")]
    assert found == [("a", True), ("one", False)]
    assert fs.entries("b")[1].length_bytes == 3
    assert fs.read("b/one") == b"123"
    assert fs.read("b/a/two") == b""
    assert fs.read("b/a/three") is None


def test_bytes_come_back_exactly(fs: FileSystem) -> None:
    """Every byte value survives, and a megabyte of them."""
    data = bytes(range(256)) * 4096
    fs.write_temporary("t", data)
    assert fs.place("t", "d")
    assert fs.read("d") == data
    assert not fs.exists("t")
    fs.write_temporary("t", b"other")
    assert not fs.place("t", "d")
    assert fs.read("d") == data
