"""What a local file system has on its disk when: the order of syncs and names."""

import os
from pathlib import Path

import pytest

from runtime.errors import StorageError
from runtime.storage.local_fs import LocalFileSystem


def test_rule_7_a_record_is_on_the_disk_before_it_has_its_name(
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
    assert fs.place("chk/.temporary", "chk/_metadata")

    content, directory = place.stat().st_ino, place.parent.stat().st_ino
    assert (content, False) in synced
    assert synced[-1] == (directory, True)
    assert (tmp_path.stat().st_ino, False) in synced, "of the directory that was made for it"


@pytest.mark.parametrize("below", ["", "further/below"])
def test_a_file_in_the_place_of_a_directory_is_told_as_that(tmp_path: Path, below: str) -> None:
    """The disk is well."""
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StorageError, match="this is no directory") as caught:
        LocalFileSystem(tmp_path / "file" / below).entries("")
    assert "disk" not in str(caught.value)
