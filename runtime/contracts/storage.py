"""The checkpoint directory as the coordinator uses it."""

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.runtime.contracts.committing import CommitOutcome
from sluice.runtime.model.checkpoint_record import CheckpointRecord, StateEntry

__all__ = ["AcceptedAs", "AcceptedWork", "MetadataStore", "PublishOutcome", "UnsettledWork"]


class PublishOutcome(enum.Enum):
    """Answer of a publish that never replaces a file."""

    OURS = "ours"  # durable, by this call or an earlier one of this session.
    TAKEN = "taken"  # The slot has another record: read it; stop if it is another session's.
    UNKNOWN = "unknown"  # Neither read back nor refused: publish again, decide nothing.
    DECIDED = "decided"  # An abort came too late: the slot has this session's own decision.


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsettledWork:
    """Decided work that could not be committed, as named by the error that ended a job or its
    start.

    Attributes:
        digest: of its committable, by `sluice.runtime.checkpoint.lost_work.digest_of`.
        outcome: ABORTED: the work is lost; UNKNOWN: its state cannot be determined.
        region: that wrote the work.
        ranges: source ranges of the work, ``orders-0:[10,20)``; all ranges of its region if the
            work does not name its own.
        detail: why, for people.
    """

    digest: str
    outcome: CommitOutcome
    region: str
    ranges: tuple[str, ...]
    detail: str = ""


class AcceptedAs(enum.Enum):
    """A person's decision about such work."""

    LOST = "lost"  # Write the needed records yourself.
    COMMITTED = "committed"  # Readers see it, though its broker no longer knows it.


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedWork:
    """Unsettled work that no longer prevents a start; ``digest``, ``region`` and ``ranges`` as in
    `UnsettledWork`."""

    digest: str
    accepted_as: AcceptedAs
    region: str
    ranges: tuple[str, ...]


class MetadataStore(Protocol):
    """The checkpoint directory. Driver or command line; the caller serialises the calls.

    A slot holds one record for ever: DECIDED or ABORTED, whole (`fence-first`, `publish-whole`,
    `retire-after-commit`).
    """

    uri: str

    def slots(self) -> list[int]:
        """Ids of all slots that hold a record, ascending."""
        ...

    def known_fencing_records(self) -> frozenset[int]:
        """Slots that hold a fencing record, as far as this process knows.

        These are the fencing records that it has read, and all below the newest one. It need not
        read those: they keep no state, and only the newest one says where to resume.
        """
        ...

    def read(self, checkpoint_id: int) -> CheckpointRecord | None:
        """The record in a slot, None if the slot is empty.

        Raises: DamagedCheckpointError, UnsupportedFormatError.
        """
        ...

    def is_empty(self, directory: str) -> bool:
        """Whether a directory that a record names is empty or missing."""
        ...

    def publish(self, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
        """Write a record to its slot: whole, synced, never replacing another."""
        ...

    def mark_committed(self, checkpoint_id: int) -> None:
        """Durable ``_committed``; idempotent."""
        ...

    def is_committed(self, checkpoint_id: int) -> bool:
        """Whether ``_committed`` is there."""
        ...

    def mark_superseded(self, checkpoint_id: int, *, by: int) -> None:
        """Record that a start from an older checkpoint superseded this one; idempotent."""
        ...

    def end_attempts(self, run_attempt_id: int) -> None:
        """After it, no later coordinator resumes attempts of runs up to this one.

        Raises:
            StreamError: a later coordinator may resume them still.
        """
        ...

    def is_superseded(self, checkpoint_id: int) -> bool:
        """Whether a start from an older checkpoint has passed this one over."""
        ...

    def superseded_by(self, checkpoint_id: int) -> int | None:
        """The first checkpoint of the start that passed this one over, or None."""
        ...

    def note_unsettled(self, checkpoint_id: int, works: Sequence[UnsettledWork]) -> None:
        """Record the work that an error is about to name; replaces the earlier record."""
        ...

    def accepted(self, checkpoint_id: int) -> Mapping[str, AcceptedWork]:
        """Work of a decision that no longer prevents a start, by its digest.

        Raises: DamagedCheckpointError, UnsupportedFormatError.
        """
        ...

    def publish_repair(
        self, checkpoint_id: int, replaced: Mapping[bytes, StateEntry], *, session: str
    ) -> PublishOutcome:
        """The next ``_repair-k``: lost committable's payload -> its replacement
        (`two-phase-repair`)."""
        ...

    def effective_committables(self, record: CheckpointRecord) -> tuple[StateEntry, ...]:
        """The record's committables with every repair applied."""
        ...

    def make_durable(self, checkpoint_id: int) -> None:
        """Make a slot and its repairs durable: their writer may have died before it did so
        (`publish-whole`).

        Raises: StorageError.
        """
        ...

    def retirable(self, *, retain: int) -> list[int]:
        """Ids that are no longer needed if ``retain`` decisions are kept, ascending."""
        ...

    def retire(self, checkpoint_ids: Collection[int]) -> None:
        """Delete retired slots; refuses an unfinished decision and every fencing record
        (`retire-after-commit`)."""
        ...

    def state_files(self) -> list[str]:
        """All files of keyed state, relative to the directory."""
        ...

    def require_files(self, record: CheckpointRecord, *, whole: bool) -> None:
        """Check the files of keyed state that a record names.

        Args:
            whole: read them, and compare their digests; else they are there with their lengths.
        Raises: DamagedCheckpointError: names the first that are missing or differ.
        """
        ...

    def delete_files(self, paths: Collection[str]) -> None:
        """Delete files of keyed state that no record names; those that are gone do not matter.
        After an error some are there."""
        ...
