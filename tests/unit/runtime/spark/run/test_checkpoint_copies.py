"""What a running job copies: where to, and after which log entries of Spark (`copy-protected`)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.runtime.checkpoint.checkpoint_store import open_store
from sluice.runtime.errors import ConfigError, FencedError, StreamError
from sluice.runtime.model.checkpoint_record import (
    CheckpointKind,
    CheckpointRecord,
    RegionRecord,
    RegionStatus,
    StateSnapshot,
)
from sluice.runtime.savepoint.savepoint import open_savepoint
from sluice.runtime.spark.run.checkpoint_copies import CheckpointCopies
from sluice.runtime.storage.file_system_opening import open_file_system
from sluice.runtime.storage.local_fs import LocalFileSystem
from tests.kit.coordinator.checkpoint_records import record

_STATE = StateSnapshot(
    provider="x",
    checkpoint_format_version=1,
    state_version=5,
    state_partitions=1,
    location="spark/r0/state-0/state",
)
_COMMITS = "spark/r0/state-0/commits"


@pytest.fixture
def copies(tmp_path: Path) -> CheckpointCopies:
    return CheckpointCopies(
        LocalFileSystem(tmp_path / "checkpoint"), open_fs=open_file_system, retained=2
    )


def stateful(status: RegionStatus = RegionStatus.COMPLETED) -> CheckpointRecord:
    """A region with a batch whose end Spark has not logged yet."""
    region = RegionRecord(region="r0", attempt_id=0, batch_id=4, state=_STATE, status=status)
    return replace(record(7, regions=(region,)), kind=CheckpointKind.SAVEPOINT)


class Guard:
    """Fails at its nth call, and does something at each."""

    def __init__(self, calls: int, then: Callable[[], object] = lambda: None) -> None:
        self.left = calls
        self._then = then

    def __call__(self) -> None:
        self._then()
        self.left -= 1
        if self.left <= 0:
            raise FencedError("not wanted any more", {}, "Stop.")


def copy(
    copies: CheckpointCopies,
    found: CheckpointRecord,
    uri: str,
    *,
    guard: Callable[[], None] = lambda: None,
    is_awaited: bool = True,
) -> None:
    copies.copy(
        found,
        uri,
        is_awaited=lambda _: is_awaited,
        guard=guard,
        progress=lambda *_: None,
    )


def test_a_savepoint_has_a_name_of_its_own_below_its_parent(
    copies: CheckpointCopies, tmp_path: Path
) -> None:
    found = replace(record(7, regions=()), kind=CheckpointKind.SAVEPOINT)
    store = open_store(str(tmp_path / "checkpoint"))
    store.publish(record(7, regions=()), timeout_s=60)
    store.mark_committed(7)
    parent = copies.parent(CheckpointKind.SAVEPOINT, str(tmp_path / "there"))
    uri = copies.uri(found, parent, request_id="abc123")
    assert uri == f"file://{tmp_path}/there/savepoint-{found.job_uid[:8]}-7-abc123"
    copy(copies, found, uri)
    assert open_savepoint(uri).record.checkpoint_id == 7


def test_without_a_directory_it_is_below_the_checkpoints(
    copies: CheckpointCopies, tmp_path: Path
) -> None:
    directory = f"file://{tmp_path}/checkpoint"
    assert copies.parent(CheckpointKind.SAVEPOINT, None) == f"{directory}/savepoints"
    assert copies.parent(CheckpointKind.FULL, None) == f"{directory}/full"


@pytest.mark.parametrize("to", ["", " ", "ftp://host/x"])
def test_a_directory_that_cannot_be_written_is_refused_at_once(
    copies: CheckpointCopies, to: str
) -> None:
    with pytest.raises(ConfigError):
        copies.parent(CheckpointKind.SAVEPOINT, to)


def test_copy_protected_a_copy_waits_until_spark_has_logged_the_batch(
    copies: CheckpointCopies, tmp_path: Path
) -> None:
    """It looks again and again, and ends with the job."""
    guard = Guard(3)
    with pytest.raises(FencedError):
        copy(copies, stateful(), str(tmp_path / "s"), guard=guard)
    assert guard.left == 0
    assert not (tmp_path / "s").exists()


def test_copy_protected_a_copy_goes_on_when_a_restarted_region_has_logged_it(
    copies: CheckpointCopies, tmp_path: Path
) -> None:
    log = tmp_path / "checkpoint" / _COMMITS
    log.mkdir(parents=True)
    guard = Guard(3, (log / "4").touch)
    with pytest.raises(StreamError) as found:
        copy(copies, stateful(), str(tmp_path / "s"), guard=guard)
    assert not isinstance(found.value, FencedError), "it has gone on to read Spark's files"


@pytest.mark.parametrize(
    ("status", "is_awaited"), [(RegionStatus.SKIPPED, True), (RegionStatus.COMPLETED, False)]
)
def test_nothing_waits_for_a_suspended_region(
    copies: CheckpointCopies, tmp_path: Path, status: RegionStatus, is_awaited: bool
) -> None:
    """It logs its batch only when it restarts; a restored job runs the batch once more."""
    guard = Guard(10)
    with pytest.raises(StreamError) as found:
        copy(copies, stateful(status), str(tmp_path / "s"), guard=guard, is_awaited=is_awaited)
    assert not isinstance(found.value, FencedError)
