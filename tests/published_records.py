"""A checkpoint store in an empty directory, and records that are published there."""

import pytest

from runtime.checkpoint.store import CheckpointStore
from runtime.contracts import PublishOutcome
from runtime.model import CheckpointRecord
from runtime.storage.file_system import FileSystem

__all__ = ["TIMEOUT_S", "publish", "store"]

TIMEOUT_S = 120.0


@pytest.fixture
def store(fs: FileSystem) -> CheckpointStore:
    """A store of an empty directory."""
    return CheckpointStore(fs)


def publish(store: CheckpointStore, *records: CheckpointRecord) -> None:
    """Each in its place, which must be ours."""
    for each in records:
        assert store.publish(each, timeout_s=TIMEOUT_S) is PublishOutcome.OURS
