"""The checkpoint directory: in memory, or the production store on a model file system."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.checkpoint.format.metadata import decode, decode_repair
from sluice.runtime.contracts import MetadataStore, PublishOutcome
from sluice.runtime.errors import StorageError
from sluice.runtime.model.checkpoint_record import CheckpointRecord, StateEntry
from tests.kit.coordinator.fake_store import FakeStore
from tests.kit.files.fake_file_system import Disk, FakeFileSystem, Fault

if TYPE_CHECKING:
    from tests.simulation.world import World

_READS = frozenset(
    {
        "accepted",
        "effective_committables",
        "is_committed",
        "is_superseded",
        "known_fencing_records",
        "slots",
        "superseded_by",
        "read",
        "retirable",
        "unsettled",
    }
)


class MemoryStore(FakeStore):
    """`FakeStore`, shared by all processes; the watch is reported what stands."""

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
        self._world.watch.publishes(record)
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

    def retire(self, checkpoint_ids: Collection[int]) -> None:
        """See `MetadataStore.retire`."""
        for checkpoint_id in checkpoint_ids:
            is_marked = checkpoint_id in self.committed
            self._world.watch.retires(self.records[checkpoint_id], is_marked=is_marked)
        super().retire(checkpoint_ids)


class _ReadingStore:
    """One process's way to a `MemoryStore`: at times it is not reported what it asks."""

    def __init__(self, world: "World", store: MemoryStore) -> None:
        self._world = world
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in _READS:
            return found

        def ask(*args: Any, **kwargs: Any) -> Any:
            if self._world.fault(self._world.profile.unread, f"the store fails to answer {name}"):
                raise StorageError("a simulated fault", {"call": name}, "Look again.")
            return found(*args, **kwargs)

        return ask


def memory_store_of(world: "World", store: MemoryStore) -> MetadataStore:
    """The shared store, as one process has it."""
    return cast(MetadataStore, _ReadingStore(world, store)) if world.profile.unread else store


class WatchedDisk(Disk):
    """What outlives processes; the watch is reported each record that gets its name."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self.world = world
        self._records: dict[bytes, CheckpointRecord] = {}

    def record_in(self, data: bytes, where: Mapping[str, object]) -> CheckpointRecord:
        """See `decode`. What says the same is decoded once in a world, which has a dozen readers
        of each file: a record never changes, and neither do its bytes."""
        found = self._records.get(data)
        if found is None:
            found = self._records[data] = decode(data, where=where)
        return found

    def place(self, temporary: str, path: str) -> bool:
        """See `Disk.place`."""
        is_over = path in self.files
        placed = super().place(temporary, path)
        directory, _, name = path.rpartition("/")
        if placed and name == "_metadata":
            self.world.watch.placed(self.record_in(self.files[path], {}), is_over=is_over)
        elif placed and name.startswith("_repair-"):
            repair = decode_repair(self.files[path], where={})
            decided = self.files.get(f"{directory}/_metadata")
            if decided is not None:  # else it landed in a retired place, and says nothing
                old = self.record_in(decided, {})
                self.world.watch.repaired(repair.checkpoint_id, dict(repair.replaced), old)
        return placed

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        if path.startswith("state/") and path in self.files:
            self.world.watch.state.deletes(path)
        record = self.files.get(f"{path}/_metadata")
        if record is not None:
            is_marked = f"{path}/_committed" in self.files
            self.world.watch.retires(self.record_in(record, {}), is_marked=is_marked)
        super().remove(path)


class DiskStore(CheckpointStore):
    """The production store on a world's disk, for people: its steps do not fail."""

    def __init__(self, world: "World", fs: FakeFileSystem | None = None) -> None:
        super().__init__(fs or FakeFileSystem(world.disk), clock=world.clock, pause=world.nap)
        self._world = world

    def _record_in(self, data: bytes, where: Mapping[str, object]) -> CheckpointRecord:
        return self._world.disk.record_in(data, where)


class _StoreOfProcess(DiskStore):
    """As one process has it; the watch is reported what it does."""

    def publish(self, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
        """See `MetadataStore.publish`."""
        self._world.watch.publishes(record)
        return super().publish(record, timeout_s=timeout_s)

    def mark_committed(self, checkpoint_id: int) -> None:
        """See `MetadataStore.mark_committed`."""
        plain = DiskStore(self._world)
        try:
            super().mark_committed(checkpoint_id)
        finally:  # the mark may be there although the process has died, or was not answered
            record = plain.read(checkpoint_id) if plain.is_committed(checkpoint_id) else None
            if record is not None:  # a stale coordinator marks what was retired long ago
                effective = partial(plain.effective_committables, record)
                self._world.watch.marked(checkpoint_id, effective)


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

    def is_unreadable(step: str) -> bool:
        return world.fault(profile.unread, f"the checkpoint directory fails to answer {step}")

    return _StoreOfProcess(world, FakeFileSystem(disk, fault=fault, is_unreadable=is_unreadable))
