"""The checkpoint directory, as the coordinator sees it."""

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.runtime.contracts.committing import CommitOutcome
from sluice.runtime.model.model import CheckpointRecord, StateEntry

__all__ = ["AcceptedAs", "AcceptedWork", "MetadataStore", "PublishOutcome", "UnsettledWork"]


class PublishOutcome(enum.Enum):
    """Answer of a no-replace publish."""

    OURS = "ours"  # durable, by this call or an earlier one of this session
    TAKEN = "taken"  # another record is there: read it; another session's = stop
    UNKNOWN = "unknown"  # neither read back nor refused: ask again, decide nothing
    DECIDED = "decided"  # an abort came too late: this session's own decision stands there


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsettledWork:
    """Decided work that could not be committed, as an error named it that ended a job or its start.

    Attributes:
        digest: of its committable, by `sluice.runtime.checkpoint.lost_work.digest_of`.
        outcome: ABORTED: it is lost; UNKNOWN: nobody can tell.
        region: that wrote it.
        ranges: source ranges that it holds, ``orders-0:[10,20)``; all of its region's where it does
            not tell its own.
        detail: why, for people.
    """

    digest: str
    outcome: CommitOutcome
    region: str
    ranges: tuple[str, ...]
    detail: str = ""


class AcceptedAs(enum.Enum):
    """What a person has said of such work."""

    LOST = "lost"  # it is gone; what is needed of it is written by hand
    COMMITTED = "committed"  # readers see it, though its broker cannot tell any more


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedWork:
    """Unsettled work that shall not hold up a start; ``digest``, ``region`` and ``ranges`` as in
    `UnsettledWork`."""

    digest: str
    accepted_as: AcceptedAs
    region: str
    ranges: tuple[str, ...]


class MetadataStore(Protocol):
    """The checkpoint directory. Driver or command line; calls are serialised by the caller.

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
        """The record of a slot; None if it is empty.

        Raises: DamagedCheckpointError, UnsupportedFormatError.
        """
        ...

    def is_empty(self, directory: str) -> bool:
        """Whether a directory that a record names is empty or missing."""
        ...

    def publish(self, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
        """Put a record into its slot: whole, synced, never replacing another."""
        ...

    def mark_committed(self, checkpoint_id: int) -> None:
        """Write the completion marker ``_committed``; durable, idempotent."""
        ...

    def is_committed(self, checkpoint_id: int) -> bool:
        """Whether the slot has its completion marker."""
        ...

    def mark_superseded(self, checkpoint_id: int, *, by: int) -> None:
        """Record that a start from an older checkpoint passed this one over; idempotent."""
        ...

    def is_superseded(self, checkpoint_id: int) -> bool:
        """Whether a start from an older checkpoint has passed this one over."""
        ...

    def note_unsettled(self, checkpoint_id: int, works: Sequence[UnsettledWork]) -> None:
        """Record the work that an error is about to name; replaces the previous list."""
        ...

    def accepted(self, checkpoint_id: int) -> Mapping[str, AcceptedWork]:
        """The work of a decision that no longer stops a start, by its digest.

        Raises: DamagedCheckpointError, UnsupportedFormatError.
        """
        ...

    def publish_repair(
        self, checkpoint_id: int, replaced: Mapping[bytes, StateEntry], *, session: str
    ) -> PublishOutcome:
        """Publish the next ``_repair-k``: lost committable's payload -> its replacement
        (`two-phase-repair`)."""
        ...

    def effective_committables(self, record: CheckpointRecord) -> tuple[StateEntry, ...]:
        """The record's committables with every repair applied."""
        ...

    def make_durable(self, checkpoint_id: int) -> None:
        """Make a slot's record and repairs durable: their writer may have died before it did so
        (`publish-whole`).

        Raises: StorageError.
        """
        ...

    def retirable(self, *, retain: int) -> list[int]:
        """Ids that nothing needs any more if ``retain`` decisions are kept, ascending."""
        ...

    def retire(self, checkpoint_ids: Collection[int]) -> None:
        """Delete retired slots; refuses an unfinished decision and every fencing record
        (`retire-after-commit`)."""
        ...
