"""The newest work that a start knows to be committed, so that sinks can look for it."""

from sluice.runtime.checkpoint.lost_work import digest_of
from sluice.runtime.contracts import MetadataStore
from sluice.runtime.coordinator.start.recovery import History
from sluice.runtime.model.checkpoint_record import StateEntry

__all__ = ["newest_committed"]


def newest_committed(
    store: MetadataStore, history: History, *, resumed_from: int
) -> tuple[StateEntry, ...]:
    """Committables of the newest decision that is committed on record, none after the start's own.

    A person who has restored the remote from a backup starts from the checkpoint that it has: work
    of later ones may be gone. Work that a person has accepted may be missing too.
    """
    for slot in history.slots:
        if slot.is_committed and not slot.is_superseded and slot.checkpoint_id <= resumed_from:
            accepted = store.accepted(slot.checkpoint_id)
            standing = store.effective_committables(slot.record)
            return tuple(entry for entry in standing if digest_of(entry) not in accepted)
    return ()
