"""Reads the slots that decide where a start resumes, with their markers."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sluice.runtime.checkpoint.checkpoint_slots import slot_name
from sluice.runtime.contracts import MetadataStore
from sluice.runtime.coordinator.start import recovery
from sluice.runtime.coordinator.start.recovery import History, Slot
from sluice.runtime.errors import DamagedCheckpointError, UnsupportedFormatError
from sluice.runtime.model.checkpoint_record import Verdict

__all__ = ["SlotReader"]

log = logging.getLogger(__name__)

_MOST_FENCING_RECORDS = 100  # that a start with ``restore_from`` reads for its warning


@dataclass(frozen=True, slots=True)
class SlotReader:
    """Runs in the thread that starts the coordinator."""

    store: MetadataStore

    def newest(self, ids: Sequence[int], restore_from: int | None) -> list[Slot] | None:
        """Newest first, down to the newest marked decision; None if a slot has vanished.

        Args:
            ids: all slots that hold a record, ascending.
            restore_from: the checkpoint that the user asked for.
        """
        slots: list[Slot] = []
        fenced = self.store.known_fencing_records()
        for checkpoint_id in reversed(ids):
            # The newest run's fencing record says what it resumed from; older ones are not needed.
            # A start that lost a race may have left one between its decisions, in a retired slot.
            is_older = checkpoint_id in fenced and any(
                p.resumed_from is not None
                and p.record.leader_session_id == slots[0].record.leader_session_id
                for p in slots
            )
            if is_older and checkpoint_id != restore_from:  # a person may have put that one back
                continue
            is_left = recovery.is_bypassed(checkpoint_id, slots)
            is_needed = restore_from == checkpoint_id or (restore_from is None and not is_left)
            slot = self._slot(checkpoint_id, slots, skip_damaged=not is_needed)
            if slot is not None:
                slots.append(slot)
                is_far_enough = restore_from is None or checkpoint_id <= restore_from
                is_in_force = slot.is_committed and not slot.is_superseded and not is_left
                if is_in_force and is_far_enough:
                    break
            elif not self.store.is_committed(checkpoint_id):
                return None  # retired with its marker; a damaged record that is skipped has one
        return slots

    def _slot(
        self, checkpoint_id: int, above: Sequence[Slot], *, skip_damaged: bool
    ) -> Slot | None:
        """A slot with its markers. A start from an older checkpoint can skip a damaged record that
        is committed. An uncommitted one cannot be settled, and stops the start."""
        try:
            record = self.store.read(checkpoint_id)
        except DamagedCheckpointError:
            if not (skip_damaged and self.store.is_committed(checkpoint_id)):
                raise
            log.warning("damaged checkpoint is skipped: checkpoint_id=%d", checkpoint_id)
            return None
        if record is None:
            return None
        is_decided = record.verdict is Verdict.DECIDED
        return Slot(
            record=record,
            is_committed=is_decided and self.store.is_committed(checkpoint_id),
            is_superseded=is_decided and self._is_superseded(checkpoint_id, above),
            is_void=recovery.may_be_void(record, above) and self.is_gone(record.restored_from),
        )

    def _is_superseded(self, checkpoint_id: int, above: Sequence[Slot]) -> bool:
        """A start whose fencing record is void has superseded nothing."""
        if not self.store.is_superseded(checkpoint_id):
            return False
        void = {slot.checkpoint_id for slot in above if slot.is_void}
        return not void or self.store.superseded_by(checkpoint_id) not in void

    def is_gone(self, checkpoint_id: int | None) -> bool:
        """Whether there is no such record any more."""
        try:
            return checkpoint_id is not None and self.store.read(checkpoint_id) is None
        except DamagedCheckpointError:
            return False

    # --- a checkpoint that was restored before ----------------------------------------------------

    def warn_if_repeated(self, history: History, restore_from: int) -> None:
        """A person may want to go back once more. But if one of several drivers has another
        ``restore_from``, the log is the only sign of that."""
        restored_by = self._last_with_wish(restore_from)
        newest = recovery.last_decision(history, self.store.known_fencing_records())
        if restored_by is not None and newest > restored_by:
            log.warning(
                "a checkpoint is restored again although the job has continued since: its later "
                "records are written again: restore_from=%d restored_by=%d newest_decision=%d",
                *(restore_from, restored_by, newest),
            )

    def _last_with_wish(self, restore_from: int) -> int | None:
        newest_first = sorted(self.store.known_fencing_records(), reverse=True)
        for checkpoint_id in newest_first[:_MOST_FENCING_RECORDS]:
            if checkpoint_id < restore_from:
                break
            try:
                record = self.store.read(checkpoint_id)
            except (DamagedCheckpointError, UnsupportedFormatError):
                continue
            if record is not None and recovery.has_wish(record, restore_from):
                return checkpoint_id
        return None

    def unreadable_after_restore(
        self, restore_from: int, damage: DamagedCheckpointError
    ) -> DamagedCheckpointError:
        """The error of a start whose restore was done, if it cannot read a later decision. That is
        committed, so to go back again in silence would write it twice."""
        origin = "a savepoint's URI"
        if not self.is_gone(restore_from):
            origin = f"'{self.store.uri}/{slot_name(restore_from)}'"
        what, where, _ = damage.args
        return DamagedCheckpointError(
            f"the checkpoint was restored before, and a later one cannot be read: {what}",
            {**where, "restore_from": restore_from},
            "Start with restore_from= another decided checkpoint of `sluice checkpoint list`. If "
            f"there is none, start with an empty checkpoint_dir and restore_from={origin}. Both "
            "write the later records again.",
        )
