"""Files of the registry: what is damaged or foreign is left out, and no name leaves the directory."""

import json
from pathlib import Path

import pytest

from sluice.runtime.errors import StorageError
from sluice.runtime.job_registry.registration import JobRegistry
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.registered_jobs import a_registration


@pytest.fixture
def registry(tmp_path: Path) -> JobRegistry:
    return JobRegistry(LocalFileSystem(tmp_path))


def test_what_is_written_is_read(registry: JobRegistry) -> None:
    written = a_registration(ended_ms=5, state="failed", error="no room")
    registry.write(written)
    assert registry.read("job-1") == written
    assert registry.registrations() == [written]
    registry.delete("job-1")
    assert registry.registrations() == []


def test_other_files_are_left_out_and_named_once(
    registry: JobRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry.write(a_registration())
    content = json.loads((tmp_path / "job-1.json").read_text())
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "later.json").write_text(json.dumps(content | {"format_version": 2}))
    (tmp_path / "other-name.json").write_text(json.dumps(content))
    (tmp_path / "large.json").write_bytes(b" " * 70_000)
    (tmp_path / "directory.json").mkdir()
    (tmp_path / ".job-1.json.tmp").write_text("{")
    for _ in range(2):
        assert [each.job_uid for each in registry.registrations()] == ["job-1"]
    assert caplog.text.count("left out") == 4


@pytest.mark.parametrize("job_uid", ["../up", "a/b", "", ".", "a" * 65, "a\n", "ä"])
def test_a_uid_that_is_no_file_name_reaches_no_file(registry: JobRegistry, job_uid: str) -> None:
    with pytest.raises(StorageError):
        registry.read(job_uid)
    with pytest.raises(StorageError):
        registry.delete(job_uid)
