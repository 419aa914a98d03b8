"""The slots of a checkpoint directory that hold a record, and the facts known of each."""

import re
from collections.abc import Callable
from dataclasses import replace

from sluice.runtime.checkpoint.retention import SlotFacts, facts_of, other_records
from sluice.runtime.contracts import MetadataStore
from sluice.runtime.errors import DamagedCheckpointError, StreamError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import (
    FENCING,
    CheckpointRecord,
    Verdict,
)
from sluice.runtime.storage.file_system import FileSystem

__all__ = [
    "FULL",
    "METADATA",
    "RETIRED",
    "SAVEPOINT_NAME",
    "STATE",
    "KnownSlots",
    "read_slots",
    "slot_name",
]

METADATA = "_metadata"
FULL = "full"
"""Directory of the full checkpoints in a checkpoint directory."""
STATE = "state"
"""Directory of the files of keyed state, in a checkpoint directory and in its copies."""
RETIRED = "_retired"
"""In a full checkpoint that retention has begun to delete."""
SAVEPOINT_NAME = re.compile(r"savepoint-[A-Za-z0-9-]{1,8}-\d+-[0-9a-f]{6}")
"""Names of the directories of savepoints."""
_SLOT = re.compile(r"chk-\d{12,}")


def slot_name(checkpoint_id: int) -> str:
    """Name of a slot's directory; names sort as numbers do."""
    return f"chk-{checkpoint_id:012d}"


def read_slots(store: MetadataStore) -> dict[int, CheckpointRecord | StreamError]:
    """The record of each slot, or why it cannot be read.

    A running job retires slots once there are newer ones. If a listed slot is gone, the slots are
    listed again: newer records may name the same checkpoints.
    """
    known: dict[int, CheckpointRecord | StreamError | None] = {}
    listed: list[int] = []
    while True:
        before, listed = listed, store.slots()
        known = {each: known.get(each) or _read(store, each) for each in listed}
        found = {each: read for each, read in known.items() if read is not None}
        if len(found) == len(listed) or listed == before:
            return found


def _read(store: MetadataStore, checkpoint_id: int) -> CheckpointRecord | StreamError | None:
    try:
        return store.read(checkpoint_id)
    except (DamagedCheckpointError, UnsupportedFormatError) as error:
        return error


class KnownSlots:
    """Part of a `CheckpointStore`; the caller serialises the calls.

    Records never change, so the facts of a record that was read once are kept. Fencing records are
    kept for ever, one of each run. The newest one names all slots below it that hold another
    record, so a start reads none of the older ones (ADR 0018).

    Args:
        fs: rooted at the checkpoint directory.
        read: returns a slot's record; may raise DamagedCheckpointError. It calls `note`.
        has_file: whether a slot has a file of this name.
    """

    def __init__(
        self,
        fs: FileSystem,
        *,
        read: Callable[[int], CheckpointRecord | None],
        has_file: Callable[[int, str], bool],
    ) -> None:
        self._fs = fs
        self._read = read
        self._has_file = has_file
        self._facts: dict[int, SlotFacts] = {}
        self._older: set[int] = set()  # unread fencing records, as the newest one implies
        self._is_loaded = False

    def listed(self) -> list[int]:
        """Ids of all directories that are named like a slot, ascending."""
        return sorted(int(name[4:]) for name in self._fs.names("", _SLOT))

    def fenced(self) -> frozenset[int]:
        """See `CheckpointStore.known_fencing_records`."""
        if not self._is_loaded:
            self._older = self._older_fencing_records()
            self._is_loaded = True
        known = {each for each, facts in self._facts.items() if _is_fencing(facts)}
        return frozenset(self._older | known)

    def note(self, checkpoint_id: int, record: CheckpointRecord | None) -> None:
        """A record was read or published in this slot; None: the slot was found empty."""
        if record is not None and record.requested_by == FENCING:
            self._facts[checkpoint_id] = facts_of(record)
        else:
            self._older.discard(checkpoint_id)
        if record is None:
            self._facts.pop(checkpoint_id, None)

    def ids(self) -> list[int]:
        """See `CheckpointStore.slots`."""
        fenced = self.fenced()
        listed = self.listed()
        while True:
            unknown = {each for each in listed if each not in self._facts and each not in fenced}
            found = {each for each in unknown if self._has_file(each, METADATA)}
            present = [each for each in listed if each not in unknown or each in found]
            if not unknown:
                return present  # no time has passed in which a record could be deleted
            highest, listed = max(listed, default=-1), self.listed()
            if max(listed, default=-1) <= highest:
                return present

    def facts(self, *, committed: str, superseded: str) -> list[SlotFacts]:
        """Facts of every slot whose record can be read, ascending.

        Args:
            committed, superseded: names of the markers.
        """
        found = {each: self._facts_at(each, committed, superseded) for each in self.ids()}
        self._facts = {each: facts for each, facts in found.items() if facts is not None}
        return list(self._facts.values())

    def forget(self, checkpoint_id: int) -> None:
        """A marker of this slot changes: its facts are read again."""
        self._facts.pop(checkpoint_id, None)

    def _older_fencing_records(self) -> set[int]:
        """Slots below the newest fencing record that it does not name; none without one."""
        listed = self.listed()
        for checkpoint_id in reversed(listed):
            try:
                record = self._read(checkpoint_id)
            except (DamagedCheckpointError, UnsupportedFormatError):
                continue  # a caller that needs this record meets the error again
            others = None if record is None else other_records(record)
            if others is not None:
                return {each for each in listed if each < checkpoint_id} - others
        return set()

    def _facts_at(self, checkpoint_id: int, committed: str, superseded: str) -> SlotFacts | None:
        """Reads only what may have changed since the last call.

        `CheckpointStore.mark_superseded` forgets the facts. Another process marks a slot as
        superseded only before the first decision of this session.
        """
        known = self._facts.get(checkpoint_id)
        if known is None and checkpoint_id in self._older:
            return _facts_of_unread(checkpoint_id)
        if known is None:
            try:
                record = self._read(checkpoint_id)
            except DamagedCheckpointError:
                return None  # it stays for a person to look at; it keeps no other record
            if record is None:
                return None
            is_superseded = self._has_file(checkpoint_id, superseded)
            known = facts_of(record, is_superseded=is_superseded)
        if known.verdict is Verdict.ABORTED or known.is_committed:
            return known
        return replace(known, is_committed=self._has_file(checkpoint_id, committed))


def _is_fencing(facts: SlotFacts) -> bool:
    return facts.is_fencing_record and facts.verdict is Verdict.ABORTED  # not checkpoint 0


def _facts_of_unread(checkpoint_id: int) -> SlotFacts:
    """Facts of an older fencing record. Only the last record's ``restored_from`` matters."""
    return SlotFacts(
        checkpoint_id=checkpoint_id,
        verdict=Verdict.ABORTED,
        names=frozenset(),
        has_committables=False,
        is_fencing_record=True,
    )
