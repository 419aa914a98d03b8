"""The checkpoint directory, as the coordinator sees it."""

import enum
from collections.abc import Collection, Mapping
from typing import Protocol

from runtime.model import CheckpointRecord, StateEntry

__all__ = ["MetadataStore", "PublishOutcome"]


class PublishOutcome(enum.Enum):
    """Answer of a no-replace publish."""

    OURS = "ours"  # durable, by this call or an earlier one of this session
    TAKEN = "taken"  # another record is there: read it; another session's = stop
    UNKNOWN = "unknown"  # neither read back nor refused: ask again, decide nothing
    DECIDED = "decided"  # an abort came too late: this session's own decision stands there


class MetadataStore(Protocol):
    """The checkpoint directory. Driver or command line; calls are serialised by the caller.

    A place holds one record for ever: DECIDED or ABORTED, whole (rules 6, 7, 29).
    """

    uri: str

    def places(self) -> list[int]:
        """Ids of all places that hold a record, ascending."""
        ...

    def read(self, checkpoint_id: int) -> CheckpointRecord | None:
        """The record at a place, None when empty.

        Raises: DamagedCheckpointError, UnsupportedFormatError.
        """
        ...

    def publish(self, record: CheckpointRecord, *, timeout_s: float) -> PublishOutcome:
        """Put a record in its place: whole, synced, never replacing another."""
        ...

    def mark_committed(self, checkpoint_id: int) -> None:
        """Durable ``_committed``; idempotent."""
        ...

    def is_committed(self, checkpoint_id: int) -> bool:
        """Whether ``_committed`` is there."""
        ...

    def mark_superseded(self, checkpoint_id: int, *, by: int) -> None:
        """Say that a start from an older checkpoint left this one behind; idempotent."""
        ...

    def is_superseded(self, checkpoint_id: int) -> bool:
        """Whether the mark is there."""
        ...

    def is_loss_accepted(self, checkpoint_id: int) -> bool:
        """Whether a start may go on behind this decision though some of it is lost."""
        ...

    def publish_repair(
        self, checkpoint_id: int, replaced: Mapping[bytes, StateEntry], *, session: str
    ) -> PublishOutcome:
        """The next ``_repair-k``: lost committable's payload -> its replacement (rule 11)."""
        ...

    def effective_committables(self, record: CheckpointRecord) -> tuple[StateEntry, ...]:
        """The record's committables with every repair applied."""
        ...

    def retirable(self, *, retain: int) -> list[int]:
        """Ids that nothing needs any more when ``retain`` decisions are kept, ascending."""
        ...

    def retire(self, checkpoint_ids: Collection[int]) -> None:
        """Delete retired places; refuses an unfinished decision and every seal (rule 29)."""
        ...
