"""Operator states of all records that a job can still start from: no sweep touches them."""

import logging
import threading
from collections.abc import Iterable
from typing import Self

from sluice.runtime.contracts import MetadataStore
from sluice.runtime.errors import DamagedCheckpointError
from sluice.runtime.model.checkpoint_record import CheckpointRecord, StateEntry, Verdict

__all__ = ["KeptStates", "states_of"]

log = logging.getLogger(__name__)


def states_of(record: CheckpointRecord) -> tuple[StateEntry, ...]:
    """Operator states of a decided record; an aborted one has none."""
    if record.verdict is not Verdict.DECIDED:
        return ()
    return tuple(entry for region in record.regions for entry in region.operator_states)


class KeptStates:
    """Operator states by checkpoint id. Each record is read once, at the start, or noted when it is
    published. The coordinator's I/O thread notes records, its housekeeping thread reads them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[int, tuple[StateEntry, ...]] = {}

    @classmethod
    def read(cls, store: MetadataStore) -> Self:
        """Read every record in the checkpoint directory; no job starts from a damaged one."""
        found = cls()
        fenced = store.known_fencing_records()
        for checkpoint_id in store.slots():
            if checkpoint_id in fenced:
                continue
            try:
                record = store.read(checkpoint_id)
            except DamagedCheckpointError:
                log.warning("damaged checkpoint protects no state: checkpoint_id=%d", checkpoint_id)
                continue
            if record is not None:
                found.note(record)
        return found

    def note(self, record: CheckpointRecord) -> None:
        """Add a record that is being published: it may be durable from now on."""
        states = states_of(record)
        with self._lock:
            if states:
                self._by_id[record.checkpoint_id] = states
            else:
                self._by_id.pop(record.checkpoint_id, None)

    def forget(self, checkpoint_ids: Iterable[int]) -> None:
        """Remove retired records."""
        with self._lock:
            for checkpoint_id in checkpoint_ids:
                self._by_id.pop(checkpoint_id, None)

    def entries(self) -> tuple[StateEntry, ...]:
        """The states of all records, each once."""
        with self._lock:
            return tuple(
                dict.fromkeys(entry for states in self._by_id.values() for entry in states)
            )
