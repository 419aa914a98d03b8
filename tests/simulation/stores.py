"""The checkpoint directory: in memory, or the production store on a model file system."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from runtime.checkpoint.metadata import decode, decode_repair
from runtime.checkpoint.store import CheckpointStore
from runtime.contracts import PublishOutcome
from runtime.errors import StorageError
from runtime.model import CheckpointRecord, StateEntry
from tests.fake_file_system import Disk, FakeFileSystem, Fault
from tests.fake_store import FakeStore

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["MemoryStore", "WatchedDisk", "make_disk_store"]


class MemoryStore(FakeStore):
    """`FakeStore`, shared by all processes; the watch is told of what stands."""

    def __init__(self, world: "World") -> None:
        super().__init__(
            on_call=lambda name: self._refuse(name),
            lose_answer=lambda: world.fault(world.profile.lost_answer, "the store does not answer"),
        )
        self._world = world

    def _refuse(self, name: str) -> None:
        if self._world.fault(self._world.profile.refused, f"the store refuses {name}"):
            raise StorageError("a simulated fault", {"call": name}, "Ask again.")

    def publish(self, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
        """See `MetadataStore.publish`."""
        known = len(self.history)
        try:
            return super().publish(record, timeout_s=timeout_s)
        finally:
            for placed in self.history[known:]:
                self._world.watch.placed(placed)

    def publish_repair(
        self, checkpoint_id: int, replaced: Mapping[bytes, StateEntry], *, session: str
    ) -> PublishOutcome:
        """See `MetadataStore.publish_repair`."""
        known = len(self.repairs.get(checkpoint_id, ()))
        try:
            return super().publish_repair(checkpoint_id, replaced, session=session)
        finally:
            for placed in self.repairs.get(checkpoint_id, [])[known:]:
                self._world.watch.repaired(checkpoint_id, placed, self.records[checkpoint_id])

    def mark_committed(self, checkpoint_id: int) -> None:
        """See `MetadataStore.mark_committed`."""
        super().mark_committed(checkpoint_id)
        record = self.records.get(checkpoint_id)
        if record is not None:  # a stale coordinator marks what was retired long ago
            self._world.watch.marked(checkpoint_id, lambda: self.effective_committables(record))


class WatchedDisk(Disk):
    """What outlives processes; the watch is told of each record that gets its name."""

    world: "World"

    def place(self, temporary: str, path: str) -> bool:
        """See `Disk.place`."""
        is_over = path in self.files
        placed = super().place(temporary, path)
        directory, _, name = path.rpartition("/")
        if placed and name == "_metadata":
            self.world.watch.placed(decode(self.files[path], where={}), is_over=is_over)
        elif placed and name.startswith("_repair-"):
            repair = decode_repair(self.files[path], where={})
            decided = self.files.get(f"{directory}/_metadata")
            if decided is not None:  # else it landed in a retired place, and says nothing
                old = decode(decided, where={})
                self.world.watch.repaired(repair.checkpoint_id, dict(repair.replaced), old)
        return placed


class _DiskStore(CheckpointStore):
    """The production store of one process."""

    def __init__(self, world: "World", fs: FakeFileSystem) -> None:
        super().__init__(fs, clock=world.clock, pause=world.nap)
        self._world = world

    def mark_committed(self, checkpoint_id: int) -> None:
        """See `MetadataStore.mark_committed`."""
        super().mark_committed(checkpoint_id)
        record = self.read(checkpoint_id)
        if record is not None:  # a stale coordinator marks what was retired long ago
            self._world.watch.marked(checkpoint_id, lambda: self.effective_committables(record))


def make_disk_store(world: "World", disk: Disk) -> CheckpointStore:
    """The production store for one process; its steps fail, happen unanswered, or land later."""
    profile = world.profile

    def fault(step: str) -> Fault:
        if world.fault(profile.refused, f"the file system refuses to {step}"):
            return Fault.REFUSED
        if world.fault(profile.lost_answer, f"the file system does not answer a {step}"):
            return Fault.ANSWER_LOST
        if step == "place" and world.fault(profile.late, "a rename comes late"):
            return Fault.LATE
        if world.fault(profile.kill, f"it dies while it asks to {step}"):
            return world.random.choice((Fault.CRASH_BEFORE, Fault.CRASH_DURING, Fault.CRASH_AFTER))
        return Fault.NONE

    return _DiskStore(world, FakeFileSystem(disk, fault=fault))
