"""A run registers at its start and end, and no trouble of the registry reaches it."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.runtime.errors import FencedError, StorageError, StorageUnreachableError
from sluice.runtime.job.job import Job
from sluice.runtime.job_registry.job_registrar import JobRegistrar, ended_state
from sluice.runtime.job_registry.registration import JobRegistry, Registration
from sluice.runtime.storage.file_system import FileSystem
from sluice.runtime.storage.file_system_opening import open_file_system
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.registered_jobs import a_registration
from tests.kit.waiting import PATIENCE_S, wait_for


@pytest.fixture
def registry(tmp_path: Path) -> JobRegistry:
    return JobRegistry(LocalFileSystem(tmp_path / "registry"))


def registrar(registry: JobRegistry, *, end_s: float = PATIENCE_S) -> JobRegistrar:
    return JobRegistrar(registry.fs.uri, lambda _: registry.fs, renewed_every_s=0.01, end_s=end_s)


def awaited(
    registry: JobRegistry, condition: Callable[[Registration], bool], job_uid: str = "job-1"
) -> Registration:
    def found() -> Registration | None:
        read = registry.read(job_uid)
        return read if read is not None and condition(read) else None

    read = wait_for(found)
    assert read is not None
    return read


def test_a_run_registers_renews_and_registers_its_end(registry: JobRegistry) -> None:
    with registrar(registry) as registered:
        registered.begin(a_registration())
        first = awaited(registry, lambda found: found.renewed_ms > found.started_ms)
        awaited(registry, lambda found: found.renewed_ms > first.renewed_ms)
        assert first.state == "running"
    ended = registry.read("job-1")
    assert ended is not None
    assert ended.state == "finished"
    assert ended.ended_ms is not None


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (StorageError("no room", {}, "Make room."), "failed"),
        (FencedError("another run", {}, "Stop."), "fenced"),
        (SystemExit(143), "stopped"),
    ],
)
def test_the_end_tells_how_it_ended(
    registry: JobRegistry, error: BaseException, state: str
) -> None:
    registered = registrar(registry)
    registered.begin(a_registration())
    registered.__exit__(None, error, None)
    ended = registry.read("job-1")
    assert ended is not None
    assert ended.state == state
    assert ("no room" in ended.error) is (state == "failed")


def test_a_later_run_keeps_its_registration(registry: JobRegistry) -> None:
    """An older run that was paused wakes up, and ends."""
    later = a_registration(run_attempt=2, started_ms=2_000)
    with registrar(registry) as registered:
        registry.write(later)
        registered.begin(a_registration())
    assert registry.read("job-1") == later


class AwayFileSystem(LocalFileSystem):
    """Refuses everything until it is back."""

    is_away = True

    def replace(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        if self.is_away:
            raise StorageUnreachableError("away", {}, "Wait.")
        super().replace(path, data, is_private=is_private)


def test_a_registry_that_is_away_is_reported_once_and_found_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fs = AwayFileSystem(tmp_path)
    caplog.set_level(logging.INFO, "sluice.runtime.job_registry")
    with JobRegistrar("file:///r", lambda _: fs, renewed_every_s=0.01) as registered:
        registered.begin(a_registration())
        wait_for(lambda: "job is not registered" in caplog.text)
        fs.is_away = False
        awaited(JobRegistry(fs), lambda found: found.state == "running")
    assert caplog.text.count("job is not registered") == 1
    assert caplog.text.count("job is registered again") == 1


def test_a_registry_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    hangs = threading.Event()

    def hanging(uri: str) -> FileSystem:
        hangs.wait(PATIENCE_S)
        return open_file_system(uri)

    try:
        with JobRegistrar(str(tmp_path / "r"), hanging, end_s=0.01) as registered:
            registered.begin(a_registration())
        assert not (tmp_path / "r").exists()
    finally:
        hangs.set()


def test_a_job_without_a_registry_starts_no_thread() -> None:
    before = set(threading.enumerate())
    with JobRegistrar(None, open_file_system) as registered:
        registered.begin(a_registration())
        assert set(threading.enumerate()) <= before


def test_a_job_takes_its_registry_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A service that submits a program names its own registry."""
    monkeypatch.setenv("SLUICE_REGISTRY", str(tmp_path))

    def registry_of(**given: str) -> str | None:
        return Job("copy", None, checkpoint_dir="c", **given).spec.registry  # type: ignore[arg-type]

    assert registry_of() == f"file://{tmp_path}"
    assert registry_of(registry="hdfs://n:1/r") == "hdfs://n:1/r"
    assert ended_state(None, lambda: False) == "finished"
    assert ended_state(None, lambda: True) == "stopped"
