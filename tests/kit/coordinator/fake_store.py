"""The checkpoint directory in memory."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.runtime.checkpoint import retention
from sluice.runtime.checkpoint.acceptance import claim_of
from sluice.runtime.checkpoint.retention import SlotFacts, facts_of
from sluice.runtime.contracts import AcceptedWork, PublishOutcome, UnsettledWork
from sluice.runtime.errors import DamagedCheckpointError, StorageError
from sluice.runtime.model.checkpoint_record import FENCING, CheckpointRecord, StateEntry, Verdict
from sluice.runtime.model.state.file_reference import FileReference


@dataclass(slots=True)
class FakeStore:
    """A `MetadataStore` in memory, shared by all processes; its promise is the real one's.

    Attributes:
        empty: directories of state in which there is nothing.
        ended_attempts: of runs up to this one; -1: of none.
        files: of keyed state, by path.
        on_call: called with the name of each call that writes, before it happens; may raise.
        lose_answer: asked after each publish that happened; True: StorageError instead.
    """

    uri: str = "fake:///job"
    records: dict[int, CheckpointRecord] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    superseded: dict[int, int] = field(default_factory=dict)
    notes: dict[int, tuple[UnsettledWork, ...]] = field(default_factory=dict)
    acceptances: dict[int, dict[str, AcceptedWork]] = field(default_factory=dict)
    repairs: dict[int, list[Mapping[bytes, StateEntry]]] = field(default_factory=dict)
    history: list[CheckpointRecord] = field(default_factory=list)
    retired: list[int] = field(default_factory=list)
    empty: set[str] = field(default_factory=set)
    ended_attempts: int = -1
    files: dict[str, FileReference] = field(default_factory=dict)
    on_call: Callable[[str], None] = lambda _: None
    lose_answer: Callable[[], bool] = lambda: False

    def slots(self) -> list[int]:
        """See `MetadataStore.slots`."""
        return sorted(self.records)

    def known_fencing_records(self) -> frozenset[int]:
        """See `MetadataStore.known_fencing_records`."""
        return frozenset(
            record.checkpoint_id
            for record in self.records.values()
            if record.requested_by == FENCING
        )

    def is_empty(self, directory: str) -> bool:
        """See `MetadataStore.is_empty`."""
        return directory in self.empty

    def read(self, checkpoint_id: int) -> CheckpointRecord | None:
        """See `MetadataStore.read`."""
        return self.records.get(checkpoint_id)

    def publish(self, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
        """See `MetadataStore.publish`."""
        self.on_call("publish")
        if record.checkpoint_id not in self.records:
            self.history.append(record)
        standing = self.records.setdefault(record.checkpoint_id, record)
        if self.lose_answer():
            raise StorageError("the answer was lost", {}, "Ask again.")
        return PublishOutcome.OURS if standing == record else PublishOutcome.TAKEN

    def mark_committed(self, checkpoint_id: int) -> None:
        """See `MetadataStore.mark_committed`."""
        self.on_call("mark_committed")
        self.committed.add(checkpoint_id)

    def is_committed(self, checkpoint_id: int) -> bool:
        """See `MetadataStore.is_committed`."""
        return checkpoint_id in self.committed

    def end_attempts(self, run_attempt_id: int) -> None:
        """See `MetadataStore.end_attempts`."""
        self.on_call("end_attempts")
        self.ended_attempts = run_attempt_id

    def mark_superseded(self, checkpoint_id: int, *, by: int) -> None:
        """See `MetadataStore.mark_superseded`."""
        self.superseded[checkpoint_id] = by

    def note_unsettled(self, checkpoint_id: int, works: Sequence[UnsettledWork]) -> None:
        """See `MetadataStore.note_unsettled`."""
        self.on_call("note_unsettled")
        self.notes[checkpoint_id] = tuple(works)

    def unsettled(self, checkpoint_id: int) -> tuple[UnsettledWork, ...]:
        """See `CheckpointStore.unsettled`."""
        return self.notes.get(checkpoint_id, ())

    def accepted(self, checkpoint_id: int) -> Mapping[str, AcceptedWork]:
        """See `MetadataStore.accepted`."""
        return self.acceptances.get(checkpoint_id, {})

    def accept(self, checkpoint_id: int, works: Iterable[AcceptedWork]) -> None:
        """See `CheckpointStore.accept`."""
        found = {work.digest: work for work in works}
        standing = self.effective_committables(self.records[checkpoint_id])
        repairs = self.repairs.setdefault(checkpoint_id, [])
        claim = claim_of(found.values(), standing, repairs, where={"uri": self.uri})
        if claim:
            repairs.append(claim)
        known = self.acceptances.setdefault(checkpoint_id, {})
        known |= found

    def is_superseded(self, checkpoint_id: int) -> bool:
        """See `MetadataStore.is_superseded`."""
        return checkpoint_id in self.superseded

    def superseded_by(self, checkpoint_id: int) -> int | None:
        """See `MetadataStore.superseded_by`."""
        return self.superseded.get(checkpoint_id)

    def publish_repair(
        self, checkpoint_id: int, replaced: Mapping[bytes, StateEntry], *, session: str
    ) -> PublishOutcome:
        """See `MetadataStore.publish_repair`."""
        self.on_call("publish_repair")
        standing = self.repairs.setdefault(checkpoint_id, [])
        for repair in standing:
            if set(repair) & set(replaced):
                return PublishOutcome.OURS if repair == replaced else PublishOutcome.TAKEN
        standing.append(dict(replaced))
        if self.lose_answer():
            raise StorageError("the answer was lost", {}, "Ask again.")
        return PublishOutcome.OURS

    def effective_committables(self, record: CheckpointRecord) -> tuple[StateEntry, ...]:
        """See `MetadataStore.effective_committables`."""
        entries = list(record.committables)
        for repair in self.repairs.get(record.checkpoint_id, []):
            entries = [repair.get(entry.payload, entry) for entry in entries]
        return tuple(entries)

    def make_durable(self, checkpoint_id: int) -> None:
        """See `MetadataStore.make_durable`."""

    def facts(self) -> list[SlotFacts]:
        """For retention, and for tests."""
        return [
            facts_of(
                record,
                is_committed=checkpoint_id in self.committed,
                is_superseded=checkpoint_id in self.superseded,
            )
            for checkpoint_id, record in sorted(self.records.items())
        ]

    def retirable(self, *, retain: int) -> list[int]:
        """See `MetadataStore.retirable`."""
        return retention.retirable(self.facts(), retain=retain)

    def retire(self, checkpoint_ids: Collection[int]) -> None:
        """See `MetadataStore.retire`."""
        for checkpoint_id in checkpoint_ids:
            record = self.records.pop(checkpoint_id)
            assert record.verdict is Verdict.ABORTED or checkpoint_id in self.committed
            self.retired.append(checkpoint_id)

    def state_files(self) -> list[str]:
        """See `MetadataStore.state_files`."""
        return sorted(self.files)

    def require_files(self, record: CheckpointRecord, *, whole: bool) -> None:
        """See `MetadataStore.require_files`."""
        for file in record.keyed_files:
            found = self.files.get(file.path)
            if (
                found is None
                or found.length_bytes != file.length_bytes
                or (whole and found != file)
            ):
                raise DamagedCheckpointError("a file is missing", {"path": file.path}, "Restore.")

    def delete_files(self, paths: Collection[str]) -> None:
        """See `MetadataStore.delete_files`."""
        for path in paths:
            self.on_call("delete_files")
            self.files.pop(path, None)
