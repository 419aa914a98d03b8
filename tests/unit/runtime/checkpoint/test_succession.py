"""Who is the newest run of a job, as its checkpoint directory reports it."""

from collections.abc import Callable

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.succession import has_last_record
from sluice.runtime.model.checkpoint_record import CheckpointRecord
from tests.kit.coordinator.checkpoint_records import record
from tests.kit.files.fake_file_system import Disk, FakeFileSystem


class RetiringStore(CheckpointStore):
    """Something happens each time between a listing and the read after it."""

    def __init__(self, disk: Disk, meanwhile: Callable[[int], object]) -> None:
        super().__init__(FakeFileSystem(disk))
        self._meanwhile = meanwhile

    def read(self, checkpoint_id: int) -> CheckpointRecord | None:
        """See `CheckpointStore.read`."""
        self._meanwhile(checkpoint_id)
        return super().read(checkpoint_id)


def sealed(disk: Disk, checkpoint_id: int, session: str) -> None:
    store = CheckpointStore(FakeFileSystem(disk))
    store.publish(record(checkpoint_id, leader_session_id=session), timeout_s=1.0)


def test_the_newest_run_is_the_one_whose_record_is_the_last() -> None:
    disk = Disk()
    store = CheckpointStore(FakeFileSystem(disk))
    assert not has_last_record(store, session="first")
    for checkpoint_id in (0, 1, 7):
        sealed(disk, checkpoint_id, "first")
    assert has_last_record(store, session="first")
    sealed(disk, 8, "second")
    disk.remove("chk-000000000007")
    assert not has_last_record(store, session="first")
    assert has_last_record(store, session="second")


def test_a_record_that_is_retired_while_it_is_looked_at_was_not_the_last() -> None:
    """It is looked again, a few times."""
    disk = Disk()
    sealed(disk, 0, "first")

    def once(checkpoint_id: int) -> None:
        if checkpoint_id == 0:
            sealed(disk, 1, "second")
            disk.remove("chk-000000000000")

    assert has_last_record(RetiringStore(disk, once), session="second")

    def each_time(checkpoint_id: int) -> None:
        sealed(disk, checkpoint_id + 1, "second")
        disk.remove(f"chk-{checkpoint_id:012d}")

    assert not has_last_record(RetiringStore(disk, each_time), session="second")
