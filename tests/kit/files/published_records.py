"""A checkpoint store in an empty directory, and records that are published there."""

import pytest

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.contracts import PublishOutcome
from sluice.runtime.model.checkpoint_record import CheckpointRecord
from sluice.runtime.storage.file_system import FileSystem

TIMEOUT_S = 120.0


@pytest.fixture
def store(fs: FileSystem) -> CheckpointStore:
    """A store of an empty directory."""
    return CheckpointStore(fs)


def publish(store: CheckpointStore, *records: CheckpointRecord) -> None:
    """Each at its position, which must be ours."""
    for each in records:
        assert store.publish(each, timeout_s=TIMEOUT_S) is PublishOutcome.OURS
